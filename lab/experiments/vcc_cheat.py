"""A cheater among ten policed guests: simulated.

The scenario is `sim/src/scenario/vcc_cheat.rs`, which says what is measured and how.
"""

from __future__ import annotations

from pathlib import Path

from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = "one of ten guests cheats, simulated: what it gains"

#: Simulated seconds of each cell.
SECONDS, QUICK_SECONDS = 30, 5


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: the same seeds give the same, bit for bit."""
    return play("vcc-cheat", quick, SECONDS, QUICK_SECONDS)
