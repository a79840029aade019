"""The judge is judged: made-up cells whose claims are known, and the shape of the testbed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.cell import Cell, Directions, wire_bytes, worker_use
from lab.experiments import fs_vde
from lab.experiments.fs_vde import BYTES_LINK_BPS, FLOWS, MBIT, TABLE_LINK_BPS, topology
from lab.report import Claim, Report
from lab.workload import Blast, FlowResult


def cell(
    part: str,
    direction: str,
    peer: str,
    goodput: Mapping[str, float],
    wire: tuple[int, int] | None = None,
    order: str | None = None,
) -> Cell:
    """A valid cell; `wire` are bytes of c1 and c2 in that direction at host 1."""
    labels: dict[str, Any] = {"part": part, "direction": direction, "peer": peer, "order": order}
    counted = {} if wire is None else dict(zip(("c1", "c2"), wire, strict=True))
    both = {name: Directions(nbytes, nbytes) for name, nbytes in counted.items()}
    return Cell(
        labels={**labels, "repetition": 0, "attempt": 0},
        window_s=1.0,
        goodput_bps={name: bps * MBIT for name, bps in goodput.items()},
        flows={name: FlowResult(name) for name in goodput},
        wire={"h1": both} if wire else {},
        idle=0.5,
        cores={},
        strangers=0.0,
        worker=None,
        bound=None,
        disturbed=None,
        valid=True,
    )


VDE_EGRESS = {"f1": 136, "f2": 110, "f3": 116, "f4": 116, "f5": 104}
OUR_EGRESS = {"f1": 300, "f2": 150, "f3": 150, "f4": 150, "f5": 150}
VDE_INGRESS = {"f1": 190, "f2": 188, "f3": 200}
OUR_INGRESS = {"f1": 150, "f2": 150, "f3": 600}
MIXED_EGRESS = {"f1": 7, "f2": 16, "f3": 16, "f4": 16, "f5": 16}
MIXED_INGRESS = {"f1": 3, "f2": 3, "f3": 64}


def good_cells() -> list[Cell]:
    cells = [
        cell("table", "egress", "vde", VDE_EGRESS),
        cell("table", "egress", "levada", OUR_EGRESS, (1000, 2000), "fair"),
        cell("table", "ingress", "vde", VDE_INGRESS),
        cell("table", "ingress", "levada", OUR_INGRESS, (1000, 2000), "fair"),
    ]
    for direction, goodput in (("egress", MIXED_EGRESS), ("ingress", MIXED_INGRESS)):
        for order in fs_vde.ORDERS:
            wire = (30, 2970) if order == "vtrr" else (1000, 2000)
            cells.append(cell("bytes", direction, "levada", goodput, wire, order))
    return cells


def judged(cells: list[Cell]) -> dict[str, Claim]:
    return {claim.id: claim for claim in fs_vde.claims(cells)}


def replaced(cells: list[Cell], wanted: dict[str, Any], **changes: object) -> list[Cell]:
    return [
        dataclasses.replace(c, **changes)  # type: ignore[arg-type]
        if all(c.labels[k] == v for k, v in wanted.items())
        else c
        for c in cells
    ]


def test_published_plain_vde_and_ideal_shares_hold() -> None:
    verdict = judged(good_cells())
    assert all(claim.holds for claim in verdict.values())
    assert verdict["egress: worst client's share"].value == 100
    ratio = verdict["egress: plain vde_switch gives c2 with 4 times the flows"].value
    assert ratio == pytest.approx(446 / 136)
    times = verdict["egress: throughput over plain vde_switch's"].value
    assert times == pytest.approx(900 / 582)


def test_a_share_a_little_short_does_not_hold() -> None:
    # c1 has 99.8 % of its third.
    wire = {"h1": {"c1": Directions(0, 9980), "c2": Directions(0, 20020)}}
    wanted = {"part": "table", "direction": "ingress", "peer": "levada"}
    verdict = judged(replaced(good_cells(), wanted, wire=wire))
    claim = verdict["ingress: worst client's share"]
    assert claim.value == pytest.approx(99.8)
    assert not claim.holds


def test_less_than_plain_vde_does_not_hold() -> None:
    slow = {name: bps * MBIT / 2 for name, bps in OUR_EGRESS.items()}
    wanted = {"part": "table", "direction": "egress", "peer": "levada"}
    verdict = judged(replaced(good_cells(), wanted, goodput_bps=slow))
    assert not verdict["egress: throughput over plain vde_switch's"].holds


def test_an_order_by_packets_that_loses_nothing_has_not_the_published_fault() -> None:
    wire = {"h1": {"c1": Directions(1000, 1000), "c2": Directions(2000, 2000)}}
    verdict = judged(replaced(good_cells(), {"part": "bytes", "order": "vtrr"}, wire=wire))
    assert not verdict["egress, 64-byte frames, vtrr: c1 loses, as published"].holds


def test_an_invalid_cell_is_no_result() -> None:
    wanted = {"part": "table", "direction": "egress", "peer": "levada"}
    cells = replaced(good_cells(), wanted, valid=False, bound="machine idle 1.0% < 3%")
    verdict = judged(cells)
    assert verdict["egress: worst client's share"].value is None
    assert not verdict["egress: worst client's share"].holds
    report = Report(
        "fs-vde", True, cells=[c.as_row() for c in cells], claims=list(verdict.values())
    )
    assert not report.holds()
    assert "machine idle 1.0%" in report.text()
    assert "too few valid cells" in report.text()


def test_the_worst_repetition_counts_not_the_mean() -> None:
    wire = {"h1": {"c1": Directions(900, 900), "c2": Directions(2100, 2100)}}
    wanted = {"part": "table", "direction": "egress", "peer": "levada"}
    cells = good_cells()
    bad = [c for c in replaced(cells, wanted, wire=wire) if c.wire == wire]
    claim = judged(cells + bad)["egress: worst client's share"]
    assert claim.value == pytest.approx(90)


def test_result_json_holds_rows_and_claims(tmp_path: Path) -> None:
    cells = good_cells()
    report = Report("fs-vde", True, cells=[c.as_row() for c in cells])
    report.claims = fs_vde.claims(cells)
    read = json.loads(report.write(tmp_path).read_text())
    assert {"id", "value", "unit", "target", "holds"} == set(read["claims"][0])
    assert read["cells"][1]["wire"]["h1"]["c2"] == {"egress_bytes": 2000, "ingress_bytes": 2000}


def test_no_claims_do_not_hold() -> None:
    assert not Report("fs-vde", True).holds()


@pytest.mark.parametrize(("direction", "vms"), [("egress", 6), ("ingress", 5)])
def test_the_testbed_is_the_published_one(direction: str, vms: int) -> None:
    shape = topology(direction, TABLE_LINK_BPS, TABLE_LINK_BPS)
    assert len(shape.endpoints) == vms
    homes = {e.name: e.host for e in shape.endpoints}
    sending, receiving = ("h1", "h2") if direction == "egress" else ("h2", "h1")
    for src, dst in FLOWS[direction].values():
        assert (homes[src], homes[dst]) == (sending, receiving)
        assert src[:2] == dst[:2], "clients talk among themselves only"


def test_the_flood_exceeds_its_share_and_fits_the_wire() -> None:
    for direction in FLOWS:
        floods = [f for f in fs_vde._mixed_flows(direction)() if isinstance(f, Blast)]
        wire_bps = sum(f.per_s for f in floods) * 84 * 8
        assert wire_bps > 1.5 * BYTES_LINK_BPS / 3
        # Beside it the wire to host 1 still has room for what c2 is due.
        assert wire_bps + BYTES_LINK_BPS * 2 / 3 < fs_vde.SPARE * BYTES_LINK_BPS


def shown(now_ns: int, red: int, busy_ns: int) -> dict[str, Any]:
    tenant = {"name": "red", "egress": {"wire_bytes": red}, "ingress": {"wire_bytes": 2 * red}}
    lag = {"p50": 1, "p99": 2, "max": 3}
    worker = {"loop_lag_ns": lag, "loop_lag_buckets": [], "busy_ns": busy_ns, "cpu_ns": now_ns}
    return {"now_ns": now_ns, "worker": worker, "switches": [{"name": "s1", "tenants": [tenant]}]}


def test_two_samples_of_show_give_what_happened_between() -> None:
    first, last = shown(1000, 50, 100), shown(3000, 80, 600)
    assert wire_bytes(first, last) == {"s1": {"red": Directions(30, 60)}}
    worker = worker_use(first, last)
    assert worker.busy == pytest.approx(0.25)
    assert worker.cpu == pytest.approx(1.0)
    assert worker.loop_lag_ns["p99"] == 2
