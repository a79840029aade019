"""Mixed sizes over servers that share their time, by policy, against queueing theory: simulated.

The scenario is `sim/src/scenario/mixed.rs`, which says what is measured and how.
"""

from __future__ import annotations

from pathlib import Path

from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = "connections of mixed sizes, simulated: what each policy makes of them, and theory"

#: A cell has so many times 250 000 connections.
SECONDS = 4


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: the same seed gives the same, bit for bit."""
    return play("lb-mixed", quick, SECONDS)
