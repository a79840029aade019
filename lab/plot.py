"""Plots of the lab, SVG and PNG, all in one style.

Colours are those of Okabe and Ito (2008), which readers with colour blindness can tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # files only; no display is there
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from lab.stats import Mean

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
#: Inches; two plots beside each other fill a page's width.
PANEL = (6.4, 3.6)
PNG_DPI = 160

_STYLE: Any = {  # matplotlib types its keys as one huge literal
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "savefig.bbox": "tight",
    # Same figures, same file: no random ids and no date (see `save`).
    "svg.hashsalt": "levada",
    "svg.fonttype": "none",
}


def bars(
    out: Path,
    title: str,
    unit: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Mean | None]],
    ideal: Sequence[float | None] | None = None,
) -> None:
    """Groups of bars with confidence intervals, one bar a series; `ideal` draws a line
    across each group at what was due. `out` without a suffix."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=PANEL)
        _grouped(axes, groups, series)
        for g, rate in enumerate(ideal or ()):
            if rate is not None:
                label = "ideal" if g == 0 else "_"
                axes.hlines(rate, g - 0.45, g + 0.45, colors="black", linestyles="--", label=label)
        _finish(axes, title, unit)
        save(out)
        plt.close(figure)


def panels(
    out: Path,
    title: str,
    unit: str,
    groups: Sequence[str],
    beside: Mapping[str, Mapping[str, Sequence[Mean | None]]],
    due: Mapping[str, float],
) -> None:
    """One panel of grouped bars for each entry of `beside`, all to one scale; `due` draws a
    line in its series' colour at what that series was promised. `out` without a suffix."""
    with plt.rc_context(_STYLE):
        width, height = PANEL
        columns = min(2, len(beside))
        rows = -(-len(beside) // columns)
        figure, grid = plt.subplots(
            rows,
            columns,
            figsize=(width * columns, height * rows),
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        for axes, (name, series) in zip(grid.flat, beside.items(), strict=False):
            _grouped(axes, groups, series)
            for i, label in enumerate(series):
                axes.axhline(due[label], color=COLOURS[i], linestyle="--", linewidth=1)
            axes.set_title(name, loc="left", fontsize=10)
        for axes in grid[:, 0]:
            axes.set_ylabel(unit)
        grid[0, -1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        figure.suptitle(title, x=0.07, ha="left", fontsize=12)
        figure.tight_layout()
        save(out)
        plt.close(figure)


def boxes(
    out: Path,
    title: str,
    unit: str,
    groups: Sequence[str],
    beside: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
) -> None:
    """One panel of box plots for each entry of `beside`, all to one logarithmic scale: a box a
    series in each group, from quartile to quartile with the median; whiskers reach the last value
    within 1.5 boxes, and what lies beyond is a point. `out` without a suffix."""
    with plt.rc_context(_STYLE):
        width, height = PANEL
        figure, rows = plt.subplots(
            len(beside),
            1,
            figsize=(width, height * len(beside)),
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        for axes, (name, series) in zip(rows[:, 0], beside.items(), strict=True):
            room = 0.8 / len(series)
            for i, (label, values) in enumerate(series.items()):
                colour = COLOURS[i % len(COLOURS)]
                drawn = axes.boxplot(
                    values,
                    positions=[g - 0.4 + room * (i + 0.5) for g in range(len(groups))],
                    widths=0.8 * room,
                    patch_artist=True,
                    manage_ticks=False,
                    boxprops={"facecolor": colour, "linewidth": 0.6},
                    medianprops={"color": "black"},
                    flierprops={"marker": ".", "markersize": 3, "markeredgecolor": colour},
                )
                drawn["boxes"][0].set_label(label)
            axes.set(yscale="log", ylabel=unit)
            axes.set_xticks(range(len(groups)), groups)
            axes.set_title(name, loc="left", fontsize=10)
        rows[0, 0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        figure.suptitle(title, x=0.07, ha="left", fontsize=12)
        figure.tight_layout()
        save(out)
        plt.close(figure)


def lines(
    out: Path,
    title: str,
    x_label: str,
    unit: str,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    log: bool = False,
) -> None:
    """One line a series of (x, y), with `log` over logarithms of both. `out` without a suffix."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=PANEL)
        for i, (label, (x, y)) in enumerate(series.items()):
            axes.plot(x, y, label=label, color=COLOURS[i % len(COLOURS)], linewidth=1.4)
        axes.set_xlabel(x_label)
        _finish(axes, title, unit)
        if log:
            axes.set(xscale="log", yscale="log")
        save(out)
        plt.close(figure)


def timelines(
    out: Path,
    title: str,
    unit: str,
    beside: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
    due: Mapping[str, float],
) -> None:
    """One panel of lines over seconds for each entry of `beside`, all to one scale; `due` draws
    a line in its series' colour at what that series was promised. `out` without a suffix."""
    with plt.rc_context(_STYLE):
        width, height = PANEL
        figure, row = plt.subplots(
            1, len(beside), figsize=(width * len(beside), height), sharey=True, squeeze=False
        )
        for axes, (name, series) in zip(row[0], beside.items(), strict=True):
            for i, (label, (x, y)) in enumerate(series.items()):
                axes.plot(x, y, label=label, color=COLOURS[i], linewidth=1.4)
                promised = f"{label}, promised"
                axes.axhline(
                    due[label], label=promised, color=COLOURS[i], linestyle="--", linewidth=1
                )
            axes.set_title(name, loc="left", fontsize=10)
            axes.set_xlabel("seconds")
        row[0, 0].set_ylabel(unit)
        row[0, 0].set_ylim(bottom=0)
        row[0, -1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        figure.suptitle(title, x=0.07, ha="left", fontsize=12)
        figure.tight_layout()
        save(out)
        plt.close(figure)


def save(out: Path) -> None:
    """The current figure as `out`.svg and `out`.png."""
    out.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(out.with_suffix(".svg"), metadata={"Date": None})
    plt.savefig(out.with_suffix(".png"), dpi=PNG_DPI)


def _grouped(
    axes: Axes, groups: Sequence[str], series: Mapping[str, Sequence[Mean | None]]
) -> None:
    """Bars with confidence intervals, side by side within each group."""
    width = 0.8 / len(series)
    for i, (label, means) in enumerate(series.items()):
        shown = [(g, m) for g, m in enumerate(means) if m is not None]
        axes.bar(
            [g - 0.4 + width * (i + 0.5) for g, _ in shown],
            [m.value for _, m in shown],
            width,
            yerr=[math.nan if m.half_width is None else m.half_width for _, m in shown],
            capsize=2,
            label=label,
            color=COLOURS[i % len(COLOURS)],
        )
    axes.set_xticks(range(len(groups)), groups)


def _finish(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
