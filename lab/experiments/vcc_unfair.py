"""Legacy guests beside natives of ECN at one port: simulated.

The scenario is `sim/src/scenario/vcc_unfair.rs`, which says what is measured and how.
"""

from __future__ import annotations

from pathlib import Path

from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = "1, 5 and 9 of 10 flows of guests without ECN, simulated: whether each has its share"

#: Simulated seconds of each cell.
SECONDS, QUICK_SECONDS = 60, 5


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: the same seeds give the same, bit for bit."""
    return play("vcc-unfair", quick, SECONDS, QUICK_SECONDS)
