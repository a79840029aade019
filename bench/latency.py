"""A victim's ping beside aggressors of another tenant, over a link that is not CPU-bound.

Two hosts, one 1 Gbit/s link between them with a queue of a shallow switch's port. The victim
pings over it every 2 ms: quiet, then beside four TCP connections of the aggressor, then beside
its flood of 64-byte frames. The peer is Open vSwitch over the same link (bench.peers.LinkedOvs).
Both run all the time, and what is compared is measured in turn. Stalls of the machine are not
the switch's, so the 99th percentile is judged and not the maximum. A ping that was lost is the
longest: its round trip is endless. Where the quiet link loses so many, it is no measure.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.flood import Flood
from bench.peers import LinkedOvs, NearLevada
from lab.cell import ATTEMPTS, measure
from lab.net import Lab
from lab.report import Report, at_most, middle
from lab.stats import median, table
from lab.switches import Switch
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.windows import p99
from lab.workload import Flow, Ping, TcpFlow, trips_between

LINK_BPS = 1_000_000_000
STREAMS = 4
#: 2 ms apart: 1400 or 400 round trips a cell.
PING_INTERVAL_S = 0.002
WINDOW_S = {False: 2.8, True: 0.8}
ROUNDS = {False: 5, True: 1}
#: In so many of them floods are played too, which are reported and not judged.
FLOOD_ROUNDS = 2
#: Loaded p99 over quiet p99.
MOST_TIMES_QUIET = 3.0


@dataclass(frozen=True)
class Trips:
    """Round trips of pings sent in the window of one cell, in us, those that were lost, and whether
    it counts."""

    p50_us: float
    p99_us: float
    lost: int
    valid: bool


def latency(lab: Lab, report: Report, quick: bool) -> None:
    """Victim's round trips."""
    switches: dict[str, Switch] = {
        "levada": NearLevada(lab, _topology("l")),
        "ovs": LinkedOvs(lab, _topology("o")),
    }
    trips: dict[tuple[str, str], list[Trips]] = {
        (name, load): [] for load in ("quiet", "tcp", "flood") for name in switches
    }
    with contextlib.ExitStack() as running:
        for switch in switches.values():
            running.enter_context(switch.running())
        for turn in range(ROUNDS[quick]):
            for name, load in trips:
                if load == "flood" and turn >= FLOOD_ROUNDS:
                    continue
                trips[name, load].append(_cell(report, quick, switches[name], name, load))
    loaded, quiet = trips["levada", "tcp"], trips["levada", "quiet"]
    report.claims += [
        at_most("ping.p99-tcp-vs-quiet", ratio(loaded, quiet), "x quiet", MOST_TIMES_QUIET),
        at_most("ping.p99-tcp-vs-ovs", ratio(loaded, trips["ovs", "tcp"]), "x ovs", 1),
    ]
    report.tables.append(_table(trips))


def _cell(report: Report, quick: bool, switch: Switch, name: str, load: str) -> Trips:
    """Measures until the cell is valid, a bounded number of times. A flood may bind the CPU."""
    window_s = WINDOW_S[quick]
    labels = {"section": "ping", "switch": name, "load": load}
    for _ in range(ATTEMPTS):
        ping = Ping("ping", f"{name[0]}v0", f"{name[0]}v1", PING_INTERVAL_S)
        cell = measure(switch, [ping, *_aggressor(name[0], load)], window_s, labels)
        if load == "flood":
            cell = replace(cell, valid=cell.disturbed is None)
        trips = trips_of(trips_between(ping.text(), *cell.wall_s), cell.valid, load == "quiet")
        if cell.valid and not trips.valid:
            cell = replace(cell, valid=False, disturbed=f"{trips.lost} pings of a quiet link lost")
        report.cells.append(cell.as_row())
        if trips.valid:
            break
    return trips


def _aggressor(prefix: str, load: str) -> list[Flow]:
    aggressors: dict[str, Flow] = {
        "tcp": TcpFlow("tcp", f"{prefix}a0", f"{prefix}a1", STREAMS),
        "flood": Flood("flood", f"{prefix}a0", f"{prefix}a1"),
    }
    return [aggressors[load]] if load in aggressors else []


def trips_of(rtt_ms: Sequence[float], is_valid: bool, is_quiet: bool) -> Trips:
    """Of the round trips in ms of pings sent in a window, endless ones too."""
    p50 = median(rtt_ms) if rtt_ms else math.nan
    found = Trips(1000 * p50, 1000 * p99(rtt_ms), sum(math.isinf(ms) for ms in rtt_ms), is_valid)
    is_measure = math.isfinite(found.p99_us) if is_quiet else not math.isnan(found.p99_us)
    return replace(found, valid=is_valid and is_measure)


def ratio(these: Sequence[Trips], those: Sequence[Trips]) -> float | None:
    """Median over the rounds of how many times the one's p99 the other's is. Where both are endless
    neither is the longer one, and the round says nothing."""
    both = [
        a.p99_us / b.p99_us
        for a, b in zip(these, those, strict=True)
        if a.valid and b.valid and not (math.isinf(a.p99_us) and math.isinf(b.p99_us))
    ]
    return middle(both, len(these))


def _topology(prefix: str) -> Topology:
    """A victim and an aggressor with an endpoint each on both hosts."""
    tenants = [f"{prefix}v", f"{prefix}a"]
    return Topology(
        tuple(Tenant(t) for t in tenants),
        tuple(Endpoint(f"{t}{n}", t, f"h{n}") for t in tenants for n in range(2)),
        tuple(Host(f"h{n}", LINK_BPS) for n in range(2)),
    )


def _table(trips: dict[tuple[str, str], list[Trips]]) -> str:
    rows = []
    for (name, load), cells in trips.items():
        p99 = sorted(c.p99_us for c in cells)
        left_out = sum(not c.valid for c in cells)
        rows.append(
            [
                f"{name}, {load}",
                f"{median([c.p50_us for c in cells]):.0f}",
                f"{median(p99):.0f}",
                f"{p99[0]:.0f} .. {p99[-1]:.0f}",
                f"{sum(c.lost for c in cells)}",
                f"{len(cells)}" + (f", {left_out} not valid" if left_out else ""),
            ]
        )
    title = "ping of the victim over a 1 Gbit/s link; us, medians of the cells"
    return f"{title}\n" + table(["", "p50", "p99", "range of p99", "lost", "cells"], rows)
