"""How fast: one TCP connection, and 64-byte frames, between two endpoints of one switch.

Levada has its isolation on: sources are guarded, and both endpoints have a limit, far above what
is reached, so that every frame is queued, scheduled and accounted in both directions. (Between
neighbours without limits there is nothing to schedule; that row is shown beside it.)
Nothing here has a link's rate. What limits is the CPU, for all alike: that is what is measured, and
cells are marked as CPU-bound without being invalid. All switches stay up, idle, throughout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

from bench.flood import SMALL_PAYLOAD_BYTES, Flood
from bench.pairs import COLUMNS, Measure, Pair, interleaved, ratio, row
from bench.peers import CopyLoop
from lab.cell import Cell, measure
from lab.net import Lab
from lab.report import Report, at_least
from lab.stats import table
from lab.switches import Bridge, Levada, Ovs, Switch, Vde
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import Flow, TcpFlow

#: A limit that nothing here reaches: all it does is to send every frame through the scheduler.
_FAR_ABOVE_BPS = 100_000_000_000
#: Window and number of pairs, in a full run and a quick one.
WINDOW_S = {False: 2.0, True: 1.0}
ROUNDS = {False: 5, True: 1}

Peer = type[CopyLoop] | type[Ovs] | type[Bridge] | type[Vde]

#: What a connection has to reach of each peer's.
TCP_TARGETS = {"copy": 0.95, "ovs": 0.95, "bridge": 0.75, "vde": 25.0}
#: And small frames.
SMALL_TARGETS = {"ovs": 1.15, "vde": 2.5}

#: Levada's endpoints without limits, shown beside.
_UNLIMITED = "no limits"


def tcp(lab: Lab, report: Report, quick: bool) -> None:
    """One TCP connection (iperf3, cubic)."""

    def flow(src: str, dst: str) -> Flow:
        return TcpFlow("tcp", src, dst)

    def figure(cell: Cell) -> float:
        return cell.goodput_bps["tcp"]

    peers: list[Peer] = [CopyLoop, Ovs, Bridge, Vde]
    _compare(lab, report, quick, "tcp", peers, TCP_TARGETS, flow, figure, (1e9, "Gbit/s"))


def small(lab: Lab, report: Report, quick: bool) -> None:
    """64-byte frames, sent as fast as it goes, counted at the receiving device."""

    def flow(src: str, dst: str) -> Flow:
        return Flood("flood", src, dst)

    def figure(cell: Cell) -> float:
        return cell.goodput_bps["flood"] / 8 / SMALL_PAYLOAD_BYTES

    peers: list[Peer] = [Ovs, Vde, CopyLoop]
    _compare(lab, report, quick, "small", peers, SMALL_TARGETS, flow, figure, (1e6, "Mpps"))


def _compare(
    lab: Lab,
    report: Report,
    quick: bool,
    section: str,
    peers: list[Peer],
    targets: dict[str, float],
    flow: Callable[[str, str], Flow],
    figure: Callable[[Cell], float],
    unit: tuple[float, str],
) -> None:
    """Pairs of Levada with each peer; a claim for each peer with a target."""
    with _all_running(lab, peers) as switches:

        def measured(name: str, src: str, dst: str) -> Measure:
            def once() -> tuple[Cell, float]:
                labels = {"section": section, "switch": name}
                cell = _of_speed(measure(switches[name], [flow(src, dst)], WINDOW_S[quick], labels))
                return cell, figure(cell)

            return once

        others = {p.name: measured(p.name, f"{p.name}0", f"{p.name}1") for p in peers}
        ours = measured("levada", "levada0", "levada1")
        rows: list[Cell] = []
        pairs = interleaved(ROUNDS[quick], ours, others, rows)
        free = measured("levada", "free0", "free1")
        pairs |= interleaved(ROUNDS[quick], ours, {_UNLIMITED: free}, rows)
    report.cells += [cell.as_row() for cell in rows]
    for name, least in targets.items():
        report.claims.append(
            at_least(f"{section}.vs-{name}", ratio(pairs[name]), f"x {name}", least)
        )
    report.parameters[f"{section}_pairs"] = {n: [asdict(p) for p in ps] for n, ps in pairs.items()}
    report.tables.append(_table(section, pairs, unit))


def _table(section: str, pairs: dict[str, list[Pair]], unit: tuple[float, str]) -> str:
    scale, name = unit
    rows = [row(peer, ps, scale, ".3f") for peer, ps in pairs.items()]
    return f"{section}: Levada, isolation on, against; {name}\n" + table(["", *COLUMNS], rows)


def _of_speed(cell: Cell) -> Cell:
    """A cell that the CPU is meant to bind counts unless something disturbed it."""
    return replace(cell, valid=cell.disturbed is None)


@contextlib.contextmanager
def _all_running(lab: Lab, peers: list[Peer]) -> Iterator[dict[str, Switch]]:
    with contextlib.ExitStack() as running:
        switches: dict[str, Switch] = {"levada": Levada(lab, _levada())}
        switches |= {peer.name: peer(lab, _pair_of_endpoints(peer.name)) for peer in peers}
        for switch in switches.values():
            running.enter_context(switch.running())
        yield switches


def _pair_of_endpoints(name: str, limit_bps: int | None = None) -> Topology:
    """One host with two endpoints of one tenant, named after `name`."""
    ends = tuple(Endpoint(f"{name}{n}", name, name, limit_bps=limit_bps) for n in range(2))
    return Topology((Tenant(name),), ends, (Host(name, _FAR_ABOVE_BPS),))


def _levada() -> Topology:
    """One switch with a pair of endpoints that have limits, and one that has none."""
    limited = _pair_of_endpoints("levada", limit_bps=_FAR_ABOVE_BPS)
    free = _pair_of_endpoints("free")
    free_ends = tuple(replace(e, host="levada") for e in free.endpoints)
    return Topology(limited.tenants + free.tenants, limited.endpoints + free_ends, limited.hosts)
