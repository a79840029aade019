"""The published figure 3 of a load-balanced web service: 1 MB a connection, over a range of rates
(`lab.web_figure`). The published run has 1000 connections; here they follow the link.
"""

from __future__ import annotations

from functools import partial

from lab import web_figure
from lab.web_figure import Figure, Plan

SUMMARY = "the published figure 3: 1 MB a connection over two servers, by policy and rate"

_RATES = (90, 110, 500)

FIGURE = Figure(
    name="lb-fig3",
    size=1_000_000,
    calls=1,
    full=Plan(runs=10, connections=100, rates=_RATES),
    quick=Plan(runs=1, connections=30, rates=_RATES),
)

#: By the switch: Levada's own, or Open vSwitch.
PARTS = tuple(web_figure.PARTS)

#: All rates, and at each all policies and peers one after the other.
run = partial(web_figure.run, FIGURE)
