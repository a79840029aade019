"""What an experiment hands over: raw rows, claims that hold or do not, tables, plots.

`result.json` holds all of it but the plots; the same form of `claims` is used wherever the
project states a number, so that one reader judges them all. JSON has no endless numbers, such as
the round trip of a ping that was lost: it has null there, and beside it, under `not_finite`, what
that stands for.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.stats import median, table

#: What something has at most of all that there is, measured twice: both a per cent or so off.
MOST_PERCENT = 103.0


@dataclass(frozen=True)
class Claim:
    """A number and what it has to be. `value` None: there were too few valid cells to take it
    from, so it does not hold."""

    id: str
    value: float | None
    unit: str
    target: str
    holds: bool


def middle(values: Sequence[float], planned: int) -> float | None:
    """The median of the values that count, of so many that were planned. None where less than two
    thirds of them count: one pair of three is no median of three."""
    return median(values) if values and 3 * len(values) >= 2 * planned else None


def at_least(claim: str, value: float | None, unit: str, least: float) -> Claim:
    """A claim that `value` is `least` or more."""
    return Claim(claim, value, unit, f">= {least:g}", value is not None and value >= least)


def part_of(
    claim: str, value: float | None, unit: str, least: float, most: float = MOST_PERCENT
) -> Claim:
    """A claim that what is measured in two ways is `least` of the other one or more. Of more than
    `most` the other one was measured too low, which decides nothing."""
    decided = None if value is None or value > most else value
    target = f">= {least:g} (over {most:g}: undecided)"
    return Claim(claim, decided, unit, target, decided is not None and decided >= least)


def at_most(claim: str, value: float | None, unit: str, most: float) -> Claim:
    """A claim that `value` is `most` or less."""
    return Claim(claim, value, unit, f"<= {most:g}", value is not None and value <= most)


def between(claim: str, value: float | None, unit: str, least: float, most: float) -> Claim:
    """A claim that `value` lies between the two."""
    holds = value is not None and least <= value <= most
    return Claim(claim, value, unit, f"{least:g} .. {most:g}", holds)


@dataclass
class Report:
    """One run of an experiment."""

    experiment: str
    quick: bool
    parameters: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    cells: list[dict[str, Any]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    #: Printed, and kept beside the claims.
    tables: list[str] = field(default_factory=list)
    #: What is done once it is on disk; no part of it.
    on_disk: list[Callable[[], object]] = field(default_factory=list, compare=False)

    def holds(self) -> bool:
        """Whether there are claims and all hold."""
        return bool(self.claims) and all(c.holds for c in self.claims)

    def write(self, out: Path) -> Path:
        """Writes `out`/result.json, whole or not at all; its path."""
        out.mkdir(parents=True, exist_ok=True)
        path, new = out / "result.json", out / "result.json.new"
        result = asdict(replace(self, on_disk=[]))
        del result["on_disk"]
        with new.open("w") as file:
            file.write(json.dumps(_finite(result), indent=1, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        for done in self.on_disk:
            done()
        return path

    def text(self) -> str:
        """What is printed: the tables, then the claims, and what to know of them."""
        invalid = [c for c in self.cells if not c.get("valid", True)]
        parts = [*self.tables, claims_table(self.claims)]
        if "resumed" in self.parameters:
            parts.append(f"resumed: {self.parameters['resumed']}")
        if invalid:
            parts.append(
                f"{len(invalid)} of {len(self.cells)} cells do not count: "
                + "; ".join(
                    dict.fromkeys(f"{_label(c)}: {c['disturbed'] or c['bound']}" for c in invalid)
                )
            )
        return "\n\n".join(parts)


def _finite(value: object) -> object:
    """What JSON can have of a value."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        odd = {k: str(v) for k, v in value.items() if isinstance(v, float) and not math.isfinite(v)}
        found = {key: _finite(one) for key, one in value.items()}
        return {**found, "not_finite": odd} if odd else found
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value


def claims_table(claims: Iterable[Claim]) -> str:
    """The claims as a table."""
    rows = [
        [
            c.id,
            "too few valid cells" if c.value is None else f"{c.value:.4g}",
            c.unit,
            c.target,
            "holds" if c.holds else "DOES NOT HOLD",
        ]
        for c in claims
    ]
    return table(["claim", "value", "unit", "target", ""], rows)


def _label(cell: dict[str, Any]) -> str:
    return " ".join(str(v) for v in cell["labels"].values())
