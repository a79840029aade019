"""Gatekeeper's figure 6: a shuffle job beside ten TCP connections a pair; see `lab.figure6`."""

from __future__ import annotations

from pathlib import Path

from lab import figure6, wire
from lab.figure6 import Figure
from lab.net import Lab
from lab.report import Report

SUMMARY = "Gatekeeper's figure 6: a shuffle job on 26 hosts beside ten TCP connections a pair"

FIGURE = Figure(
    name="gatekeeper-fig6",
    title="A shuffle job beside 10 TCP connections a pair",
    neighbour=figure6.connections,
    protocol=wire.TCP,
    alone_percent=None,
)


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays all cells, peers in turn, and judges them."""
    return figure6.play(FIGURE, lab, quick, out)
