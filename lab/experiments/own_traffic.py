"""An endpoint's ping and short requests beside its own connections: simulated.

The scenario is `sim/src/scenario/own_traffic.rs`, which says what is measured and how.
"""

from __future__ import annotations

from pathlib import Path

from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = "an endpoint's ping and requests beside its own 1, 10, 100 connections, simulated"

#: Simulated seconds of each cell.
SECONDS = 3


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: the same seed gives the same, bit for bit."""
    return play("own-traffic", quick, SECONDS)
