"""The published figure 4 of a load-balanced web service: how the times of 1 MB a connection are
distributed at 500 connections a second (`lab.web_figure`).
"""

from __future__ import annotations

from functools import partial

from lab import web_figure
from lab.web_figure import Figure, Plan

SUMMARY = "the published figure 4: the times of 1 MB a connection at 500/s, by policy"

_RATES = (500,)

FIGURE = Figure(
    name="lb-fig4",
    size=1_000_000,
    calls=1,
    full=Plan(runs=20, connections=100, rates=_RATES),
    quick=Plan(runs=1, connections=60, rates=_RATES),
)

#: By the switch: Levada's own, or Open vSwitch.
PARTS = tuple(web_figure.PARTS)

#: All rates, and at each all policies and peers one after the other.
run = partial(web_figure.run, FIGURE)
