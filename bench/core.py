"""The core alone, without ports: datapath/examples/core_cost under callgrind and by the clock.

Callgrind (valgrind.org) counts instructions exactly and repeatably. What an operation costs is the
difference of two runs with different numbers of them, so that building the switch and warming it up
do not count. Time is the median of many short parts, and sizes are compared in
interleaved pairs.
"""

from __future__ import annotations

import json
from typing import Any

from lab.callgrind import counted
from lab.machine import cpu_use, sample_cpu
from lab.net import Lab, run
from lab.programs import example
from lab.report import Report, at_most
from lab.stats import median, table

#: Endpoints for the count of instructions, and for the time.
SIZES = {False: (10, 100, 1_000, 10_000, 100_000), True: (10, 100_000)}
SMALL, LARGE = 1_000, 100_000
#: Operations of the two runs under callgrind, and of one by the clock (multiples of 1024).
CALLGRIND_OPS = (4_096, 24_576)
TIMED_OPS = 204_800
ROUNDS = {False: 5, True: 1}
#: What is aimed for, in ns at 1000 endpoints. Reported, not claimed.
AIM_NS = {"sched": 150, "pipeline": 300}


def core(lab: Lab, report: Report, quick: bool) -> None:
    """Instructions and time of the scheduler and of the whole pipeline."""
    del lab  # makes nothing on this machine
    instructions = {n: _instructions("sched", n) for n in SIZES[quick]}
    report.claims.append(
        at_most("core.instructions-flat", flatness(instructions), "x, most/least", 1.15)
    )
    start = sample_cpu([])
    timed: dict[tuple[str, int], list[float]] = {}
    ratios = []
    for turn in range(ROUNDS[quick]):
        sizes = (SMALL, LARGE) if turn % 2 else (LARGE, SMALL)
        pair = {n: _timed("sched", n) for n in sizes}
        ratios.append(pair[LARGE]["ns_per_op"] / pair[SMALL]["ns_per_op"])
        for mode in AIM_NS:
            for n in (SMALL, LARGE):
                told = pair[n] if mode == "sched" else _timed(mode, n)
                timed.setdefault((mode, n), []).append(told["ns_per_op"])
                for way, ns in told["ns"].items() if mode == "pipeline" else ():
                    timed.setdefault((f"pipeline {way}", n), []).append(ns)
    disturbed = cpu_use(start, sample_cpu([])).disturbed()
    slowdown = None if disturbed else median(ratios)
    report.claims.append(at_most("core.time-100000-vs-1000", slowdown, "x time of 1000", 4))
    report.cells += [
        {
            "labels": {"section": "core", "mode": mode, "endpoints": n},
            "ns": ns,
            "disturbed": disturbed,
            "valid": disturbed is None,
        }
        for (mode, n), ns in timed.items()
    ]
    report.parameters["core_instructions"] = {str(n): c for n, c in instructions.items()}
    report.tables += [_instruction_table(instructions), _time_table(timed, disturbed)]


def flatness(instructions: dict[int, float]) -> float:
    """The most over the least."""
    return max(instructions.values()) / min(instructions.values())


def _instruction_table(instructions: dict[int, float]) -> str:
    rows = [[f"{n}", f"{count:.0f}"] for n, count in instructions.items()]
    return "core: instructions of one enqueue + dequeue\n" + table(["endpoints", ""], rows)


def _time_table(timed: dict[tuple[str, int], list[float]], disturbed: str | None) -> str:
    rows = [
        [
            f"{mode}, {n} endpoints",
            f"{median(ns):.0f}",
            f"{min(ns):.0f} .. {max(ns):.0f}",
            f"{AIM_NS[mode]}" if n == SMALL and mode in AIM_NS else "",
        ]
        for (mode, n), ns in timed.items()
    ]
    title = "core: ns for enqueue + dequeue (sched), for a frame through the switch (pipeline)"
    state = f" ({disturbed})" if disturbed else ""
    return f"{title}{state}\n" + table(["", "median", "range", "aim"], rows)


def _instructions(mode: str, endpoints: int) -> float:
    """Of one operation."""
    fewer, more = (
        counted(example("core_cost"), mode, str(endpoints), "--ops", str(ops))[0]
        for ops in CALLGRIND_OPS
    )
    return (more - fewer) / (CALLGRIND_OPS[1] - CALLGRIND_OPS[0])


def _timed(mode: str, endpoints: int) -> dict[str, Any]:
    told = run(example("core_cost"), mode, str(endpoints), "--ops", str(TIMED_OPS))
    timed: dict[str, Any] = json.loads(told)
    return timed
