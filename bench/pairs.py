"""A against B in one run: pairs of cells measured one right after the other.

Machines drift (frequency, neighbours on the same host, caches), and a figure of this minute is not
comparable with one of the next. So Levada and a peer are measured in turn, alternating who
goes first, all pairs interleaved; what counts is the median over the pairs of their ratio.
A pair with a disturbed cell is played again, a bounded number of times, and is left out where
that does not help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lab.cell import Cell
from lab.report import middle
from lab.stats import median

#: How often a pair is played until both its cells are valid.
ATTEMPTS = 2

#: Measures one cell and gives it with the figure that is to be compared.
Measure = Callable[[], tuple[Cell, float]]


@dataclass(frozen=True)
class Pair:
    """What Levada and a peer reached, one right after the other, in the same unit."""

    ours: float
    theirs: float
    valid: bool = True

    @property
    def ratio(self) -> float:
        """How many times the peer's figure Levada reached; a peer's nothing is beaten by far."""
        return self.ours / self.theirs if self.theirs else float("inf")


def interleaved(
    rounds: int, ours: Measure, peers: Mapping[str, Measure], rows: list[Cell]
) -> dict[str, list[Pair]]:
    """`rounds` pairs with each peer. All cells that were measured are appended to `rows`."""
    pairs: dict[str, list[Pair]] = {name: [] for name in peers}
    for turn in range(rounds):
        for name, theirs in peers.items():
            for _ in range(ATTEMPTS):
                pair = _pair(ours, theirs, turn % 2 == 0, rows)
                if pair.valid:
                    break
            pairs[name].append(pair)
    return pairs


def _pair(ours: Measure, theirs: Measure, ours_first: bool, rows: list[Cell]) -> Pair:
    first, second = (ours, theirs) if ours_first else (theirs, ours)
    (first_cell, a), (second_cell, b) = first(), second()
    rows += [first_cell, second_cell]
    valid = first_cell.valid and second_cell.valid
    return Pair(a, b, valid) if ours_first else Pair(b, a, valid)


def ratio(pairs: Sequence[Pair]) -> float | None:
    """The median ratio of the valid pairs; None where too few are valid."""
    return middle([pair.ratio for pair in pairs if pair.valid], len(pairs))


def row(name: str, pairs: Sequence[Pair], figures: str) -> list[str]:
    """A line of a table: the peer, its median and Levada's beside it, the ratio and its range.
    Of all pairs, so that a disturbed run shows something too; what did not count is said."""
    ratios = sorted(pair.ratio for pair in pairs)
    left_out = sum(not pair.valid for pair in pairs)
    return [
        name,
        format(median([pair.theirs for pair in pairs]), figures),
        format(median([pair.ours for pair in pairs]), figures),
        f"{median(ratios):.2f}",
        f"{ratios[0]:.2f} .. {ratios[-1]:.2f}",
        f"{len(pairs)}" + (f", {left_out} disturbed" if left_out else ""),
    ]


#: The columns of `row`, but the first.
COLUMNS = ["its median", "Levada's", "ratio", "range", "pairs"]
