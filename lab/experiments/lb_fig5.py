"""The published figure 5 of a load-balanced web service: 100 MB a connection, over a range of rates
(`lab.web_figure`). The published run has 100 connections; here they follow the link. The answers
are made smaller as well, so that a run lasts 2.6 s and not 85.
"""

from __future__ import annotations

from functools import partial

from lab import web_figure
from lab.web_figure import Figure, Plan

SUMMARY = "the published figure 5: 100 MB a connection, made smaller, by policy and rate"

_RATES = (1, 10, 100)

FIGURE = Figure(
    name="lb-fig5",
    size=100_000_000,
    calls=1,
    full=Plan(runs=10, connections=10, rates=_RATES),
    quick=Plan(runs=1, connections=10, rates=_RATES),
    size_factor=0.03,
)

#: By the switch: Levada's own, or Open vSwitch.
PARTS = tuple(web_figure.PARTS)

#: All rates, and at each all policies and peers one after the other.
run = partial(web_figure.run, FIGURE)
