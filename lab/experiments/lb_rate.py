"""What services cost the datapath alone: new connections a second, and time a frame.

`datapath/examples/service_cost.rs` passes frames of connections through a switch without ports,
with a thousand connections open and with a million. Callgrind counts instructions: a frame of a
known connection less the same frame of a switch without services is what a service takes. By the
clock it is the median of many short parts; kinds take turns within a round, and a round counts only
where other programs left the machine alone. There is no room left for new connections, so each
of them replaces another.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import machine
from lab.callgrind import counted
from lab.machine import cpu_use, sample_cpu
from lab.net import Lab
from lab.net import run as run_command
from lab.programs import example
from lab.report import Claim, Report, at_least, at_most
from lab.stats import median, table

SUMMARY = "services in the datapath alone: new connections a second, instructions and ns a frame"

MODES = ("plain", "known", "new", "life")
FEW, MANY = 1_000, 1 << 20
SIZES = {False: (FEW, 1 << 16, MANY), True: (FEW, MANY)}
#: Operations of the two runs under callgrind, and of one by the clock (multiples of 1024).
COUNTED_OPS = (2_048, 10_240)
TIMED_OPS = 204_800
#: Rounds that count, and how many are tried for them.
ROUNDS = {False: 5, True: 1}
TRIES = {False: 15, True: 3}
#: What a known connection may take a frame, beyond the same frame without a service.
MOST_INSTRUCTIONS = 250
MOST_NS, MOST_NS_OF_MANY = 60, 300
#: New connections a second on one processor with a million in the table.
LEAST_PER_S = 1_000_000


@dataclass(frozen=True)
class Cell:
    """One run by the clock."""

    mode: str
    open: int
    round: int
    ns_a_frame: float
    per_s: float
    disturbed: str | None

    def as_row(self) -> dict[str, Any]:
        """For result.json."""
        labels = {"mode": self.mode, "open": self.open, "round": self.round}
        figures = {"ns_a_frame": self.ns_a_frame, "operations_per_s": self.per_s}
        row = {**figures, "bound": None, "disturbed": self.disturbed, "valid": self.valid}
        return {"labels": labels, **row}

    @property
    def valid(self) -> bool:
        """Whether it counts."""
        return self.disturbed is None


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Counts, then times in rounds."""
    report = Report("lb-rate", quick)
    report.machine = machine.describe(["valgrind"])
    instructions = {mode: _instructions(mode) for mode in ("plain", "known", "new")}
    report.parameters = {"instructions_a_frame": instructions, "ops": TIMED_OPS}
    cells: list[Cell] = []
    quiet = 0
    for number in range(TRIES[quick]):
        made = _round(number, SIZES[quick])
        cells += made
        quiet += all(cell.valid for cell in made)
        if quiet >= ROUNDS[quick]:
            break
    report.cells = [cell.as_row() for cell in cells]
    report.tables = [_counts(instructions), _times(cells, SIZES[quick])]
    report.claims = claims(instructions, cells)
    return report


def _instructions(mode: str) -> float:
    """Of one frame."""
    counts = []
    for ops in COUNTED_OPS:
        collected, told = counted(example("service_cost"), mode, str(FEW), "--ops", str(ops))
        counts.append(collected)
    line = next(line for line in told.splitlines() if line.startswith("{"))
    frames: int = json.loads(line)["frames_per_op"]
    return (counts[1] - counts[0]) / (COUNTED_OPS[1] - COUNTED_OPS[0]) / frames


def _round(number: int, sizes: tuple[int, ...]) -> list[Cell]:
    """Each kind once at each size, disturbed together or not."""
    made = []
    start = sample_cpu([])
    for size in sizes:
        for mode in MODES:
            line = run_command(example("service_cost"), mode, str(size), "--ops", str(TIMED_OPS))
            made.append((mode, size, json.loads(line)))
    disturbed = cpu_use(start, sample_cpu([])).disturbed()
    print(f"  round {number}: {disturbed or 'counts'}", file=sys.stderr, flush=True)
    return [
        Cell(
            mode=mode,
            open=size,
            round=number,
            ns_a_frame=told["ns_per_op"] / told["frames_per_op"],
            per_s=1e9 / told["ns_per_op"],
            disturbed=disturbed,
        )
        for mode, size, told in made
    ]


# --- judging ------------------------------------------------------------------------------


def _of(
    cells: list[Cell], mode: str, size: int, value: Callable[[Cell], float], valid: bool = True
) -> float | None:
    """The median of the rounds that count."""
    found = [value(c) for c in cells if (c.mode, c.open) == (mode, size) and c.valid >= valid]
    return median(found) if found else None


def extra(cells: list[Cell], size: int, valid: bool = True) -> float | None:
    """Time that a known connection takes a frame more than without a service: the median of the
    rounds' differences, in ns."""
    rounds = sorted({c.round for c in cells if c.valid >= valid})
    made = []
    for number in rounds:
        at = {c.mode: c.ns_a_frame for c in cells if (c.round, c.open) == (number, size)}
        made.append(at["known"] - at["plain"])
    return median(made) if made else None


def claims(instructions: dict[str, float], cells: list[Cell]) -> list[Claim]:
    """Counts always; times where a round counts."""
    more = instructions["known"] - instructions["plain"]
    new = _of(cells, "new", MANY, lambda c: c.per_s)
    return [
        at_most("known connection, more", more, "instructions a frame", MOST_INSTRUCTIONS),
        at_most(f"known connection of {FEW}, more", extra(cells, FEW), "ns a frame", MOST_NS),
        at_most(
            f"known connection of {MANY}, more", extra(cells, MANY), "ns a frame", MOST_NS_OF_MANY
        ),
        at_least(f"new connections with {MANY} open", new, "1/s", LEAST_PER_S),
    ]


def _counts(instructions: dict[str, float]) -> str:
    rows = [[mode, f"{n:.0f}"] for mode, n in instructions.items()]
    return f"instructions a frame, {FEW} connections open\n" + table(["kind", ""], rows)


def _times(cells: list[Cell], sizes: tuple[int, ...]) -> str:
    """All rounds, also those that do not count, which are the more the busier the machine was."""
    rows = []
    for size in sizes:
        for mode in MODES:
            ns = [c.ns_a_frame for c in cells if (c.mode, c.open) == (mode, size)]
            per_s = _of(cells, mode, size, lambda c: c.per_s, valid=False) or 0.0
            spread = f"{min(ns):.0f} .. {max(ns):.0f}"
            rows.append([mode, str(size), f"{median(ns):.0f}", spread, f"{per_s / 1e6:.2f}"])
    count = len({c.round for c in cells if c.valid})
    head = ["kind", "open", "ns a frame", "range", "million operations/s"]
    return f"by the clock, {count} rounds count\n" + table(head, rows)
