"""How fast: one TCP connection, and 64-byte frames, between two endpoints of one switch.

Levada has its isolation on: sources are guarded, and both endpoints have a limit, far above what
is reached, so that every frame is queued, scheduled and accounted in both directions. (Between
neighbours without limits there is nothing to schedule; that row is shown beside it. Between two
packet:// endpoints without limits, which is the default, the kernel takes the frames past the
switch: that is what the section `packet` compares with the bridge.)
Nothing here has a link's rate. What limits is the CPU, for all alike: that is what is measured, and
cells are marked as CPU-bound without being invalid. All switches stay up, idle, throughout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

from bench.flood import SMALL_PAYLOAD_BYTES, Flood
from bench.pairs import COLUMNS, Measure, interleaved, ratio, row
from bench.peers import CopyLoop, PacketCopyLoop, PacketLevada, VethLevada
from lab.cell import Cell, measure
from lab.net import Lab
from lab.report import Report, at_least, at_most
from lab.stats import median, table
from lab.switches import Bridge, Levada, Ovs, Switch, Vde
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import Flow, TcpFlow

#: A limit that nothing here reaches: all it does is to send every frame through the scheduler.
_FAR_ABOVE_BPS = 100_000_000_000
#: Window and number of pairs, in a full run and a quick one.
WINDOW_S = {False: 2.0, True: 0.8}
ROUNDS = {False: 5, True: 1}
#: Pairs with what is shown beside and has no target.
ROUNDS_BESIDE = {False: 2, True: 0}

Peer = type[CopyLoop] | type[PacketCopyLoop] | type[Ovs] | type[Bridge] | type[Vde]

#: How containers are attached.
_KINDS = ("veth", "tap")
#: Levada's endpoints without limits, shown beside.
_UNLIMITED = "no limits"


@dataclass(frozen=True)
class Contest:
    """What is sent, what is compared, and how much of each peer's Levada has to reach. A peer
    without a target is shown beside."""

    section: str
    peers: tuple[Peer, ...]
    targets: dict[str, float]
    flow: Callable[[str, str], Flow]
    #: Peers with which Levada's endpoints without limits are compared.
    unlimited: frozenset[str] = field(default=frozenset(), kw_only=True)
    #: How Levada's endpoints are attached.
    levada: type[Levada] = field(default=Levada, kw_only=True)
    #: Of a flow's payload rate in bit/s, the figure, and its unit.
    figure: Callable[[float], float]
    unit: str


def tcp(lab: Lab, report: Report, quick: bool) -> None:
    """One TCP connection (iperf3, cubic)."""
    contest = Contest(
        "tcp",
        (CopyLoop, Ovs, Bridge, Vde),
        {"copy": 0.95, "ovs": 0.95, "bridge": 0.75, "vde": 25.0},
        lambda src, dst: TcpFlow("flow", src, dst),
        lambda payload_bps: payload_bps / 1e9,
        "Gbit/s",
    )
    _play(lab, report, quick, contest)


def packet(lab: Lab, report: Report, quick: bool) -> None:
    """One TCP connection between two veths that exist, each taken with packet://: as configured by
    default, by a shortcut, next to the bridge; and with limits, through the switch, next to a bare
    loop."""
    contest = Contest(
        "packet",
        (Bridge, PacketCopyLoop),
        {"bridge": 0.75, "copy": 0.8},
        lambda src, dst: TcpFlow("flow", src, dst),
        lambda payload_bps: payload_bps / 1e9,
        "Gbit/s",
        unlimited=frozenset({"bridge"}),
        levada=PacketLevada,
    )
    _play(lab, report, quick, contest)


def pairs(lab: Lab, report: Report, quick: bool) -> None:
    """One TCP connection between two containers: with veth:// next to tap://, on one switch,
    without limits (there the kernel takes the pairs' frames past the switch) and with them. Where
    the scheduler puts the programs makes more of a difference to the rate than the kind does, so
    the processor time for a gigabyte is compared too."""
    rows: list[Cell] = []
    kinds = {_UNLIMITED: None, "limits": _FAR_ABOVE_BPS}
    made = [
        _pair_of_endpoints(f"{k}{n}", bps) for n, bps in enumerate(kinds.values()) for k in _KINDS
    ]
    ends = tuple(replace(e, host="levada") for topology in made for e in topology.endpoints)
    tenants = tuple(tenant for topology in made for tenant in topology.tenants)
    topology = Topology(tenants, ends, (Host("levada", _FAR_ABOVE_BPS),))
    switch = VethLevada(lab, topology)
    with switch.running():

        def measured(ends: str) -> Measure:
            def once() -> tuple[Cell, float]:
                flow = TcpFlow("flow", f"{ends}0", f"{ends}1")
                labels = {"section": "pairs", "switch": "levada", "ends": ends}
                cell = measure(switch, [flow], WINDOW_S[quick], labels)
                cell = replace(cell, valid=cell.disturbed is None)
                return cell, cell.goodput_bps["flow"] / 1e9

            return once

        results = {
            name: interleaved(
                ROUNDS[quick], measured(f"veth{n}"), {"tap": measured(f"tap{n}")}, rows
            )["tap"]
            for n, name in enumerate(kinds)
        }
    report.cells += [cell.as_row() for cell in rows]
    times = {name: _processor_time(rows, n) for n, name in enumerate(kinds)}
    report.claims += [
        at_least("pairs.vs-tap", ratio(results[_UNLIMITED]), "x tap", 1.0),
        at_most("pairs.processor-time", times[_UNLIMITED], "x tap's for a byte", 1.0),
    ]
    lines = [row(f"tap ({name})", result, ".3f") for name, result in results.items()]
    report.tables.append("pairs: veth:// against tap://; Gbit/s\n" + table(["", *COLUMNS], lines))
    lines = [
        [name, *(f"{_median_ns(rows, f'{k}{n}'):.3f}" for k in reversed(_KINDS))]
        for n, name in enumerate(kinds)
    ]
    title = "pairs: processor time of both ends and the switch, all cells; ns a byte"
    report.tables.append(f"{title}\n" + table(["", "tap", "veth"], lines))


def _processor_time(rows: Sequence[Cell], number: int) -> float | None:
    """veth's median processor time for a byte over tap's; None where either has no valid cell."""
    ours, theirs = (
        [ns_per_byte(c) for c in rows if c.valid and c.labels["ends"] == f"{kind}{number}"]
        for kind in _KINDS
    )
    return median(ours) / median(theirs) if ours and theirs else None


def _median_ns(rows: Sequence[Cell], ends: str) -> float:
    return median([ns_per_byte(c) for c in rows if c.labels["ends"] == ends])


def switch_ns_per_byte(cell: Cell) -> float:
    """Processor time of the switch for a byte of TCP's payload."""
    rate = cell.goodput_bps["flow"] / 8
    return 1e9 * sum(cell.cores.values()) / rate if rate else float("inf")


def ns_per_byte(cell: Cell) -> float:
    """The same of the switch and both ends."""
    ends_s: float | None = cell.flows["flow"].detail["cpu_s_per_byte"]
    return switch_ns_per_byte(cell) + (float("inf") if ends_s is None else 1e9 * ends_s)


def small(lab: Lab, report: Report, quick: bool) -> None:
    """64-byte frames, sent as fast as it goes, counted at the receiving device."""
    contest = Contest(
        "small",
        (Ovs, Vde, CopyLoop),
        {"ovs": 1.15, "vde": 2.5},
        lambda src, dst: Flood("flow", src, dst),
        lambda payload_bps: payload_bps / 8 / SMALL_PAYLOAD_BYTES / 1e6,
        "million frames a second",
    )
    _play(lab, report, quick, contest)


def _play(lab: Lab, report: Report, quick: bool, contest: Contest) -> None:
    """Pairs of Levada with each peer; a claim for each peer with a target."""
    section, targets = contest.section, contest.targets
    rows: list[Cell] = []
    with _all_running(lab, contest) as switches:

        def measured(name: str, ends: str) -> Measure:
            def once() -> tuple[Cell, float]:
                flow = contest.flow(f"{ends}0", f"{ends}1")
                labels = {"section": section, "switch": name, "ends": ends}
                cell = measure(switches[name], [flow], WINDOW_S[quick], labels)
                # The CPU is meant to bind it: it counts unless something disturbed it.
                cell = replace(cell, valid=cell.disturbed is None)
                return cell, contest.figure(cell.goodput_bps["flow"])

            return once

        ours, free = measured("levada", "levada"), measured("levada", "free")
        theirs = {peer.name: measured(peer.name, peer.name) for peer in contest.peers}
        judged = {name: theirs.pop(name) for name in targets}
        unlimited = {name: judged.pop(name) for name in contest.unlimited}
        pairs = interleaved(ROUNDS[quick], ours, judged, rows)
        pairs |= interleaved(ROUNDS[quick], free, unlimited, rows)
        beside = theirs | {_UNLIMITED: free}
        if ROUNDS_BESIDE[quick]:
            pairs |= interleaved(ROUNDS_BESIDE[quick], ours, beside, rows)
    report.cells += [cell.as_row() for cell in rows]
    report.claims += [
        at_least(f"{section}.vs-{name}", ratio(pairs[name]), f"x {name}", least)
        for name, least in targets.items()
    ]
    report.parameters[f"{section}_pairs"] = {n: [asdict(p) for p in ps] for n, ps in pairs.items()}
    what = {name: f"{name} ({_UNLIMITED})" for name in contest.unlimited}
    lines = [row(what.get(name, name), ps, ".3f") for name, ps in pairs.items()]
    title = f"{section}: Levada, isolation on, against others; {contest.unit}"
    report.tables.append(f"{title}\n" + table(["", *COLUMNS], lines))


@contextlib.contextmanager
def _all_running(lab: Lab, contest: Contest) -> Iterator[dict[str, Switch]]:
    with contextlib.ExitStack() as running:
        switches: dict[str, Switch] = {"levada": contest.levada(lab, _levada())}
        switches |= {peer.name: peer(lab, _pair_of_endpoints(peer.name)) for peer in contest.peers}
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
