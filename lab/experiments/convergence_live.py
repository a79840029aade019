"""How long a blast from 1 and 4 other hosts keeps a victim from its guarantee: live (`lab.blasts`).

An open-loop victim is blasted a number of times for a second: until when it is whole again, and
what of it is lost; and so is one TCP connection: its rate while blasts last, its timeouts. A
daemon a host, whose agents talk by `rate`, as published (`gatekeeper`), or not at all.

Before the blasts are the controls, in which nothing contends: where the victim is not whole in
them, it is the machine that harms it, and nothing is said of agents. Nor by a blast in which the
machine, a worker or the victim's sender was at its bound.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lab import blasts, machine
from lab.blasts import FLOOD, NONE, PACED, Blasted
from lab.net import Lab
from lab.programs import example, program
from lab.report import Claim, Report, at_least, at_most
from lab.stats import table

SUMMARY = "a blast from other hosts, live: time until a victim has its guarantee again"

CONTROLLERS = {"none": None, "gatekeeper": "gatekeeper", "rate": "rate"}
SENDERS = (1, 4)
#: Blasts a cell, and controls of each kind before them.
FULL, QUICK = 20, 5
CONTROLS = 3
#: Least part of the time in which a victim is whole while nothing contends, in percent.
WHOLE_PERCENT = 99.9
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
    kinds = [*[NONE] * CONTROLS, *[PACED] * CONTROLS, *[FLOOD] * count]
    for senders in SENDERS:
        for name, controller in CONTROLLERS.items():
            played = blasts.open_loop(lab, controller, senders, kinds)
            rate_bps, timeouts = blasts.connection(lab, controller, senders, max(3, count // 4))
            kept = 100 * rate_bps / (blasts.guarantee_bps("A", senders) * _PAYLOAD)
            labels = {"agents": name, "senders": senders}
            row = {"blasts": [asdict(b) for b in played], "kept": kept, "timeouts": timeouts}
            whole = whole_percent(played)
            doubt = None if whole >= WHOLE_PERCENT else f"controls whole to {whole:.2f} % only"
            cell = {"labels": labels, "valid": doubt is None, "bound": doubt, "disturbed": None}
            report.cells.append(cell | row)
            rows.append([str(senders), name, *_row(played), f"{kept:.1f}", str(timeouts)])
            print(f"  {'  '.join(rows[-1])}", file=sys.stderr)
            if name == "rate":
                report.claims += claims(senders, played, kept)
    head = ["senders", "agents", "controls whole %", "blasts that count", "back ms: median"]
    head += ["worst", "lost %: median", "1 TCP, % of its guarantee", "timeouts"]
    report.tables = [table(head, rows)]
    return report


def claims(senders: int, played: Sequence[Blasted], kept: float) -> list[Claim]:
    """What is promised of `rate`; nothing holds where the controls were not whole, or no blast
    counts."""
    whole = whole_percent(played)
    counting = counted(played) if whole >= WHOLE_PERCENT else []
    back = back_ms(counting) if counting else None
    name = f"{senders} sender{'s' if senders > 1 else ''}"
    return [
        at_least(f"{name}: victim whole while nothing contends", whole, "%", WHOLE_PERCENT),
        at_most(f"{name}: open-loop victim is back, median", back, "ms", BACK_MS),
        at_least(f"{name}: 1 TCP, of its guarantee", kept, "%", KEPT_PERCENT),
    ]


def whole_percent(played: Sequence[Blasted]) -> float:
    """Of the controls' time, that in which the victim was whole."""
    return 100 * statistics.mean(b.whole for b in played if b.kind != FLOOD)


def counted(played: Sequence[Blasted]) -> list[Blasted]:
    """The blasts that tell something about agents."""
    return [b for b in played if b.kind == FLOOD and b.bound is None]


def back_ms(played: Sequence[Blasted]) -> float | None:
    """The median; a victim that never was back counts as later than all others. None where that
    is the median."""
    times = sorted(float("inf") if b.restored_s is None else b.restored_s for b in played)
    middle = statistics.median_high(times)
    return None if middle == float("inf") else 1000 * middle


def _row(played: Sequence[Blasted]) -> list[str]:
    floods, counting = [b for b in played if b.kind == FLOOD], counted(played)
    told = [f"{whole_percent(played):.2f}", f"{len(counting)} of {len(floods)}"]
    if not counting:
        return [*told, "-", "-", "-"]
    worst = (
        None
        if any(b.restored_s is None for b in counting)
        else max(1000 * (b.restored_s or 0.0) for b in counting)
    )
    lost = 100 * statistics.median(b.lost for b in counting)
    times = ("never" if ms is None else f"{ms:.0f}" for ms in (back_ms(counting), worst))
    return [*told, *times, f"{lost:.2f}"]


def _parameters(count: int) -> dict[str, object]:
    return {
        "links_bps": blasts.LINKS_BPS,
        "promised": blasts.PROMISED,
        "fabric_queue_bytes": blasts.QUEUE_BYTES,
        "blasts": count,
        "controls": CONTROLS,
        "blast_s": blasts.BLAST_S,
        "row_ms": blasts.ROW_MS,
        "span_rows": blasts.SPAN_ROWS,
        "floods_over_link": blasts.FLOODS,
    }
