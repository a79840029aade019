"""Gatekeeper's figure 7: a shuffle job beside a UDP flood a pair; see `lab.figure6`.

Lending alone fails here: TCP backs off where a flood has filled the wire before it, which
the scheduler takes for less demand and lends again.
"""

from __future__ import annotations

from pathlib import Path

from lab import figure6, wire
from lab.figure6 import Figure
from lab.net import Lab
from lab.report import Report

SUMMARY = "Gatekeeper's figure 7: a shuffle job on 26 hosts beside a UDP flood a pair"

FIGURE = Figure(
    name="gatekeeper-fig7",
    title="A shuffle job beside a UDP flood a pair",
    neighbour=figure6.udp,
    protocol=wire.UDP,
    alone_percent=75,
)


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays all cells, peers in turn, and judges them."""
    return figure6.play(FIGURE, lab, quick, out)
