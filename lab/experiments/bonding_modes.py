"""NetPIPE over two links in each mode of a bond, next to one link.

The part `modes` of `lab/run bonding`. One TCP connection uses one link in `active-backup`,
`balance-xor` and `802.3ad`, and all for each frame in `broadcast`: so it is to have what one link
carries, and `balance-rr`, which is played beside them, what two carry.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lab import netpipe, plot, watched
from lab.experiments.bonding_links import FAST_BPS, topology
from lab.kept import Kept, Key
from lab.net import Lab
from lab.netpipe import Point
from lab.report import Claim, Report, middle, part_of
from lab.stats import table
from lab.switches.levada_bond import LevadaBond
from lab.watched import Watched

MBIT = 1_000_000
ONE = "1 link"
#: By mode, how many links' worth one connection has.
MODES = {"active-backup": 1, "balance-xor": 1, "802.3ad": 1, "broadcast": 1, "balance-rr": 2}
#: Rounds of a quick run, and of a full one.
ROUNDS = (1, 2)
#: Messages from here on are what the link decides alone.
LARGE = 1 << 20
SIZES = (1, 2 * LARGE)
CARRIED_PERCENT = 98.0


@dataclass(frozen=True)
class Curve:
    """One run of NetPIPE: over one link, or two in a mode."""

    way: str
    points: list[Point]

    @property
    def large_bps(self) -> float:
        """What large messages have."""
        return statistics.median(p.bps for p in self.points if p.nbytes >= LARGE)


def play(lab: Lab, quick: bool, out: Path, report: Report, kept: Kept) -> None:
    """Plays the curves that are not kept, and adds what was found to a report."""
    rounds = ROUNDS[0 if quick else 1]
    report.parameters["modes"] = {"link_bps": FAST_BPS, "rounds": rounds, "sizes": SIZES}
    parameters = report.parameters["modes"]
    mine = watched.part(kept, "modes", parameters, lambda row: [Point(*point) for point in row])
    found: list[Watched[Curve]] = []
    for way in (ONE, *MODES):
        links, mode = (1, "balance-rr") if way == ONE else (2, way)
        switch = LevadaBond(lab, topology(), [FAST_BPS] * links, mode)
        keys: list[Key] = [(way, turn) for turn in range(rounds)]
        points = watched.fill(mine, keys, switch.running, partial(_points, switch, out))
        found += [Watched(Curve(way, some.found), some.disturbed) for some in points]
    report.cells += [
        {"labels": {"way": one.found.way}, **one.marks, **asdict(p)}
        for one in found
        for p in one.found.points
    ]
    report.tables.append(modes_table([one.found for one in found]))
    report.claims += claims(watched.valid(found), rounds)
    _draw([one.found for one in found], out)


def _points(switch: LevadaBond, out: Path, _: None, key: Key) -> list[tuple[Any, ...]]:
    src, dst = switch.guests["a0"], switch.guests["a1"]
    file = out / "netpipe-modes.txt"
    points = netpipe.play_at(src.namespace, dst.namespace, dst.address, file, SIZES)
    rate = Curve(key[0], points).large_bps / MBIT
    print(f"  {key[0]}: large messages {rate:.1f} Mbit/s", file=sys.stderr)
    return [astuple(point) for point in points]


# --- judging ------------------------------------------------------------------------------


def large_bps(curves: Sequence[Curve], way: str, rounds: int) -> float | None:
    """The median over the rounds, of which enough must count."""
    return middle([curve.large_bps for curve in curves if curve.way == way], rounds)


def claims(curves: Sequence[Curve], rounds: int) -> list[Claim]:
    """One connection has what its links carry, in each mode."""
    one = large_bps(curves, ONE, rounds)
    found = []
    for mode, links in MODES.items():
        own = large_bps(curves, mode, rounds)
        part = 100 * own / (links * one) if own is not None and one else None
        name = f"{mode}: NetPIPE over 2 links, of {links} x one"
        found.append(part_of(name, part, "%", CARRIED_PERCENT))
    return found


def modes_table(curves: Sequence[Curve]) -> str:
    """Large messages, and the time of the smallest."""
    rows = []
    for way in (ONE, *MODES):
        these = [curve for curve in curves if curve.way == way]
        if these:
            large = statistics.median(curve.large_bps for curve in these) / MBIT
            shortest = statistics.median(curve.points[0].seconds for curve in these)
            rows.append([way, f"{large:.1f}", f"{1e6 * shortest:.0f}"])
    return table(["way", "large, Mbit/s", "shortest, us"], rows)


def _draw(curves: Sequence[Curve], out: Path) -> None:
    """The first curve of each way."""
    series = {
        curve.way: ([p.nbytes for p in curve.points], [p.bps / MBIT for p in curve.points])
        for curve in reversed(curves)
    }
    plot.lines(out / "modes", "NetPIPE", "message, bytes", "Mbit/s", series, log=True)
