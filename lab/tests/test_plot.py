"""Plots name what they show, and draw an interval only where there is one."""

from __future__ import annotations

import re
from pathlib import Path

from lab import plot
from lab.stats import Mean

GROUPS = ("first group", "second group")
SERIES: dict[str, list[Mean | None]] = {
    "A": [Mean(1.0, 0.1, 3), Mean(2.0, None, 1)],
    "B": [None, Mean(3.0, 0.2, 3)],
}


def texts(out: Path) -> set[str]:
    assert out.with_suffix(".png").stat().st_size > 0
    return set(re.findall(r">([^<>]+)</text>", out.with_suffix(".svg").read_text()))


def test_bars_name_groups_series_and_unit(tmp_path: Path) -> None:
    plot.bars(tmp_path / "bars", "a title", "Mbit/s", GROUPS, SERIES, ideal=[1.0, None])
    assert texts(tmp_path / "bars") >= {"a title", "Mbit/s", "A", "B", "ideal", *GROUPS}


def test_panels_stand_side_by_side_to_one_scale(tmp_path: Path) -> None:
    beside = {"one switch": SERIES, "another": SERIES, "a third": SERIES}
    plot.panels(tmp_path / "panels", "a title", "Mbit/s", GROUPS, beside, {"A": 1.5, "B": 0.5})
    assert texts(tmp_path / "panels") >= {"a title", "Mbit/s", "A", "B", *GROUPS, *beside}


def test_boxes_are_side_by_side_in_each_group(tmp_path: Path) -> None:
    series = {"A": [[1.0, 2.0, 3.0], [4.0]], "B": [[2.0, 2.0, 9.0], [5.0, 6.0]]}
    plot.boxes(tmp_path / "boxes", "a title", "s", GROUPS, {"one": series, "another": series})
    assert texts(tmp_path / "boxes") >= {"a title", "s", "A", "B", "one", "another", *GROUPS}


def test_timelines_tell_got_from_promised(tmp_path: Path) -> None:
    line = {"A": ([0.0, 1.0], [1.0, 2.0])}
    plot.timelines(
        tmp_path / "lines", "a title", "Mbit/s", {"before": line, "after": line}, {"A": 1}
    )
    assert texts(tmp_path / "lines") >= {"before", "after", "A", "A, promised", "seconds"}


def test_one_run_draws_no_interval(tmp_path: Path) -> None:
    def markers(half_width: float | None) -> int:
        out = tmp_path / "one"
        plot.bars(out, "", "", ["x"], {"A": [Mean(1.0, half_width, 3)]})
        return out.with_suffix(".svg").read_text().count("<use")

    assert markers(0.1) - markers(None) == 2, "the caps of an interval"
