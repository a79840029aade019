"""When a cell of several daemons counts as bound by the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lab.cell import worker_use
from lab.machine import BUSY_LIMIT, STOLEN_LIMIT, CpuUse

SECOND_NS = 1_000_000_000


def shown(at_s: float, busy_s: dict[str, float], lag_ns: dict[str, int]) -> dict[str, Any]:
    """What a cluster's daemons say; their clocks differ a little, as they are asked in turn."""
    workers = {}
    for number, (host, busy) in enumerate(busy_s.items()):
        lag = {"p50": 1, "p99": lag_ns[host], "max": lag_ns[host]}
        worker = {"busy_ns": busy * SECOND_NS, "cpu_ns": busy * SECOND_NS, "loop_lag_ns": lag}
        counts = {50_000: 100, lag_ns[host]: 10, 3_000_000: 1}
        worker["loop_lag_buckets"] = [[lag, int(n * at_s)] for lag, n in counts.items()]
        workers[host] = {"now_ns": (at_s + number / 100) * SECOND_NS, "worker": worker}
    return {"switches": [], "workers": workers}


LAG_NS = {"h1": 110_000, "h2": 200_000, "h3": 120_000}


def busy(**part: float) -> float:
    """What counts of hosts' workers that were busy for these parts of two seconds."""
    first = shown(5, dict.fromkeys(LAG_NS, 1.0), LAG_NS)
    last = shown(7, {host: 1 + 2 * part[host] for host in LAG_NS}, LAG_NS)
    worker = worker_use(first, last)
    assert worker.loop_lag_ns["p99"] == 200_000, "the longest"
    # In two seconds twice 2 ms more than is made good.
    assert worker.late == pytest.approx(0.002)
    assert worker.cpu == worker.busy
    return worker.busy


def test_the_busiest_of_several_workers_counts_and_not_their_sum() -> None:
    counted = busy(h1=0.6, h2=0.2, h3=0.4)
    assert counted == pytest.approx(0.6)
    assert CpuUse(idle=0.2, cores={}, strangers=0).bound(counted) is None


def test_one_worker_at_its_bound_binds_the_cell() -> None:
    counted = busy(h1=0.1, h2=0.1, h3=0.98)
    assert counted > BUSY_LIMIT
    assert CpuUse(idle=0.4, cores={}, strangers=0).bound(counted) is not None


def test_a_machine_that_is_used_up_binds_the_cell_whoever_used_it() -> None:
    assert CpuUse(idle=0.01, cores={}, strangers=0).bound(busy(h1=0.5, h2=0.4, h3=0.4)) is not None


def test_what_the_machine_s_host_takes_disturbs() -> None:
    use = CpuUse(idle=0.5, cores={}, strangers=0.0, stolen=STOLEN_LIMIT)
    assert use.disturbed() is None
    told = replace(use, stolen=0.3).disturbed()
    assert told is not None and "host used 0.30 cores" in told
