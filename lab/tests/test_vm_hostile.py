"""The judgement of `vm-hostile`, which needs no machine."""

from __future__ import annotations

from lab.experiments.vm_hostile import Pair, claims


def pair(kept: float, disturbed: str | None = None, rings: int = 10_000) -> Pair:
    return Pair({"pair": 1}, 8e6, 8e6 * kept, rings, 5, 0.5, disturbed)


def test_the_median_of_pairs_that_count_is_judged() -> None:
    good = [pair(1.0), pair(0.995), pair(0.2), pair(0.1, "busy")]
    assert [c.holds for c in claims(good, 8, True, 0)] == [True, True, True]
    # Three of five are too few.
    assert claims([*good, pair(0.1, "busy")], 8, True, 0)[0].value is None
    assert not claims([pair(0.98), pair(0.98), pair(1.0)], 8, True, 0)[0].holds
    assert not claims([pair(1.0, "busy")], 8, True, 0)[0].holds


def test_harm_that_lasts_is_in_the_quiet_windows_too_and_does_not_hold() -> None:
    harmed = Pair({"pair": 2}, 2e6, 2e6, 10_000, 5, 0.5, None)
    assert [c.holds for c in claims([pair(1.0), harmed, harmed], 8, True, 0)] == [False, True, True]
    assert claims([pair(1.0), harmed], 8, True, 0)[0].value == 0.25
    # Who never had its rate shows nothing, and one that others disturbed says nothing.
    assert claims([harmed, harmed], 8, True, 0)[0].value is None
    busy = Pair({"pair": 2}, 2e6, 2e6, 10_000, 5, 0.5, "others")
    assert claims([pair(1.0), pair(1.0), busy], 8, True, 0)[0].holds


def test_a_quiet_window_without_data_is_no_measure() -> None:
    dead = Pair({"pair": 1}, 0.0, 0.0, 10_000, 5, 0.5, None)
    assert not claims([dead], 8, True, 0)[0].holds
    assert dead.as_row()["disturbed"] == "0.0 % of the rate without an attack"


def test_a_switch_that_ends_or_panics_or_was_not_attacked_does_not_hold() -> None:
    good = [pair(1.0)]
    assert not claims(good, 8, False, 0)[2].holds
    assert not claims(good, 8, True, 1)[2].holds
    assert not claims([pair(1.0, rings=0)], 8, True, 0)[1].holds
