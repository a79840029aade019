"""NetPIPE's curves in a namespace, a container and a virtual machine: the published figure whole.

The part `netpipe` of `lab/run bonding`. Two hosts, each running Levada, have one link between them,
and then two in `balance-rr`, with numbers and, in a full run, plain. One TCP connection at a time
goes from one host to the other: between programs in namespaces with TAPs (*native*), in LXC
containers whose devices are moved in, and in virtual machines behind vhost-user ports. All three
have the same links, in turn; a curve is of one start of the run. Links are as slow as emulated
machines need; stated in the result.

A *dip* is a message size whose rate, the median of the repetitions, is more than 5 % below that of
both sizes beside it. One over two links counts unless one link alone has a dip at that size in the
same place. With one repetition, as in a quick run, dips are shown and not judged.

A full run takes 47 minutes.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from lab import container, guest, netpipe, plot, watched
from lab.guest import Image
from lab.kept import Kept, Key
from lab.net import Lab
from lab.netpipe import Point
from lab.report import Claim, Report, at_most, part_of
from lab.stats import table
from lab.switches.levada_places import CONTAINER, GUEST, KINDS, NATIVE, LevadaPlaces
from lab.watched import Watched

MBIT = 1_000_000
#: What emulated guests carry with time to spare, over both links.
LINK_BPS = 20 * MBIT
#: Repetitions of a quick run and of a full one.
TIMES = {True: 1, False: 5}
#: Curves that say where there are dips.
LEAST_TIMES = 3
#: From here on the link decides alone, and not what its token buckets let through at once (one
#: link has 2 % more than its rate at 256 KiB): there links are compared, in bytes.
LARGE = 1 << 20
#: Messages that are played, of a quick run and of a full one.
SIZES: dict[bool, netpipe.Sizes] = {True: (1 << 10, LARGE), False: (1, 4 * LARGE)}
CARRIED_PERCENT = 98.0
#: The published dip of virtual machines is at 100 kB: from here on a place is compared with native.
FAR_FROM_LATENCY = 64 << 10
#: How far below its neighbours, or below native, a rate is a dip.
DIP = 0.95

#: Links, and `order`.
Setup = tuple[int, str]
ONE, NUMBERED, PLAIN = (1, "auto"), (2, "auto"), (2, "off")
NAMES = {ONE: "1 link", NUMBERED: "2 links, numbered", PLAIN: "2 links, plain"}

Rates = Mapping[int, float]


@dataclass(frozen=True)
class Curve:
    """One run of NetPIPE."""

    kind: str
    setup: Setup
    points: list[Point]


def play(lab: Lab, quick: bool, out: Path, report: Report, kept: Kept) -> None:
    """Plays the curves that are not kept, and adds what was found to a report."""
    container.check()
    image = guest.image(lab, programs=(netpipe.PROGRAM,))
    report.parameters["netpipe"] = {
        "link_bps": LINK_BPS,
        "times": TIMES[quick],
        "sizes": SIZES[quick],
        "guest_kernel": image.version,
        "accelerator": guest.ACCELERATOR,
    }
    parameters = report.parameters["netpipe"]
    mine = watched.part(kept, "netpipe", parameters, lambda row: [Point(*point) for point in row])
    setups = (ONE, NUMBERED) if quick else (ONE, NUMBERED, PLAIN)
    found = [c for setup in setups for c in _curves(lab, setup, image, out, quick, mine)]
    report.cells += [
        {"labels": {"place": c.kind, "links": NAMES[c.setup]}, **one.marks, **asdict(p)}
        for one in found
        for c in (one.found,)
        for p in c.points
    ]
    curves = [one.found for one in found]
    report.tables += [rates_table(curves), summary_table(curves)]
    report.claims += claims(watched.valid(found), quick)
    _draw(curves, out)


def _curves(
    lab: Lab, setup: Setup, image: Image, out: Path, quick: bool, kept: Kept
) -> list[Watched[Curve]]:
    """All curves over these links."""
    links, order = setup
    switch = LevadaPlaces(lab, [LINK_BPS] * links, {"order": order}, image)

    def play(_: None, key: Key) -> list[tuple[Any, ...]]:
        points = _points(switch, key[0], out, SIZES[quick])
        rate = netpipe.plateau(points, LARGE) / MBIT
        print(f"  {key[0]}, {NAMES[setup]}: {rate:.2f} Mbit/s", file=sys.stderr)
        return [astuple(point) for point in points]

    keys = [(kind, *setup, turn) for turn in range(TIMES[quick]) for kind in KINDS]
    points = watched.fill(kept, keys, switch.running, play)
    return [
        Watched(Curve(key[0], setup, some.found), some.disturbed)
        for key, some in zip(keys, points, strict=True)
    ]


def _points(switch: LevadaPlaces, kind: str, out: Path, sizes: netpipe.Sizes) -> list[Point]:
    first, second = (e for e in switch.topology.endpoints if e.tenant == kind)
    address = switch.topology.address(second)
    if kind == GUEST:
        machines = switch.machines
        return netpipe.play_in(machines[first.name], machines[second.name], address, sizes)
    if kind == CONTAINER:
        inside = switch.containers[first.name], switch.containers[second.name]
        return netpipe.play_at(*inside, address, Path("/tmp/netpipe.txt"), sizes)
    spaces = switch.guests[first.name].namespace, switch.guests[second.name].namespace
    return netpipe.play_at(*spaces, address, out / "netpipe-native.txt", sizes)


# --- judging ------------------------------------------------------------------------------


def medians(curves: Sequence[Curve], kind: str, setup: Setup, of: str = "bps") -> dict[int, float]:
    """By message size, the median over the repetitions."""
    found: dict[int, list[float]] = {}
    for curve in curves:
        if (curve.kind, curve.setup) == (kind, setup):
            for point in curve.points:
                found.setdefault(point.nbytes, []).append(getattr(point, of))
    return {size: statistics.median(found[size]) for size in sorted(found)}


def dips(rates: Rates) -> list[int]:
    """Sizes whose rate is below that of both sizes beside it."""
    sizes = sorted(rates)
    beside = zip(sizes, sizes[1:], sizes[2:], strict=False)
    return [b for a, b, c in beside if rates[b] < DIP * min(rates[a], rates[c])]


def own_dips(curves: Sequence[Curve], kind: str) -> list[int]:
    """Dips over two links with numbers that one link has not."""
    of_one = dips(medians(curves, kind, ONE))
    return [size for size in dips(medians(curves, kind, NUMBERED)) if size not in of_one]


def percent_of_links(curves: Sequence[Curve], kind: str, setup: Setup) -> float | None:
    """What one connection has over two links, of twice what it has over one, of large messages."""
    one, all_links = (
        [rate for size, rate in medians(curves, kind, wanted).items() if size >= LARGE]
        for wanted in (ONE, setup)
    )
    if not one or not all_links:
        return None
    return 100 * statistics.median(all_links) / (setup[0] * statistics.median(one))


def below_native(curves: Sequence[Curve], kind: str) -> list[int]:
    """Sizes from `FAR_FROM_LATENCY` on at which two links carry less than between namespaces."""
    native = medians(curves, NATIVE, NUMBERED)
    own = medians(curves, kind, NUMBERED)
    return [
        size for size in own if size >= FAR_FROM_LATENCY and own[size] < DIP * native.get(size, 0.0)
    ]


def claims(curves: Sequence[Curve], quick: bool) -> list[Claim]:
    """What is promised of all three, by the curves that count."""
    times = Counter((c.kind, c.setup) for c in curves)
    found = []
    for kind in KINDS:
        part = percent_of_links(curves, kind, NUMBERED)
        found.append(
            part_of(f"{kind}: NetPIPE over 2 links, of 2 x one", part, "%", CARRIED_PERCENT)
        )
        if not quick:
            are_enough = all(times[kind, setup] >= LEAST_TIMES for setup in (ONE, NUMBERED))
            own = float(len(own_dips(curves, kind))) if are_enough else None
            found.append(at_most(f"{kind}: dips over 2 links that one has not", own, "sizes", 0))
        if kind != NATIVE:
            are_both = times[kind, NUMBERED] and times[NATIVE, NUMBERED]
            below = float(len(below_native(curves, kind))) if are_both else None
            name = f"{kind}: messages of 64 KiB and more, 5 % below native"
            found.append(at_most(name, below, "sizes", 0))
    return found


# --- showing ------------------------------------------------------------------------------


def _shown(curves: Sequence[Curve]) -> list[tuple[str, Setup]]:
    setups = [setup for setup in NAMES if any(c.setup == setup for c in curves)]
    return [(kind, setup) for kind in KINDS for setup in setups]


def rates_table(curves: Sequence[Curve]) -> str:
    """Payload rate by message size."""
    columns = {key: medians(curves, *key) for key in _shown(curves)}
    sizes = sorted({size for rates in columns.values() for size in rates})
    rows = [
        [str(size), *(f"{rates.get(size, 0) / MBIT:.2f}" for rates in columns.values())]
        for size in sizes
    ]
    return table(["bytes", *(f"{kind}, {NAMES[setup]}" for kind, setup in columns)], rows)


def summary_table(curves: Sequence[Curve]) -> str:
    """Large messages, the smallest one's time, and dips."""
    rows = []
    for kind, setup in _shown(curves):
        rates = medians(curves, kind, setup)
        large = [rate for size, rate in rates.items() if size >= LARGE]
        part = percent_of_links(curves, kind, setup) if setup[0] > 1 else None
        seconds = medians(curves, kind, setup, "seconds")
        rows.append(
            [
                kind,
                NAMES[setup],
                f"{statistics.median(large) / MBIT:.2f}" if large else "-",
                f"{part:.1f}" if part else "",
                f"{1e6 * seconds[min(seconds)]:.0f}" if seconds else "-",
                " ".join(map(str, dips(rates))) or "-",
            ]
        )
    head = ["place", "links", "large, Mbit/s", "% of 2 x one", "shortest, us", "dips at"]
    return table(head, rows)


def _draw(curves: Sequence[Curve], out: Path) -> None:
    """The figure's two halves."""
    for name, of, unit, scale in (
        ("throughput", "bps", "Mbit/s", 1 / MBIT),
        ("latency", "seconds", "us one way", 1e6),
    ):
        series = {}
        for kind, setup in _shown(curves):
            found = medians(curves, kind, setup, of)
            values = [value * scale for value in found.values()]
            series[f"{kind}, {NAMES[setup]}"] = (list(found), values)
        plot.lines(out / f"netpipe-{name}", "NetPIPE", "message, bytes", unit, series, log=True)
