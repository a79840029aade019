"""What the bonding experiment makes of NetPIPE in each mode."""

from __future__ import annotations

from lab.experiments import bonding, bonding_modes
from lab.experiments.bonding_modes import LARGE, MODES, ONE, Curve, claims, modes_table
from lab.netpipe import Point


def curves(rates: dict[str, float], rounds: int = 3) -> list[Curve]:
    points = {way: [Point(1, 1e6, 30e-6), Point(LARGE, bps, 0.1)] for way, bps in rates.items()}
    return [Curve(way, points[way]) for way in points for _ in range(rounds)]


def test_each_mode_is_played_and_judged() -> None:
    assert set(MODES) == {"active-backup", "balance-xor", "802.3ad", "broadcast", "balance-rr"}
    assert bonding.REPEATED["modes"][0] == bonding_modes.ROUNDS[1]
    good = {ONE: 94e6, **{mode: 94e6 * links for mode, links in MODES.items()}}
    assert [claim.holds for claim in claims(curves(good), 3)] == [True] * len(MODES)
    slow = {**good, "802.3ad": 90e6}
    assert [c.id for c in claims(curves(slow), 3) if not c.holds] == [
        "802.3ad: NetPIPE over 2 links, of 1 x one"
    ]
    assert "802.3ad" in modes_table(curves(good))


def test_without_curves_that_count_nothing_holds() -> None:
    assert not any(claim.holds for claim in claims([], 3))
    one_of_three = curves({ONE: 94e6, **dict.fromkeys(MODES, 188e6)}, rounds=1)
    assert not any(claim.holds for claim in claims(one_of_three, 3))
