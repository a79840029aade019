"""Against printed tables and cases worked by hand."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from lab.plot import bars, lines
from lab.stats import mean, median, median_interval, student_t_quantile, table


@pytest.mark.parametrize(
    ("freedom", "t"),
    # Two-sided 95 %, as in any printed table of Student's distribution.
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (29, 2.045), (120, 1.980)],
)
def test_quantiles_match_the_tables(freedom: int, t: float) -> None:
    assert student_t_quantile(0.975, freedom) == pytest.approx(t, abs=5e-4)


def test_one_degree_of_freedom_is_cauchy() -> None:
    assert student_t_quantile(0.75, 1) == pytest.approx(1.0, abs=1e-12)


def test_the_medians_interval_matches_the_binomial_tables() -> None:
    # Printed tables: the 6th and the 15th of 20, the 2nd and the 9th of 10, all of 6.
    assert median_interval(list(range(20, 0, -1))) == (6, 15)
    assert median_interval(list(range(1, 11))) == (2, 9)
    assert median_interval([3, 1, 4, 1, 5, float("inf")]) == (1, float("inf"))
    assert median_interval([3, 1, 4, 1, 5]) is None, "five say nothing with 95 %"
    assert median_interval([1]) is None
    assert median_interval([]) is None


def test_mean_of_three_runs() -> None:
    m = mean([9.0, 10.0, 11.0])
    assert m.value == 10
    # s = 1, n = 3: 4.3027 / sqrt(3)
    assert m.half_width == pytest.approx(2.4841, abs=1e-4)
    assert m.over(2).value == 5
    assert m.over(2).half_width == pytest.approx(2.4841 / 2, abs=1e-4)
    assert f"{m:.1f}" == "10.0 ± 2.5"


def test_one_run_claims_no_interval() -> None:
    assert mean([5.0]).half_width is None
    assert f"{mean([5.0]):.1f}" == "5.0"


def test_no_runs_are_an_error() -> None:
    with pytest.raises(ValueError, match="no runs"):
        mean([])
    with pytest.raises(ValueError, match="no runs"):
        median([])


def test_median() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5


def test_table_aligns() -> None:
    assert table(["who", "rate"], [["red", "1.5"], ["blue-long", "10.25"]]) == (
        "who         rate\n---------  -----\nred          1.5\nblue-long  10.25"
    )


def test_plots_are_written_and_repeat_bit_for_bit(tmp_path: Path) -> None:
    def draw(name: str) -> bytes:
        out = tmp_path / name
        bars(out, "t", "Mbit/s", ["a", "b"], {"x": [mean([1, 2]), None]}, ideal=[1.0, 2.0])
        assert out.with_suffix(".png").stat().st_size > 1000
        return out.with_suffix(".svg").read_bytes()

    assert draw("one") == draw("two")
    lines(tmp_path / "l", "t", "s", "Mbit/s", {"x": ([0, 1], [2, 3])})
    assert (tmp_path / "l.svg").exists()


def test_the_median_with_a_value_that_is_no_number_is_none_in_any_order() -> None:
    for values in itertools.permutations([1.0, 2.0, math.nan]):
        assert math.isnan(median(values))
    assert median([1.0, math.inf, math.inf]) == math.inf
