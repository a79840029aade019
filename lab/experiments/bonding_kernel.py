"""One TCP connection between two virtual machines over two links: Levada's bond beside Linux's.

The part `kernel` of `lab/run bonding`. NetPIPE between two QEMU guests, over one link and over two
of the same rate. With Linux's bonding driver in `balance-rr` each link is a card of the guests, and
no switch of ours takes part. With Levada at each host the guests have one card, a vhost-user port,
and the bond is the switch's, with numbers. Each of the two is compared with its own single link, in
rounds as in `lab.experiments.bonding_peers`.

The driver gives each frame to the next card, whatever comes of the order; the kernels count what
arrives out of order, and what was sent again.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from lab import guest, netpipe, watched
from lab.experiments.bonding_links import orders
from lab.experiments.bonding_peers import Found, Way, name_of, percent
from lab.guest import Image, Machine
from lab.kept import Kept
from lab.net import Lab, parse_counters
from lab.report import Claim, Report, at_most, part_of
from lab.stats import table
from lab.switches import guest_bond
from lab.switches.levada_places import GUEST, LevadaPlaces, topology

MBIT = 1_000_000
#: What emulated guests carry with time to spare, over both links.
LINK_BPS = 20 * MBIT
LINKS = 2
LARGEST, LARGE = 4 << 20, 1 << 20
#: Messages of a quick run and of a full one.
SIZES: dict[bool, netpipe.Sizes] = {True: (1 << 10, LARGE), False: (1, LARGEST)}
#: Rounds of a quick run, and of a full one.
ROUNDS = {True: 1, False: 3}
CARRIED_PERCENT = 98.0
#: Retransmissions, of the driver's: most of those are of nothing that was lost.
AGAIN_PERCENT = 20.0
#: More than one link has.
BOTH_PERCENT = 60.0

DRIVER_ALONE: Way = ("one card", 1)
DRIVER: Way = ("Linux's bonding driver in guests", LINKS)
ALONE: Way = ("Levada", 1)
BOND: Way = ("Levada", LINKS)
WAYS = (DRIVER_ALONE, DRIVER, ALONE, BOND)


@dataclass(frozen=True)
class Disorder:
    """Of the segments that arrived at the guests: those out of order, and those sent again. Where
    segments are lost, all that follow are out of order until they come again. Frames that Levada
    had not in order: for these it waited too short."""

    way: Way
    segments: int
    out_of_order: int
    again: int
    late: int

    @classmethod
    def of(cls, row: dict[str, Any]) -> Disorder:
        """Of what `asdict` has made of one, after JSON."""
        return cls(**{**row, "way": tuple(row["way"])})


def play(lab: Lab, quick: bool, report: Report, kept: Kept) -> None:
    """Plays the rounds that are not kept, and adds what was found to a report."""
    image = guest.image(lab, more=guest_bond.MODULES, programs=(netpipe.PROGRAM,))
    report.parameters["kernel"] = {
        "link_bps": LINK_BPS,
        "rounds": ROUNDS[quick],
        "sizes": SIZES[quick],
        "guest_kernel": image.version,
        "accelerator": guest.ACCELERATOR,
    }
    rounds = watched.fill(
        watched.part(kept, "kernel", report.parameters["kernel"], _read),
        [(turn,) for turn in range(ROUNDS[quick])],
        nullcontext,
        lambda _, key: [_seen(lab, way, key[0], image, SIZES[quick]) for way in WAYS],
    )
    found, disorder = _all([one.found for one in rounds])
    report.cells += [
        {
            "labels": {"by": name_of(f.way), "round": f.round},
            **one.marks,
            "bps": f.bps,
            "shortest_s": f.shortest_s,
            "segments": d.segments,
            "out_of_order": d.out_of_order,
            "again": d.again,
            "late": d.late,
        }
        for one in rounds
        for f, d in one.found
    ]
    report.tables.append(_table(found, disorder))
    report.claims += claims(*_all(watched.valid(rounds)))


def _all(
    rounds: Sequence[list[tuple[Found, Disorder]]],
) -> tuple[list[Found], list[Disorder]]:
    """What was found in some rounds."""
    found = [one for some in rounds for one, _ in some]
    return found, [one for some in rounds for _, one in some]


def _read(rows: list[dict[str, Any]]) -> list[tuple[Found, Disorder]]:
    """A round, of what JSON has of it."""
    return [(Found.of(row["found"]), Disorder.of(row["disorder"])) for row in rows]


def _seen(
    lab: Lab, way: Way, turn: int, image: Image, sizes: netpipe.Sizes
) -> dict[str, dict[str, Any]]:
    """A curve in one way, and the disorder meanwhile."""
    with _machines(lab, way, image) as (((first, _), (second, address)), late):
        before = _counters(first), _counters(second)
        points = netpipe.play_in(first, second, address, sizes)
        after = _counters(first), _counters(second)
        disorder = _disorder(way, before, after, late())
    found = Found(way, turn, netpipe.plateau(points, LARGE), points[0].seconds)
    print(f"  {name_of(way)}: {found.bps / MBIT:.2f} Mbit/s", file=sys.stderr)
    return {"found": asdict(found), "disorder": asdict(disorder)}


#: The two guests and their addresses, and what counts the frames that came late.
Guests = tuple[Sequence[tuple[Machine, str]], Callable[[], int]]


@contextmanager
def _machines(lab: Lab, way: Way, image: Image) -> Iterator[Guests]:
    rates = [LINK_BPS] * way[1]
    if way in (DRIVER, DRIVER_ALONE):
        with guest_bond.machines(lab, topology(LINK_BPS, (GUEST,)), rates, image) as found:
            yield found, lambda: 0
        return
    switch = LevadaPlaces(lab, rates, {"order": "auto"}, image, (GUEST,))
    with switch.running():
        ends = switch.topology.endpoints
        found = [(switch.machines[e.name], switch.topology.address(e)) for e in ends]
        yield found, lambda: sum(order.get("late", 0) for order in orders(switch))


Counters = dict[str, int]


def _counters(machine: Machine) -> Counters:
    return parse_counters(machine.run("cat /proc/net/snmp /proc/net/netstat"))


def _disorder(
    way: Way, before: tuple[Counters, Counters], after: tuple[Counters, Counters], late: int
) -> Disorder:
    """Of both directions: NetPIPE's messages go to and fro."""

    def more(name: str) -> int:
        return sum(b[name] - a[name] for a, b in zip(before, after, strict=True))

    names = ("TcpInSegs", "TcpExtTCPOFOQueue", "TcpRetransSegs")
    segments, out_of_order, again = map(more, names)
    return Disorder(way, segments, out_of_order, again, late)


