"""One cell of an experiment: one switch, some flows, one measured window.

All flows begin, the first second (slow start) is left out, then the window is measured while all
of them run: payload rates at the receivers, the switch's own counters at both ends of the window,
and CPU use in between. A cell whose switch or machine had no time to spare says so in
`bound`; where the link was to be the bottleneck, such a cell is not valid and no result. Nor is
one that was `disturbed`: by programs that are not the lab's, or by a pause of the whole (virtual)
machine. An invalid cell is played again, a bounded number of times; its row is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lab.machine import CpuUse, cpu_use, sample_cpu
from lab.net import Received
from lab.stats import bucket_counts
from lab.switches import Switch
from lab.switches.levada import BURST_NS
from lab.workload import FIRST_PORT, Flow, FlowResult

#: What is left out at the start of all flows.
LEAD_S = 1.0
#: How often a cell is played until it is valid.
ATTEMPTS = 3
#: Flows go on for this much after the window, so that none ends inside it.
TAIL_S = 1.0


@dataclass(frozen=True)
class Directions:
    """Bytes of a tenant at one host's uplink in the window, counted as on the wire."""

    egress_bytes: int
    ingress_bytes: int


@dataclass(frozen=True)
class Worker:
    """The switch's worker over the window. Lags are since its start."""

    #: Parts of the window: doing work, and on a core (which polling is too).
    busy: float
    cpu: float
    loop_lag_ns: dict[str, int]
    #: The part of the window by which it was later than `BURST_NS`: of that a link with that burst
    #: idled for want of a processor. (On links so slow that four frames take longer less is lost.)
    #: Up to an eighth too high, as lags are counted in buckets.
    late: float = 0.0


@dataclass(frozen=True)
class Cell:
    """What was measured. `labels` say which cell it is (peer, table, repetition...)."""

    labels: dict[str, Any]
    window_s: float
    goodput_bps: dict[str, float]
    flows: dict[str, FlowResult]
    #: host -> tenant -> wire bytes; empty for switches that do not tell.
    wire: dict[str, dict[str, Directions]]
    idle: float
    cores: dict[str, float]
    strangers: float
    worker: Worker | None
    #: Why the CPU was the bottleneck, or None.
    bound: str | None
    #: Why nothing about it can be compared, or None.
    disturbed: str | None
    #: Whether it counts: undisturbed, and not bound (or by a switch without a link's rate).
    valid: bool
    #: What each guest's device received in the window.
    received: dict[str, Received] = field(default_factory=dict)
    #: When the window began and ended on the wall clock, which ping tells.
    wall_s: tuple[float, float] = (0.0, 0.0)

    def as_row(self) -> dict[str, Any]:
        """The raw row of result.json."""
        return asdict(self)


def play(
    make: Callable[[], Switch],
    flows: Callable[[], Sequence[Flow]],
    window_s: float,
    labels: dict[str, Any],
) -> Iterator[Cell]:
    """Builds a switch, measures, takes it down: until the cell is valid, at most `ATTEMPTS`
    times. All that was measured, the last one valid or given up."""
    for attempt in range(ATTEMPTS):
        switch = make()
        with switch.running():
            cell = measure(switch, flows(), window_s, {**labels, "attempt": attempt})
        yield cell
        if cell.valid:
            return


