"""Means with their uncertainty, and tables to print them in.

A mean of few runs is reported with its 95 % confidence interval after Student (1908): half
its width is t * s / sqrt(n), t the 97.5 % quantile for n - 1 degrees of freedom. The quantiles
are computed from the distribution itself (a regularised incomplete beta function), so that no
table has to be believed and no large library is needed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Mean:
    """A mean and half the width of its confidence interval; None where one run says nothing
    about the spread."""

    value: float
    half_width: float | None
    runs: int

    def __format__(self, spec: str) -> str:
        text = format(self.value, spec)
        return text if self.half_width is None else f"{text} ± {format(self.half_width, spec)}"

    def over(self, unit: float) -> Mean:
        """The same in a larger unit."""
        half = None if self.half_width is None else self.half_width / unit
        return Mean(self.value / unit, half, self.runs)


def mean(values: Sequence[float]) -> Mean:
    """Mean and interval of independent runs."""
    n = len(values)
    if n == 0:
        raise ValueError("the mean of no runs is not defined")
    middle = math.fsum(values) / n
    if n == 1:
        return Mean(middle, None, 1)
    variance = math.fsum((v - middle) ** 2 for v in values) / (n - 1)
    t = student_t_quantile(0.5 + CONFIDENCE / 2, n - 1)
    return Mean(middle, t * math.sqrt(variance / n), n)


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two. With a value that is no number there is none, as it
    has no place among the others."""
    n = len(values)
    if n == 0:
        raise ValueError("the median of no runs is not defined")
    if any(math.isnan(value) for value in values):
        return math.nan
    ordered = sorted(values)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Two of the values between which the median lies with `CONFIDENCE`, whatever the distribution:
    how many lie below it is binomial (Conover, Practical Nonparametric Statistics, 3.2). None where
    they are too few for that."""
    n = len(values)
    below = 0.0  # the probability that at most `rank` of them lie below the median
    for rank in range(n // 2):
        following = below + math.comb(n, rank) / 2**n
        if 2 * following > 1 - CONFIDENCE:
            ordered = sorted(values)
            return (ordered[rank - 1], ordered[-rank]) if rank else None
        below = following
    return None


def bucket_counts(
    before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    """How often each value of a histogram was seen between two samples, by value."""
    had = {value: count for value, count in before}
    return sorted((value, count - had.get(value, 0)) for value, count in after)


def quantile(counts: Sequence[tuple[int, int]], part: float) -> float:
    """The least value that `part` of all are at most; zero where there are none."""
    total = sum(count for _, count in counts)
    seen = 0
    for value, count in counts:
        seen += count
        if count and seen >= part * total:
            return float(value)
    return 0.0


@functools.cache
def student_t_quantile(p: float, freedom: int) -> float:
    """t with P(T <= t) = p for p in (0.5, 1), by bisection to double precision."""
    if not 0.5 < p < 1:
        raise ValueError(f"p must lie between 0.5 and 1, not {p}")
    low, high = 0.0, 1.0
    while _student_t_cdf(high, freedom) < p:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_t_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def _student_t_cdf(t: float, freedom: int) -> float:
    """For t >= 0 (Abramowitz and Stegun 26.7.1)."""
    return 1 - _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised; the continued fraction DLMF 8.17.22, reflected where it converges slowly."""
    if x <= 0 or x >= 1:
        return min(1.0, max(0.0, x))
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    scale = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # Evaluated from the far end: 300 terms are ample for any number of runs.
    fraction = 1.0
    for m in range(300, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        fraction = 1 + odd / (1 + even / fraction)
    return scale / (a * fraction)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, the first to the left, figures to the right."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        first = row[0].ljust(widths[0])
        others = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([first, *others]).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
