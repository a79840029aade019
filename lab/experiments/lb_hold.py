"""Overload with and without `max_connections`: simulated.

The scenario is `sim/src/scenario/hold.rs`, which says what is measured and how.
"""

from __future__ import annotations

from pathlib import Path

from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = "the published workloads in overload, simulated: side by side, and held"

#: Each workload is as long as it was published.
SECONDS = 1


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: the same seed gives the same, bit for bit."""
    return play("lb-hold", quick, SECONDS)
