"""The floods of services are those of `attacks`, and long enough to judge what is promised."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from lab import attacked, remembered
from lab.attacked import SMALL_TABLE, VISITS_PER_S
from lab.experiments import lb_flood
from lab.experiments.attacks import LEAD_S, LONGEST_S, SERVED_PERCENT, SLACK_S, Plan, Played
from lab.experiments.lb_flood import FULL, LEAST_VISITS, QUICK, SCENES, enough
from lab.net import Lab
from lab.report import Report
from lab.tests.test_attacks import RATE_BPS, pair, window
from lab.windows import Pair


def test_the_floods_are_those_beside_which_the_victim_visits_its_service() -> None:
    names = [attack.name for scene in SCENES for attack in scene.attacks]
    assert names == ["SYNs of many addresses", "SYNs turned around"]
    assert all(scene.connections == SMALL_TABLE for scene in SCENES)
    # Nothing else of a scene is changed.
    by_name = {scene.name: scene for scene in attacked.SCENES}
    assert all(replace(s, attacks=by_name[s.name].attacks) == by_name[s.name] for s in SCENES)
    assert set(remembered.FLOODS) < set(remembered.ATTACKS)


@pytest.mark.parametrize(("plan", "quick"), [(FULL, False), (QUICK, True)])
def test_a_run_has_as_many_visits_as_its_claim_needs(plan: Plan, quick: bool) -> None:
    for attack in (attack for scene in SCENES for attack in scene.attacks):
        seconds = math.ceil(attack.settle_s + plan.window_s + 2 * SLACK_S)
        # The last one may come late.
        assert plan.pairs * (seconds * VISITS_PER_S - 1) >= LEAST_VISITS[quick]
        # The victim's stream lives as long as a pair.
        assert LEAD_S + plan.window_s + seconds < 0.75 * LONGEST_S
        # Ten tables are sent by one who gets a tenth of what it asks for, in a full run.
        part = 1 if quick else 0.1
        assert part * attacked.UNBOUNDED_PER_S * seconds > lb_flood.TIMES_TABLE * SMALL_TABLE
    # Where none of so many fails, with 95 % confidence more than this succeed.
    assert 100 * 0.05 ** (1 / LEAST_VISITS[False]) > SERVED_PERCENT - 0.001


def flooded(frames: int, visits: int, failed: int = 0) -> Pair:
    told = {"answered": {"far": visits - failed}, "failed": {"TimeoutError": failed}}
    return pair(window(disturbed="others"), frames=frames, visits={**told, "kept_failed": 0})


def test_only_visits_beside_a_flood_of_ten_tables_are_counted() -> None:
    attack = SCENES[0].attacks[0]
    many, few = 10 * SMALL_TABLE, 10 * SMALL_TABLE - 1

    def judged(*pairs: Pair) -> tuple[float | None, bool]:
        claim = enough(Played("services", attack, RATE_BPS, list(pairs)), 3000)
        return claim.value, claim.holds

    assert judged(*[flooded(many, 1000)] * 3) == (3000, True)
    # One that fails is one that was made.
    assert judged(*[flooded(many, 1000, failed=1)] * 3) == (3000, True)
    assert judged(flooded(few, 1000), *[flooded(many, 1000)] * 2) == (2000, False)
    assert judged() == (0, False)


def test_a_run_plays_both_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}

    def windows(lab: Lab, plan: Plan, core: int, report: Report, scenes: object) -> list[Played]:
        asked["scenes"], asked["plan"] = scenes, plan
        many = [flooded(10 * SMALL_TABLE, 300)]
        return [Played(s.name, a, RATE_BPS, many) for s in SCENES for a in s.attacks]

    def services(lab: Lab, plan: Plan, core: int, report: Report, attacks: object) -> None:
        asked["attacks"] = attacks

    monkeypatch.setattr(lb_flood, "play_windows", windows)
    monkeypatch.setattr(lb_flood, "play_services", services)
    monkeypatch.setattr(lb_flood, "share_processors", lambda _: 0)
    monkeypatch.setattr(lb_flood, "program", lambda: "levada")
    monkeypatch.setattr("lab.machine.describe", lambda tools: {})
    report = lb_flood.run(Lab(), True, tmp_path)
    assert asked == {"scenes": SCENES, "plan": QUICK, "attacks": remembered.FLOODS}
    assert [claim.holds for claim in report.claims] == [True, True]
