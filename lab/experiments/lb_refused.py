"""Refusals below the link's capacity: simulated.

The scenario is `sim/src/scenario/refused.rs`, which says what is measured and how.
"""

from __future__ import annotations

from pathlib import Path

from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = "the published workloads below the link's capacity, simulated: who is refused"

#: A run has so many times 250 000 connections.
SECONDS = 4


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: the same seed gives the same, bit for bit."""
    return play("lb-refused", quick, SECONDS)
