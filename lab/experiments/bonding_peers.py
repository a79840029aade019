"""One TCP connection over two links: Levada's bond beside Multipath TCP.

The part `peers` of `lab/run bonding`. NetPIPE between two hosts, over one link and over two of the
same rate. Without a switch: TCP over one link, which is the control, and Multipath TCP (RFC 8684)
over two, as the kernel has it. With Levada at each host: one link, and two in `balance-rr` with
numbers. In rounds: each plays all four, and what is claimed is the median over the rounds of ratios
within one.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import netpipe, watched
from lab.kept import Kept
from lab.net import Lab
from lab.report import Claim, Report, part_of
from lab.stats import table
from lab.switches.levada_bond import LevadaBond
from lab.switches.multipath import MPTCPIZE, hosts
from lab.topology import Endpoint, Host, Tenant, Topology

MBIT = 1_000_000
#: A tenth of the published links.
LINK_BPS = 100 * MBIT
LINKS = 2
#: The largest message, and from where on messages are large.
LARGEST, LARGE = 4 << 20, 1 << 20
SIZES: netpipe.Sizes = (1, LARGEST)
#: Rounds of a quick run, and of a full one.
ROUNDS = {True: 1, False: 3}
#: What the published comparison found of Multipath TCP: 1755 of 2 x 1000 Mbit/s.
PUBLISHED_PERCENT = 87.75
CARRIED_PERCENT = 98.0
#: More than one link has.
BOTH_PERCENT = 60.0

#: What carries the connection, and over how many links.
Way = tuple[str, int]
PLAIN: Way = ("no switch, TCP", 1)
MULTIPATH: Way = ("no switch, Multipath TCP", LINKS)
ALONE: Way = ("Levada", 1)
BOND: Way = ("Levada", LINKS)
WAYS = (PLAIN, MULTIPATH, ALONE, BOND)


@dataclass(frozen=True)
class Found:
    """The rate of large messages in one round, and the time of the shortest."""

    way: Way
    round: int
    bps: float
    shortest_s: float

    @classmethod
    def of(cls, row: dict[str, Any]) -> Found:
        """Of what `asdict` has made of one, after JSON."""
        return cls(**{**row, "way": tuple(row["way"])})


def play(lab: Lab, quick: bool, out: Path, report: Report, kept: Kept) -> None:
    """Plays the rounds that are not kept, and adds what was found to a report."""
    report.parameters["peers"] = {
        "link_bps": LINK_BPS,
        "rounds": ROUNDS[quick],
        "sizes": SIZES,
        "published_percent": PUBLISHED_PERCENT,
    }
    parameters = report.parameters["peers"]
    rounds = watched.fill(
        watched.part(kept, "peers", parameters, lambda rows: [Found.of(row) for row in rows]),
        [(turn,) for turn in range(ROUNDS[quick])],
        nullcontext,
        lambda _, key: [asdict(_found(lab, way, key[0], out)) for way in WAYS],
    )
    found = [one for some in rounds for one in some.found]
    report.cells += [
        {
            "labels": {"by": name_of(f.way), "round": f.round},
            **some.marks,
            "bps": f.bps,
            "shortest_s": f.shortest_s,
        }
        for some in rounds
        for f in some.found
    ]
    report.tables.append(_table(found))
    report.claims += claims([one for some in watched.valid(rounds) for one in some])


def name_of(way: Way) -> str:
    """In words."""
    return f"{way[0]}, {way[1]} link{'s' if way[1] > 1 else ''}"


def _found(lab: Lab, way: Way, turn: int, out: Path) -> Found:
    points = _points(lab, way, out / f"netpipe-peers-{WAYS.index(way)}-{turn}.txt")
    found = Found(way, turn, netpipe.plateau(points, LARGE), points[0].seconds)
    print(f"  {name_of(way)}: {found.bps / MBIT:.1f} Mbit/s", file=sys.stderr)
    return found


def _points(lab: Lab, way: Way, file: Path) -> list[netpipe.Point]:
    ends = (Endpoint("a0", "a", "h0"), Endpoint("a1", "a", "h1"))
    topology = Topology((Tenant("a"),), ends, (Host("h0", LINK_BPS), Host("h1", LINK_BPS)))
    rates = [LINK_BPS] * way[1]
    if way in (ALONE, BOND):
        switch = LevadaBond(lab, topology, rates, options={"order": "auto"})
        with switch.running():
            src, dst = switch.guests["a0"], switch.guests["a1"]
            return netpipe.play_at(src.namespace, dst.namespace, dst.address, file, SIZES)
    with hosts(lab, topology, rates) as guests:
        src, dst = guests["h0"], guests["h1"]
        by = MPTCPIZE if way == MULTIPATH else ()
        return netpipe.play_at(src.namespace, dst.namespace, dst.address, file, SIZES, by)


def percent(found: Sequence[Found], way: Way, of: Way) -> float | None:
    """What two links carry, of two times one, in the median of the rounds."""
    one = {f.round: f.bps for f in found if f.way == of}
    parts = [
        100 * f.bps / (f.way[1] * one[f.round]) for f in found if f.way == way and one.get(f.round)
    ]
    return statistics.median(parts) if parts else None


def claims(found: Sequence[Found]) -> list[Claim]:
    """Of the bond. Multipath TCP is shown beside it, and that it used both links is claimed: else
    it would be no peer."""
    ours, theirs = percent(found, BOND, ALONE), percent(found, MULTIPATH, PLAIN)
    return [
        part_of(f"{name_of(BOND)}, of {LINKS} x one", ours, "%", CARRIED_PERCENT),
        part_of(f"{name_of(MULTIPATH)}, of {LINKS} x one", theirs, "%", BOTH_PERCENT),
    ]


def _table(found: Sequence[Found]) -> str:
    rows = []
    for way in WAYS:
        mine = [f for f in found if f.way == way]
        of = {MULTIPATH: PLAIN, BOND: ALONE}.get(way)
        part = percent(found, way, of) if of else None
        rows.append(
            [
                name_of(way),
                f"{statistics.median(f.bps for f in mine) / MBIT:.1f}",
                f"{part:.1f} %" if part else "",
                f"{1e6 * statistics.median(f.shortest_s for f in mine):.0f}",
            ]
        )
    rows.append(["published, Multipath TCP, 2 x 1 Gbit/s", "", f"{PUBLISHED_PERCENT} %", ""])
    return table([f"{LINK_BPS // MBIT} Mbit/s a link", "Mbit/s", "of 2 x one", "1 byte, us"], rows)
