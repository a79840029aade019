"""How long a blast from 1 and 4 other hosts keeps a victim from its guarantee: live (`lab.blasts`).

An open-loop victim is blasted a number of times for a second: until when its arrivals are back, and
what of it is lost; and so is one TCP connection: its rate while blasts last, its timeouts. A
daemon a host, whose agents talk by `rate`, as published (`gatekeeper`), or not at all.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lab import blasts, machine
from lab.blasts import Blasted
from lab.net import Lab
from lab.programs import example, program
from lab.report import Claim, Report, at_least, at_most
from lab.stats import table

SUMMARY = "a blast from other hosts, live: time until a victim has its guarantee again"

CONTROLLERS = {"none": None, "gatekeeper": "gatekeeper", "rate": "rate"}
SENDERS = (1, 4)
#: Blasts a cell.
FULL, QUICK = 20, 5
#: Most milliseconds until an open-loop victim is back, in the median.
BACK_MS = 20.0
#: Least part of its guarantee that a TCP victim has while blasts last, in percent of what its
#: payload is of the wire.
KEPT_PERCENT = 99.0
_PAYLOAD = 1448 / 1542


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays all cells and judges those of `rate`."""
    program()
    example("blast")
    count = QUICK if quick else FULL
    report = Report("convergence-live", quick, parameters=_parameters(count))
    report.machine = machine.describe(["iperf3", "ip", "tc", str(program())])
    rows = []
    for senders in SENDERS:
        for name, controller in CONTROLLERS.items():
            played = blasts.open_loop(lab, controller, senders, count)
            rate_bps, timeouts = blasts.connection(lab, controller, senders, max(3, count // 4))
            kept = 100 * rate_bps / (blasts.GUARANTEES_BPS["A"] * _PAYLOAD)
            labels = {"agents": name, "senders": senders}
            row = {"blasts": [asdict(b) for b in played], "kept": kept, "timeouts": timeouts}
            report.cells.append({"labels": labels, "valid": True, **row})
            rows.append([str(senders), name, *_row(played), f"{kept:.1f}", str(timeouts)])
            print(f"  {'  '.join(rows[-1])}", file=sys.stderr)
            if name == "rate":
                report.claims += claims(senders, played, kept)
    head = ["senders", "agents", "back ms: median", "worst", "lost %: median"]
    report.tables = [table([*head, "1 TCP, % of its guarantee", "timeouts"], rows)]
    return report


def claims(senders: int, played: Sequence[Blasted], kept: float) -> list[Claim]:
    """What is promised of `rate`."""
    return [
        at_most(
            f"{senders} senders: open-loop victim is back, median", back_ms(played), "ms", BACK_MS
        ),
        at_least(f"{senders} senders: 1 TCP, of its guarantee", kept, "%", KEPT_PERCENT),
    ]


def back_ms(played: Sequence[Blasted]) -> float | None:
    """The median; a victim that never was back counts as later than all others. None where that
    is the median."""
    times = sorted(float("inf") if b.restored_s is None else b.restored_s for b in played)
    middle = statistics.median_high(times)
    return None if middle == float("inf") else 1000 * middle


def _row(played: Sequence[Blasted]) -> list[str]:
    middle = back_ms(played)
    worst = (
        None
        if any(b.restored_s is None for b in played)
        else max(1000 * (b.restored_s or 0.0) for b in played)
    )
    lost = 100 * statistics.median(b.lost for b in played)
    return [*("never" if ms is None else f"{ms:.0f}" for ms in (middle, worst)), f"{lost:.2f}"]


def _parameters(count: int) -> dict[str, object]:
    return {
        "link_bps": blasts.LINK_BPS,
        "guarantees_bps": blasts.GUARANTEES_BPS,
        "fabric_queue_bytes": blasts.topology(1).fabric_queue_bytes,
        "blasts": count,
        "blast_s": blasts.BLAST_S,
        "row_ms": blasts.ROW_MS,
        "span_rows": blasts.SPAN_ROWS,
        "flood_over_link": blasts.FLOOD,
    }
