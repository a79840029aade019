"""How long a blast from 1, 4 and 15 other machines keeps a victim from its guarantee: simulated.

The scenario is `sim/src/scenario/convergence.rs`, which says what is measured and how.
"""

from __future__ import annotations

from pathlib import Path

from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = "a blast from other machines, simulated: time until a victim has its guarantee again"

#: Simulated seconds of each cell.
SECONDS = 4


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: the same seed gives the same, bit for bit."""
    return play("convergence", quick, SECONDS)
