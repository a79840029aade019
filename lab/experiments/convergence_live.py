"""How long a blast from 1 and 4 other hosts keeps a victim from its guarantee: live (`lab.blasts`).

An open-loop victim is blasted a number of times for a second: until when it is whole again, and
what of it is lost; and so is one TCP connection: its rate while blasts last, its timeouts. Levada
is a daemon a host, whose agents talk by `rate`, as published (`gatekeeper`), or not at all. Next to
it, with fewer blasts: best effort, rigid limits at the guarantees, and HTB that lends.

Before the blasts are the controls, in which nothing contends: where the victim is not whole in
them, it is the machine that harms it, and nothing is said of agents: controls and blasts are played
again. Nor by a blast in which the machine, a worker or the victim's sender was at its bound.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import blasts, machine, peers, plot
from lab.blasts import FLOOD, NONE, PACED, Blasted
from lab.cell import ATTEMPTS
from lab.net import Lab
from lab.programs import example, program
from lab.report import Claim, Report, at_least, at_most
from lab.stats import Mean, mean, median_interval, table

SUMMARY = "a blast from other hosts, live: time until a victim has its guarantee again"

PEERS = peers.on_hosts()
#: The peer that is to keep the promise.
JUDGED = "rate"
SENDERS = (1, 4)


@dataclass(frozen=True)
class Plan:
    """How often: blasts of an open-loop victim and of a connection, and controls of each kind."""

    blasts: int
    connections: int
    controls: int


#: For who is judged, and for the others.
FULL, BESIDE, QUICK = Plan(20, 5, 3), Plan(6, 3, 1), Plan(5, 3, 3)
#: Least part of the time in which a victim is whole while nothing contends, in percent.
WHOLE_PERCENT = 99.9
#: Most milliseconds until an open-loop victim is back, in the median.
BACK_MS = 20.0
#: Least part of its guarantee that a TCP victim has while blasts last, in percent of what its
#: payload is of the wire.
KEPT_PERCENT = 99.0
_PAYLOAD = 1448 / 1542


@dataclass(frozen=True)
class Cell:
    """What blasts by so many senders did over one peer."""

    peer: str
    senders: int
    played: list[Blasted]
    #: One connection's rate in each blast, in percent of its guarantee, and its timeouts.
    kept: list[float]
    timeouts: int

    def doubt(self) -> str | None:
        """Why nothing is said by it, or None."""
        whole = whole_percent(self.played)
        return None if whole >= WHOLE_PERCENT else f"controls whole to {whole:.2f} % only"


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays all cells and judges those of `rate`."""
    program()
    example("blast")
    report = Report("convergence-live", quick, parameters=_parameters(quick))
    report.machine = machine.describe(["iperf3", "ip", "tc", str(program())])
    cells = []
    for senders in SENDERS:
        for peer in PEERS:
            cells.append(_valid(lab, peer, senders, plan(peer, quick), report))
            if peer == JUDGED:
                report.claims += claims(senders, cells[-1].played, cells[-1].kept)
    report.tables = [_table(cells, senders) for senders in SENDERS]
    _draw(cells, out)
    return report


def _valid(lab: Lab, peer: str, senders: int, often: Plan, report: Report) -> Cell:
    """A cell, again until its controls are whole, at most `ATTEMPTS` times. Blasts decide nothing
    here. All go into the report."""
    for attempt in range(ATTEMPTS):
        cell = _play(lab, peer, senders, often)
        print(f"  {senders} {'  '.join(_row(cell))}", file=sys.stderr)
        doubt = cell.doubt()
        labels = {"peer": peer, "senders": senders, "attempt": attempt}
        state = {"labels": labels, "valid": doubt is None, "bound": doubt, "disturbed": None}
        row = {"blasts": [asdict(b) for b in cell.played], "kept": cell.kept}
        report.cells.append(state | row | {"timeouts": cell.timeouts})
        if doubt is None:
            break
    return cell


def plan(peer: str, quick: bool) -> Plan:
    """How often a peer is blasted."""
    if quick:
        return QUICK
    return FULL if peer == JUDGED else BESIDE


def _play(lab: Lab, peer: str, senders: int, often: Plan) -> Cell:
    kinds = [*[NONE] * often.controls, *[PACED] * often.controls, *[FLOOD] * often.blasts]
    shape = blasts.topology(senders)
    played = blasts.open_loop(PEERS[peer](lab, shape), senders, kinds)
    rates, timeouts = blasts.connection(PEERS[peer](lab, shape), senders, often.connections)
    due_bps = blasts.guarantee_bps("A", senders) * _PAYLOAD
    return Cell(peer, senders, played, [100 * bps / due_bps for bps in rates], timeouts)


