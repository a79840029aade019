"""The judge is judged, with made-up cells; and each endpoint has a plug of its own."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from lab.experiments import fs_vde_vde
from lab.experiments.fs_vde import FLOWS, topology
from lab.experiments.fs_vde_vde import TABLE_LINK_BPS
from lab.net import Lab
from lab.switches import LevadaVde, LevadaVdeUnpaced
from lab.tests.test_fs_vde import OUR_EGRESS, OUR_INGRESS, VDE_EGRESS, VDE_INGRESS, cell, replaced

PLAIN = {"egress": VDE_EGRESS, "ingress": VDE_INGRESS}
OURS = {"egress": OUR_EGRESS, "ingress": OUR_INGRESS}


def test_shares_come_from_the_paced_cells_and_speed_from_the_others() -> None:
    cells = []
    for direction in FLOWS:
        half = {flow: bps / 2 for flow, bps in OURS[direction].items()}
        cells += [
            cell("table", direction, "vde", PLAIN[direction]),
            cell("table", direction, "levada", half, (1000, 2000), "fair"),
            # Bound by the CPU, it need not share by weight.
            cell("speed", direction, "levada", OURS[direction], (1000, 1000), "fair"),
        ]
    verdict = {claim.id: claim for claim in fs_vde_vde.claims(cells)}
    assert len(verdict) == 6
    assert all(claim.holds for claim in verdict.values())
    times = verdict["egress: throughput over plain vde_switch's"].value
    assert times == pytest.approx(900 / 582)
    slow = {flow: bps / 2 for flow, bps in OUR_EGRESS.items()}
    slower = replaced(
        cells,
        {"part": "speed", "direction": "egress"},
        goodput_bps={f: bps * 1e6 for f, bps in slow.items()},
    )
    verdict = {claim.id: claim for claim in fs_vde_vde.claims(slower)}
    assert not verdict["egress: throughput over plain vde_switch's"].holds
    assert verdict["ingress: throughput over plain vde_switch's"].holds


def test_every_endpoint_has_a_plug_of_its_own() -> None:
    shape = topology("egress", TABLE_LINK_BPS, TABLE_LINK_BPS)
    lab = Lab()  # not entered: nothing is made
    config = tomllib.loads(LevadaVde(lab, shape).configuration())
    ports = {
        endpoint["port"]: (switch["name"], tenant["name"])
        for switch in config["switch"]
        for tenant in switch["tenant"]
        for endpoint in tenant["endpoint"]
    }
    assert len(ports) == len(shape.endpoints)
    for port, (switch, tenant) in ports.items():
        directory = Path(port.removeprefix("vde://")).name
        assert directory.startswith(f"vde-{switch}-{tenant}[")
    assert LevadaVde.has_link_rate
    assert not LevadaVdeUnpaced.has_link_rate
