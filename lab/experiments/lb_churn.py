"""Connections of a service while backends come and go and the switch is replaced: simulated.

The scenario is `sim/src/scenario/churn.rs`, which says what is done and what counts as broken.
"""

from __future__ import annotations

from pathlib import Path

from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = (
    "connections of a service while backends come and go and the switch is replaced, simulated"
)

#: A run has so many times 250 000 connections.
SECONDS = 4


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: the same seed gives the same, bit for bit."""
    return play("lb-churn", quick, SECONDS)