def claims(found: Sequence[Found], disorder: Sequence[Disorder]) -> list[Claim]:
    """Of the bond: all of both links, and what disorder costs. The driver is shown beside it, and
    that it used both links is claimed: else it would be no peer."""
    ours, theirs = percent(found, BOND, ALONE), percent(found, DRIVER, DRIVER_ALONE)
    again = {way: sum(d.again for d in disorder if d.way == way) for way in (BOND, DRIVER)}
    part = 100 * again[BOND] / again[DRIVER] if again[DRIVER] else None
    return [
        part_of(f"{name_of(BOND)}, of {LINKS} x one", ours, "%", CARRIED_PERCENT),
        part_of(f"{name_of(DRIVER)}, of {LINKS} x one card", theirs, "%", BOTH_PERCENT),
        at_most("sent again with Levada, of what is with the driver", part, "%", AGAIN_PERCENT),
    ]


def _parts(disorder: Sequence[Disorder], way: Way) -> float:
    """Percent of a way's segments that arrived out of order."""
    mine = [d for d in disorder if d.way == way]
    return 100 * sum(d.out_of_order for d in mine) / max(1, sum(d.segments for d in mine))


def _table(found: Sequence[Found], disorder: Sequence[Disorder]) -> str:
    rows = []
    for way in WAYS:
        mine = [f for f in found if f.way == way]
        of = {DRIVER: DRIVER_ALONE, BOND: ALONE}.get(way)
        part = percent(found, way, of) if of else None
        again = sum(d.again for d in disorder if d.way == way)
        late = sum(d.late for d in disorder if d.way == way)
        rows.append(
            [
                name_of(way),
                f"{statistics.median(f.bps for f in mine) / MBIT:.2f}",
                f"{part:.1f} %" if part else "",
                f"{_parts(disorder, way):.2f} %",
                str(again),
                str(late),
            ]
        )
    head = ["Mbit/s", "of 2 x one", "out of order", "sent again", "late"]
    return table([f"{LINK_BPS // MBIT} Mbit/s a link, guests", *head], rows)
