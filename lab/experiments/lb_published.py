"""The published experiments at their own numbers, by policy: simulated.

The scenario is `sim/src/scenario/reproduced.rs`, which says what is measured and how.
"""

from __future__ import annotations

from pathlib import Path

from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = "the published experiments at their own numbers, simulated: refusals and means by policy"

#: Runs of each cell.
SECONDS = 4


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: the same seed gives the same, bit for bit."""
    return play("lb-published", quick, SECONDS)
