"""What the bonding experiment makes of Multipath TCP beside the bond."""

from __future__ import annotations

from lab.experiments.bonding_peers import (
    ALONE,
    BOND,
    MULTIPATH,
    PLAIN,
    Found,
    Way,
    claims,
    name_of,
    percent,
)


def found(way: Way, mbit: float, turn: int = 0) -> Found:
    return Found(way, turn, mbit * 1e6, 1e-4)


def test_parts_are_of_the_same_round() -> None:
    slow = [found(PLAIN, 47, 1), found(MULTIPATH, 80, 1)]
    both = [found(PLAIN, 94, 0), found(MULTIPATH, 188, 0), *slow]
    assert round(percent(both, MULTIPATH, PLAIN) or 0, 1) == 92.6
    assert percent([found(MULTIPATH, 80)], MULTIPATH, PLAIN) is None


def test_the_bond_is_judged_by_its_own_link_and_its_peer_by_using_both() -> None:
    base = [found(PLAIN, 94), found(MULTIPATH, 160), found(ALONE, 94)]
    assert [c.holds for c in claims([*base, found(BOND, 186)])] == [True, True]
    assert [c.holds for c in claims([*base, found(BOND, 170)])] == [False, True]
    one_subflow = [found(PLAIN, 94), found(MULTIPATH, 92), found(ALONE, 94)]
    assert [c.holds for c in claims([*one_subflow, found(BOND, 186)])] == [True, False]
    assert [c.holds for c in claims([])] == [False, False]
    assert name_of(BOND) == "Levada, 2 links"
