"""Balancing by reports that get old: simulated.

The scenario is `sim/src/scenario/herd.rs`, which says what is measured and how.
"""

from __future__ import annotations

from pathlib import Path

from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = "reports that get old, simulated: the least reported, and corrected by what was sent"

#: A cell has so many times 250 000 connections.
SECONDS = 4


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: the same seed gives the same, bit for bit."""
    return play("lb-herd", quick, SECONDS)
