"""What agents keep and say among a thousand hosts, and the shares they make: simulated.

The scenario is `sim/src/scenario/scale.rs`, which says what is measured and how.
"""

from __future__ import annotations

from pathlib import Path

from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = "a thousand hosts with 20 endpoints each, simulated: state, control traffic, shares"

#: Simulated seconds of each cell.
SECONDS = 2


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: the same seed gives the same, bit for bit."""
    return play("scale", quick, SECONDS)
