"""Many senders to one, with windows below two segments: simulated.

The scenario is `sim/src/scenario/vcc_incast.rs`, which says what is measured and how.
"""

from __future__ import annotations

from pathlib import Path

from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = "16 to 256 senders to one, simulated: retransmissions and use of the link"

#: Seeds: a quarter of a second is measured of each.
SECONDS, QUICK_SECONDS = 10, 2


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: the same seeds give the same, bit for bit."""
    return play("vcc-incast", quick, SECONDS, QUICK_SECONDS)
