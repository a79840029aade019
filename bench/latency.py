"""A victim's ping beside aggressors of another tenant, over a link that is not CPU-bound.

Two hosts, one 1 Gbit/s link between them with a queue of a shallow switch's port. The victim
pings over it every 2 ms: quiet, then beside four TCP connections of the aggressor, then beside
its flood of 64-byte frames. The peer is Open vSwitch over the same link (bench.peers.LinkedOvs).
Both run all the time, and what is compared is measured in turn. Stalls of the machine are not
the switch's, so the 99th percentile is judged and not the maximum.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.flood import Flood
from bench.peers import LinkedOvs, NearLevada
from lab.cell import ATTEMPTS, LEAD_S, TAIL_S, Cell, measure
from lab.net import Lab
from lab.report import Report, at_most
from lab.stats import median, table
from lab.switches import Switch
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import Flow, Ping, TcpFlow, percentiles

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
    """Round trips of one cell in us, pings that were lost in all of it, whether it counts."""

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
        at_most("ping.p99-tcp-vs-quiet", _ratio(loaded, quiet), "x quiet", MOST_TIMES_QUIET),
        at_most("ping.p99-tcp-vs-ovs", _ratio(loaded, trips["ovs", "tcp"]), "x ovs", 1),
    ]
    report.tables.append(_table(trips))


def _cell(report: Report, quick: bool, switch: Switch, name: str, load: str) -> Trips:
    """Measures until the cell is valid, a bounded number of times. A flood may bind the CPU."""
    window_s = WINDOW_S[quick]
    labels = {"section": "ping", "switch": name, "load": load}
    for _ in range(ATTEMPTS):
        cell = measure(switch, _flows(name[0], load), window_s, labels)
        if load == "flood":
            cell = replace(cell, valid=cell.disturbed is None)
        report.cells.append(cell.as_row())
        if cell.valid:
            break
    p50, p99 = percentiles(in_window(cell, window_s), (50, 99))
    return Trips(p50, p99, cell.flows["ping"].detail["lost"], cell.valid)


def _flows(prefix: str, load: str) -> list[Flow]:
    victim: Flow = Ping("ping", f"{prefix}v0", f"{prefix}v1", PING_INTERVAL_S)
    aggressors: dict[str, Flow] = {
        "tcp": TcpFlow("tcp", f"{prefix}a0", f"{prefix}a1", STREAMS),
        "flood": Flood("flood", f"{prefix}a0", f"{prefix}a1"),
    }
    return [victim, aggressors[load]] if load in aggressors else [victim]


def in_window(cell: Cell, window_s: float) -> list[float]:
    """Round trips in us of pings sent in the window. Pings keep their interval, so the order of the
    answers tells when they were sent."""
    rtt_ms: Sequence[float] = cell.flows["ping"].detail["rtt_ms"]
    whole_s = LEAD_S + window_s + TAIL_S
    first = int(len(rtt_ms) * LEAD_S / whole_s)
    last = int(len(rtt_ms) * (LEAD_S + window_s) / whole_s)
    return [1000 * ms for ms in rtt_ms[first:last]]


def _ratio(these: Sequence[Trips], those: Sequence[Trips]) -> float | None:
    """Median over the rounds of how many times the one's p99 the other's is."""
    both = [a.p99_us / b.p99_us for a, b in zip(these, those, strict=True) if a.valid and b.valid]
    return median(both) if both else None


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
