"""Floods of SYNs for one tenant's service: what another tenant has of its own service meanwhile.

The scenes of `attacks` that flood a service. First a flood of more than ten times the table of
connections, from an endpoint and from outside by way of a director (`lab.attacked`), while the
victim makes new connections to its own service and keeps some open. A full run has 3000 new ones a
flood, of which 99.9 % can be judged: where none of 3000 fails, no more than 0.1 % do, with 95 %
confidence. Pairs of windows and their rules are those of `attacks`, but longer. Then floods by
endpoints of both tenants for what is remembered: clients that stay, copies of SYNs, and who waits
(`lab.remembered`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lab import attacked, machine, remembered
from lab.attacked import SMALL_TABLE, Scene
from lab.experiments.attacks import (
    Plan,
    Played,
    play_services,
    play_windows,
    share_processors,
    visited,
)
from lab.net import Lab
from lab.programs import program
from lab.report import Claim, Report, at_least

SUMMARY = "floods of SYNs for a tenant's service: another tenant's new connections and open ones"

FULL = Plan(pairs=3, window_s=19.5, budget_s=600.0)
QUICK = Plan(pairs=1, window_s=4.0, budget_s=60.0)
#: New connections that a flood has to be beside, in a full run and in a quick one.
LEAST_VISITS = {False: 3000, True: 250}
#: Of the table of connections, what makes a flood.
TIMES_TABLE = 10


def served(scenes: tuple[Scene, ...]) -> list[Scene]:
    """The scenes in which the victim visits its own service, with the attacks beside which it
    does."""
    left = [replace(s, attacks=tuple(a for a in s.attacks if a.is_served)) for s in scenes]
    return [scene for scene in left if scene.attacks]


SCENES = served(attacked.SCENES)


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Floods beside a victim's service, then those for what is remembered."""
    plan = QUICK if quick else FULL
    core = share_processors(lab)
    report = Report("lb-flood", quick)
    report.machine = machine.describe(["ip", "ping", str(program())])
    played = play_windows(lab, plan, core, report, SCENES)
    report.claims += [enough(p, LEAST_VISITS[quick]) for p in played]
    play_services(lab, plan, core, report, remembered.FLOODS)
    return report


def enough(p: Played, least: int) -> Claim:
    """That the victim made so many new connections beside a flood: in the pairs, disturbed ones
    too, in which more was sent than `TIMES_TABLE` tables."""
    floods = [pair for pair in p.pairs if pair.sent["frames"] >= TIMES_TABLE * SMALL_TABLE]
    _, asked, _ = visited(floods)
    name = f"{p.attack.name}: new connections beside {TIMES_TABLE} x the table"
    return at_least(name, asked, "connections", least)