def claims(senders: int, played: Sequence[Blasted], kept: Sequence[float]) -> list[Claim]:
    """What is promised of `rate`; nothing holds where the controls were not whole, or no blast
    counts."""
    whole = whole_percent(played)
    counting = counted(played) if whole >= WHOLE_PERCENT else []
    back = back_ms(counting) if counting else None
    name = f"{senders} sender{'s' if senders > 1 else ''}"
    return [
        at_least(f"{name}: victim whole while nothing contends", whole, "%", WHOLE_PERCENT),
        at_most(f"{name}: open-loop victim is back, median", back, "ms", BACK_MS),
        at_least(f"{name}: 1 TCP, of its guarantee", statistics.mean(kept), "%", KEPT_PERCENT),
    ]


def whole_percent(played: Sequence[Blasted]) -> float:
    """Of the controls' time, that in which the victim was whole."""
    return 100 * statistics.mean(b.whole for b in played if b.kind != FLOOD)


def counted(played: Sequence[Blasted]) -> list[Blasted]:
    """The blasts that tell something about agents."""
    return [b for b in played if b.kind == FLOOD and b.bound is None]


def times_ms(played: Sequence[Blasted]) -> list[float]:
    """When the victim was back; infinite where it never was."""
    return [float("inf") if b.restored_s is None else 1000 * b.restored_s for b in played]


def back_ms(played: Sequence[Blasted]) -> float | None:
    """The median; a victim that never was back counts as later than all others. None where that
    is the median."""
    middle = statistics.median_high(times_ms(played))
    return None if middle == float("inf") else middle


# --- showing ------------------------------------------------------------------------------


def _table(cells: Sequence[Cell], senders: int) -> str:
    head = [
        f"{senders} sender{'s' if senders > 1 else ''}",
        "controls whole %",
        "blasts that count",
    ]
    head += ["back ms: median", "95 % interval", "worst", "lost %"]
    head += ["1 TCP, % of its guarantee", "timeouts"]
    return table(head, [_row(cell) for cell in cells if cell.senders == senders])


def _row(cell: Cell) -> list[str]:
    floods, counting = [b for b in cell.played if b.kind == FLOOD], counted(cell.played)
    told = [peers.TITLES[cell.peer], f"{whole_percent(cell.played):.2f}"]
    told.append(f"{len(counting)} of {len(floods)}")
    connection = [f"{mean(cell.kept):.1f}", str(cell.timeouts)]
    if not counting:
        return [*told, *["-"] * 4, *connection]
    times = times_ms(counting)
    ends = median_interval(times)
    interval = "-" if ends is None else " to ".join(_ms(ms) for ms in ends)
    lost = mean([100 * b.lost for b in counting])
    middle = _ms(statistics.median_high(times))
    return [*told, middle, interval, _ms(max(times)), f"{lost:.2f}", *connection]


def _ms(ms: float) -> str:
    return "never" if ms == float("inf") else f"{ms:.0f}"


def _draw(cells: Sequence[Cell], out: Path) -> None:
    groups = [f"{n} sender{'s' if n > 1 else ''}" for n in SENDERS]

    def by_peer(of: Callable[[Cell], Mean | None]) -> dict[str, list[Mean | None]]:
        return {peers.TITLES[p]: [of(cell) for cell in cells if cell.peer == p] for p in PEERS}

    def lost(cell: Cell) -> Mean | None:
        counting = counted(cell.played)
        return mean([100 * b.lost for b in counting]) if counting else None

    title = "What an open-loop victim loses while a blast lasts"
    plot.bars(out / "lost", title, "% of what it sends", groups, by_peer(lost))
    title = "One TCP connection while blasts last"
    plot.bars(out / "tcp", title, "% of its guarantee", groups, by_peer(lambda c: mean(c.kept)))
    for senders, group in zip(SENDERS, groups, strict=True):
        series = {
            peers.TITLES[cell.peer]: _arrivals(counted(cell.played))
            for cell in cells
            if cell.senders == senders and counted(cell.played)
        }
        title = f"An open-loop victim's arrivals, a blast by {group} (mean of the blasts)"
        unit = "% of what it sent"
        plot.lines(out / f"arrivals-{senders}", title, "ms since the blast began", unit, series)


def _arrivals(counting: Sequence[Blasted]) -> tuple[list[float], list[float]]:
    """Milliseconds, and the percentage that arrived of what was sent in that row."""
    rows = min(len(b.arrived) for b in counting)
    times = [float((at - blasts.LEAD_ROWS) * blasts.ROW_MS) for at in range(rows)]
    return times, [100 * statistics.mean(b.arrived[at] for b in counting) for at in range(rows)]


def _parameters(quick: bool) -> dict[str, object]:
    return {
        "links_bps": blasts.LINKS_BPS,
        "promised": blasts.PROMISED,
        "fabric_queue_bytes": {n: blasts.queue_bytes(n) for n in SENDERS},
        "victim_segments": {n: blasts.segments(n) for n in SENDERS},
        "plans": {peer: asdict(plan(peer, quick)) for peer in PEERS},
        "blast_s": blasts.BLAST_S,
        "row_ms": blasts.ROW_MS,
        "span_rows": {n: blasts.span_rows(n) for n in SENDERS},
        "floods_over_link": blasts.FLOODS,
    }
