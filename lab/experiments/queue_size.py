"""The Gatekeeper paper's study of the ingress queue, for its queue and for ours: simulated.

The scenario is `sim/src/scenario/queue_size.rs`, which says what is measured and how.
"""

from __future__ import annotations

from pathlib import Path

from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = "256 TCP flows from 1 to 16 senders, simulated: what the ingress queue drops, by its size"

#: Simulated seconds of each cell.
SECONDS = 60


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: the same seed gives the same, bit for bit."""
    return play("queue-size", quick, SECONDS)
