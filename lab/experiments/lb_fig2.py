"""The published figure 2 of a load-balanced web service: 20 requests of 10 KB a connection, over a
range of rates (`lab.web_figure`). The published run has 1000 connections; here they follow the
link.
"""

from __future__ import annotations

from functools import partial

from lab import web_figure
from lab.web_figure import Figure, Plan

SUMMARY = "the published figure 2: pages of 20 x 10 KB over two servers, by policy and rate"

_RATES = (100, 250, 500, 750, 1000)

FIGURE = Figure(
    name="lb-fig2",
    size=10_240,
    calls=20,
    full=Plan(runs=10, connections=100, rates=_RATES),
    quick=Plan(runs=1, connections=50, rates=(100, 500, 750, 1000)),
)

#: By the switch: Levada's own, or Open vSwitch.
PARTS = tuple(web_figure.PARTS)

#: All rates, and at each all policies and peers one after the other.
run = partial(web_figure.run, FIGURE)
