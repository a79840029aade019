"""Many senders to one, with windows below two segments: simulated, and live.

The simulated scenario is `sim/src/scenario/vcc_incast.rs`, which says what is measured and how; the
live cells are `lab.incast_live`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from lab import incast_live
from lab.net import Lab
from lab.report import Report
from lab.simulated import play

SUMMARY = "16 to 256 senders to one: retransmissions and use of the link, simulated; 64 live"

#: Seeds: a quarter of a second is measured of each.
SECONDS, QUICK_SECONDS = 10, 2


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays it once: what is simulated is the same each time, bit for bit."""
    report = play("vcc-incast", quick, SECONDS, QUICK_SECONDS)
    live = [incast_live.play(lab, treatment) for treatment in incast_live.TREATMENTS]
    report.cells += [{"labels": {"live": c.treatment}, "valid": True, **asdict(c)} for c in live]
    report.tables.append(incast_live.text(live))
    report.claims += incast_live.claims(live)
    return report
