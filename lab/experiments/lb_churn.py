"""Connections of a service while backends come and go and the switch is replaced: simulated, then
live.

The scenario is `sim/src/scenario/churn.rs`, which says what is done and what counts as broken; live
it is `lab/churn_live.py`. A quick run takes two minutes, a whole one twelve.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lab import churn_live, machine
from lab.net import Lab
from lab.programs import program
from lab.report import Report
from lab.simulated import play

SUMMARY = "connections of a service while backends come and go and the switch is replaced or killed"

#: A row of the simulated run has so many times 85 000 connections.
SECONDS = 4


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Simulated once: the same seed gives the same, bit for bit. Live each way once."""
    report = play("lb-churn", quick, SECONDS)
    report.machine = machine.describe(["ip", str(program())])
    cells = []
    for way in churn_live.WAYS:
        cells.append(churn_live.play(lab, way, quick))
        print(f"{way.kind}, {way.policy}: {cells[-1]}", file=sys.stderr, flush=True)
    report.cells += [cell.as_row() for cell in cells]
    report.tables.append(churn_live.shown(cells))
    report.claims += churn_live.claims(cells, quick)
    return report