def measure(
    switch: Switch,
    flows: Sequence[Flow],
    window_s: float,
    labels: dict[str, Any],
    lead_s: float = LEAD_S,
    tail_s: float = TAIL_S,
    late_limit: float = math.inf,
) -> Cell:
    """Plays `flows` over a running switch and measures for `window_s`. A worker that was late for
    more than `late_limit` of it, by more than `BURST_NS`, binds the cell."""
    # The first to start still outlives the window.
    seconds = math.ceil(lead_s + window_s + tail_s + sum(flow.start_s for flow in flows))
    begun = []
    for port, flow in enumerate(flows, start=FIRST_PORT):
        begun.append(time.monotonic())
        flow.begin(switch.guests[flow.src], switch.guests[flow.dst], port, seconds)
    time.sleep(lead_s)
    shown_first, cpu_first = switch.sample(), sample_cpu(switch.processes)
    received_first = _received(switch)
    start, wall_start = time.monotonic(), time.time()
    time.sleep(window_s)
    end, wall_end = time.monotonic(), time.time()
    received_last = _received(switch)
    shown_last, cpu_last = switch.sample(), sample_cpu(switch.processes)
    overdue_s = end - begun[0] - seconds
    results = {flow.name: flow.end() for flow in flows}
    goodput = {
        flow.name: results[flow.name].goodput_bps(start - then, end - then)
        for flow, then in zip(flows, begun, strict=True)
    }
    use = cpu_use(cpu_first, cpu_last)
    worker = worker_use(shown_first, shown_last) if shown_first and shown_last else None
    bound = use.bound(worker.busy if worker else None)
    late = worker.late if worker else 0.0
    if bound is None and late > late_limit:
        bound = f"a worker was late for {late:.1%} of the time > {late_limit:.1%}"
    disturbed = disturbance(use, overdue_s)
    return Cell(
        labels=labels,
        window_s=end - start,
        goodput_bps=goodput,
        flows=results,
        wire=wire_bytes(shown_first, shown_last) if shown_first and shown_last else {},
        idle=use.idle,
        cores=use.cores,
        strangers=use.strangers,
        worker=worker,
        bound=bound,
        disturbed=disturbed,
        received={g: last.since(received_first[g]) for g, last in received_last.items()},
        wall_s=(wall_start, wall_end),
        valid=disturbed is None and (bound is None or not switch.has_link_rate),
    )


def disturbance(use: CpuUse, overdue_s: float) -> str | None:
    """Why a cell cannot be compared: its window ended `overdue_s` after its flows (before them
    where negative), or others used the machine. None where it can."""
    if overdue_s > 0:
        return f"the machine stood still: the window ended {overdue_s:.1f} s after the flows"
    return use.disturbed()


def _received(switch: Switch) -> dict[str, Received]:
    return {g.name: g.namespace.received(g.name) for g in switch.guests.values()}


def wire_bytes(first: dict[str, Any], last: dict[str, Any]) -> dict[str, dict[str, Directions]]:
    """What each tenant sent and received at each switch's uplink between two samples of
    `levada show --json`."""
    before = {s["name"]: {t["name"]: t for t in s["tenants"]} for s in first["switches"]}
    return {
        switch["name"]: {
            tenant["name"]: Directions(
                _grown(before[switch["name"]][tenant["name"]], tenant, "egress"),
                _grown(before[switch["name"]][tenant["name"]], tenant, "ingress"),
            )
            for tenant in switch["tenants"]
        }
        for switch in last["switches"]
    }


def worker_use(first: dict[str, Any], last: dict[str, Any]) -> Worker:
    """The worker's load between two samples of `levada show --json`; where they are several
    daemons' (`workers`, by host), that of the busiest, as one that is at its bound binds all, with
    the longest lags, and the latest's lateness."""
    if "workers" not in last:
        return _load(first, last)
    loads = [_load(first["workers"][host], told) for host, told in last["workers"].items()]
    slowest = max(loads, key=lambda load: load.loop_lag_ns["p99"])
    busiest = max(loads, key=lambda load: load.busy)
    latest = max(load.late for load in loads)
    return replace(busiest, loop_lag_ns=slowest.loop_lag_ns, late=latest)


def _load(first: dict[str, Any], last: dict[str, Any]) -> Worker:
    wall_ns: int = last["now_ns"] - first["now_ns"]
    before, after = first["worker"], last["worker"]
    lags = bucket_counts(before["loop_lag_buckets"], after["loop_lag_buckets"])
    over_ns: int = sum(n * max(0, lag_ns - BURST_NS) for lag_ns, n in lags)
    return Worker(
        busy=(after["busy_ns"] - before["busy_ns"]) / wall_ns,
        cpu=(after["cpu_ns"] - before["cpu_ns"]) / wall_ns,
        loop_lag_ns=after["loop_lag_ns"],
        late=over_ns / wall_ns,
    )


def _grown(before: dict[str, Any], after: dict[str, Any], direction: str) -> int:
    grown: int = after[direction]["wire_bytes"] - before[direction]["wire_bytes"]
    return grown
