"""What an experiment hands over: raw rows, claims that hold or do not, tables, plots.

`result.json` holds all of it but the plots; the same form of `claims` is used wherever the
project states a number, so that one reader judges them all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab.stats import table


@dataclass(frozen=True)
class Claim:
    """A number and what it has to be. `value` None: there was no valid cell to take it from,
    so it does not hold."""

    id: str
    value: float | None
    unit: str
    target: str
    holds: bool


def at_least(claim: str, value: float | None, unit: str, least: float) -> Claim:
    """A claim that `value` is `least` or more."""
    return Claim(claim, value, unit, f">= {least:g}", value is not None and value >= least)


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

    def holds(self) -> bool:
        """Whether there are claims and all hold."""
        return bool(self.claims) and all(c.holds for c in self.claims)

    def write(self, out: Path) -> Path:
        """Writes `out`/result.json; its path."""
        out.mkdir(parents=True, exist_ok=True)
        path = out / "result.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
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
                + "; ".join(f"{_label(c)}: {c['disturbed'] or c['bound']}" for c in invalid)
            )
        return "\n\n".join(parts)


def claims_table(claims: Iterable[Claim]) -> str:
    """The claims as a table."""
    rows = [
        [
            c.id,
            "no valid cell" if c.value is None else f"{c.value:.4g}",
            c.unit,
            c.target,
            "holds" if c.holds else "DOES NOT HOLD",
        ]
        for c in claims
    ]
    return table(["claim", "value", "unit", "target", ""], rows)


def _label(cell: dict[str, Any]) -> str:
    return " ".join(str(v) for v in cell["labels"].values())
