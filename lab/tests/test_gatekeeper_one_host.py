"""The judge is judged: made-up cells whose claims are known, and the shape of the testbed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import figure5, machine, wire
from lab.cell import Cell, disturbance
from lab.experiments import gatekeeper_fig5
from lab.experiments.gatekeeper_one_host import FIGURE
from lab.figure5 import (
    ENDPOINTS,
    NONE,
    ONE,
    REGIMES,
    SWARM,
    TEN,
    UDP,
    Load,
    Regime,
    flows,
    guarantee_bps,
    topology,
)
from lab.machine import CpuUse
from lab.net import Lab, Received
from lab.report import Claim
from lab.topology import Host
from lab.workload import Blast, Swarm, TcpFlow

Parts = tuple[float, float]
LOADS = FIGURE.loads
PEERS = FIGURE.peers
WINDOW_S = 1.3


def received(bps: float, what: str) -> Received:
    """What a device counts in the window at a rate on the wire, in full frames."""
    frames = round(bps / 8 * WINDOW_S / wire.FULL_BYTES)
    headers = wire.UDP.headers_bytes if what == UDP else wire.TCP.headers_bytes
    payload = wire.MTU_BYTES - headers
    return Received(frames * (payload + headers + wire.ETHERNET_BYTES), frames)


def cell(regime: Regime, half: str, peer: str, load: Load, parts: Parts) -> Cell:
    """A valid cell in which A and B got these parts of the link."""
    devices = {name: Received(0, 0) for ends in ENDPOINTS.values() for name in ends}
    for (near, far), what, part in zip(ENDPOINTS.values(), load, parts, strict=True):
        devices[far if half == "tx" else near] = received(part * regime.link_bps, what)
    labels = {"regime": regime.name, "peer": peer, "repetition": 0, "half": half}
    return Cell(
        labels={**labels, "A": load[0], "B": load[1], "attempt": 0},
        window_s=WINDOW_S,
        goodput_bps={},
        flows={},
        wire={},
        idle=0.5,
        cores={},
        strangers=0.0,
        worker=None,
        bound=None,
        disturbed=None,
        valid=True,
        received=devices,
    )


def good(peer: str, half: str, load: Load) -> Parts:
    """Levada as promised; the bridge as the traffic falls."""
    if load[1] == NONE:
        return 0.998, 0.0
    if load[0] == NONE:
        return 0.0, 0.998
    if peer == "bridge":
        return (0.5, 0.5) if load[1] == ONE else (0.05, 0.95)
    return (0.74, 0.247) if half == "rx" else (0.745, 0.255)


def all_cells(parts: Callable[[str, str, Load], Parts] = good) -> list[Cell]:
    return [
        cell(regime, half, peer, load, parts(peer, half, load))
        for regime in REGIMES
        for half in LOADS
        for peer in PEERS
        for load in LOADS[half]
    ]


def judged(cells: list[Cell]) -> dict[str, Claim]:
    return {claim.id: claim for claim in figure5.claims(FIGURE, cells)}


def broken(cells: list[Cell]) -> list[str]:
    return [claim.id for claim in figure5.claims(FIGURE, cells) if not claim.holds]


def but(which: tuple[str, str, Load], instead: Parts) -> Callable[[str, str, Load], Parts]:
    return lambda *key: instead if key == which else good(*key)


def test_everything_as_promised_holds() -> None:
    assert broken(all_cells()) == []


def test_one_load_a_little_short_is_found() -> None:
    short = all_cells(but(("alone", "tx", (ONE, UDP)), (0.72, 0.28)))
    assert broken(short) == [
        "1g tx, Levada, no agents: worst tenant's part of its guarantee",
        "mtu tx, Levada, no agents: worst tenant's part of its guarantee",
    ]
    verdict = judged(short)["1g tx, Levada, no agents: worst tenant's part of its guarantee"]
    assert verdict.value == pytest.approx(100 * 0.72 / 0.735, rel=1e-3)


def test_an_idle_tenants_part_that_is_not_lent_is_found() -> None:
    rigid = all_cells(but(("agents", "rx", (NONE, TEN)), (0.0, 0.25)))
    assert broken(rigid) == [f"{r.name} rx: a tenant alone, of the link" for r in REGIMES]


def test_too_much_headroom_is_found() -> None:
    wasteful = all_cells(but(("agents", "rx", (ONE, TEN)), (0.734, 0.2445)))
    assert broken(wasteful) == [f"{r.name} rx: of the link given up" for r in REGIMES]


def test_a_best_effort_that_harms_nobody_shows_that_nothing_is_tested() -> None:
    fair = all_cells(lambda peer, half, load: good("agents", half, load))
    assert len(broken(fair)) == len(REGIMES) * len(LOADS)


def test_a_load_without_a_valid_cell_voids_its_claims() -> None:
    cells = [
        dataclasses.replace(c, valid=False)
        if (c.labels["peer"], c.labels["half"], c.labels["B"]) == ("alone", "tx", UDP)
        else c
        for c in all_cells()
    ]
    verdict = judged(cells)["1g tx, Levada, no agents: worst tenant's part of its guarantee"]
    assert verdict.value is None
    assert not verdict.holds
    assert "invalid" in figure5.rates_table(FIGURE, cells, REGIMES[0], "tx")


def test_the_mean_of_the_repetitions_counts() -> None:
    lucky = all_cells(but(("alone", "tx", (ONE, TEN)), (0.748, 0.251)))
    unlucky = all_cells(but(("alone", "tx", (ONE, TEN)), (0.720, 0.279)))
    assert broken(lucky + unlucky) == []
    assert len(broken(lucky + 4 * unlucky)) == len(REGIMES)


def test_a_window_that_outlived_its_flows_cannot_be_compared() -> None:
    quiet = CpuUse(idle=0.5, cores={}, strangers=0.0)
    assert disturbance(quiet, -0.1) is None
    assert "stood still" in str(disturbance(quiet, 104.7))
    assert "other programs" in str(disturbance(dataclasses.replace(quiet, strangers=1.0), -0.1))


def test_rates_are_read_where_the_traffic_arrives() -> None:
    inward = cell(REGIMES[0], "rx", "agents", (ONE, TEN), (0.7, 0.2))
    assert figure5.rate_bps(inward, "A") == pytest.approx(700e6, rel=1e-3)
    outward = cell(REGIMES[0], "tx", "alone", (NONE, UDP), (0.0, 0.9))
    assert figure5.rate_bps(outward, "A") == 0
    assert figure5.rate_bps(outward, "B") == pytest.approx(900e6, rel=1e-3)


def test_the_testbed_is_the_published_one() -> None:
    shape = topology(FIGURE, REGIMES[0])
    homes = {e.name: (e.tenant, e.host) for e in shape.endpoints}
    assert homes == {"a1": ("A", "h1"), "b1": ("B", "h1"), "a2": ("A", "h2"), "b3": ("B", "h3")}
    assert [h.isolates for h in shape.hosts] == [True, False, False]
    assert shape.hosts[0] == Host("h1", 1_000_000_000)
    promised = sum(guarantee_bps(REGIMES[0], tenant) for tenant in ENDPOINTS)
    assert promised == pytest.approx(0.98e9)


def test_flows_go_out_or_come_in_and_floods_fit_the_regime() -> None:
    fast, slow = REGIMES
    tcp, udp = flows(fast, "tx", (ONE, UDP))
    assert isinstance(tcp, TcpFlow)
    assert (tcp.src, tcp.dst) == ("a1", "a2")
    assert isinstance(udp, Blast)
    assert (udp.src, udp.dst) == ("b1", "b3")
    assert udp.segments > 1
    (single,) = flows(slow, "tx", (NONE, UDP))
    assert isinstance(single, Blast)
    assert single.segments == 1
    assert single.per_s * wire.FULL_BYTES * 8 == pytest.approx(1.5 * slow.link_bps)
    assert [(f.src, f.dst) for f in flows(fast, "rx", (ONE, TEN))] == [("a2", "a1"), ("b3", "b1")]


def test_on_ingress_only_hosts_that_talk_are_judged() -> None:
    unlucky = all_cells(but(("alone", "rx", (ONE, TEN)), (0.70, 0.28)))
    assert broken(unlucky) == []
    harmed = all_cells(but(("agents", "rx", (ONE, TEN)), (0.70, 0.28)))
    assert broken(harmed) == [f"{r.name} rx: worst tenant's part of its guarantee" for r in REGIMES]


def test_the_flood_stays_out_of_what_ingress_cannot_promise() -> None:
    assert not any(UDP in load for load in LOADS["rx"])


def test_plots_and_table_show_every_peer(tmp_path: Path) -> None:
    cells = all_cells()
    figure5._draw(FIGURE, cells, LOADS, tmp_path)
    assert {p.name for p in tmp_path.glob("*.svg")} == {
        f"{r.name}-{half}.svg" for r in REGIMES for half in LOADS
    }
    shown = figure5.rates_table(FIGURE, cells, REGIMES[0], "rx")
    assert shown.count("\n") == 2 + len(LOADS["rx"])
    assert "740" in shown


def test_with_agents_everything_is_played_and_all_hosts_isolate() -> None:
    figure = gatekeeper_fig5.FIGURE
    for half in ("tx", "rx"):
        assert {load[1] for load in figure.loads[half]} >= {NONE, ONE, TEN, UDP, SWARM}
    assert all(h.isolates for h in topology(figure, REGIMES[0]).hosts)
    _, swarm = flows(REGIMES[0], "rx", (ONE, SWARM))
    assert isinstance(swarm, Swarm)
    assert (swarm.src, swarm.dst) == ("b3", "b1")


def test_of_a_swarm_only_what_it_does_to_others_is_judged() -> None:
    figure = gatekeeper_fig5.FIGURE
    cells = [
        cell(regime, half, peer, load, good(peer, half, load) if load[1] != SWARM else (0.74, 0.1))
        for regime in REGIMES
        for half in figure.loads
        for peer in figure.peers
        for load in figure.loads[half]
    ]
    claims = figure5.claims(figure, cells)
    assert [claim.id for claim in claims if not claim.holds] == []
    assert len(claims) == len(REGIMES) * sum(3 * len(p) + 1 for p in figure.judged.values())


def test_what_has_no_valid_cell_is_played_again_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A busy machine spoils a load of a peer that is judged, and of one that is not."""
    spoilt = {("agents", "rx", (ONE, TEN)), ("htb", "tx", (ONE, ONE))}
    played: list[tuple[str, str, Load, int]] = []

    def play(
        _figure: object,
        _lab: object,
        regime: Regime,
        peer: str,
        _plan: object,
        loads: figure5.Loads,
        labels: dict[str, int],
    ) -> list[Cell]:
        cells = []
        for half in loads:
            for load in loads[half]:
                one = cell(regime, half, peer, load, good(peer, half, load))
                is_late = (peer, half, load) in spoilt and labels["repetition"] < 4
                cells.append(dataclasses.replace(one, valid=not is_late))
                played.append((peer, half, load, labels["repetition"]))
        return cells

    monkeypatch.setattr(figure5, "_play", play)
    monkeypatch.setattr(figure5, "program", lambda: tmp_path)
    monkeypatch.setattr(figure5, "missing_tools", lambda _tools: [])
    monkeypatch.setattr(machine, "describe", lambda _programs: {})
    monkeypatch.setattr(figure5, "_draw", lambda *_figure: None)
    report = figure5.play(FIGURE, Lab(), quick=False, out=tmp_path)
    again = [one for one in played if one[3] >= figure5.FULL.repetitions]
    assert again == [("agents", "rx", (ONE, TEN), n) for n in (3, 3, 4, 4)], "one of each regime"
    assert all(claim.holds for claim in report.claims)
    played.clear()
    figure5.play(FIGURE, Lab(), quick=True, out=tmp_path)
    assert {one[3] for one in played} == {0}, "a quick run is quick"
