"""How the loop's lag over a time is cut out of two samples, and what counts as lost."""

from __future__ import annotations

from typing import Any

from lab.experiments.reload import LAG_US, Turn, claims, drops
from lab.stats import bucket_counts, quantile


def turn(what: str, lag_us: float, lost: int = 0, disturbed: str | None = None) -> Turn:
    return Turn({"what": what}, 1.0, lag_us, lag_us, lost, 2, 0.5, 0.0, None, disturbed)


def test_a_quantile_of_what_was_seen_between_two_samples() -> None:
    before = [[10, 100], [1000, 1]]
    after = [[10, 199], [20, 1], [1000, 1], [5000, 1]]
    grown = bucket_counts(before, after)
    assert grown == [(10, 99), (20, 1), (1000, 0), (5000, 1)]
    assert quantile(grown, 0.5) == 10
    assert quantile(grown, 0.99) == 20
    assert quantile(grown, 1.0) == 5000
    assert quantile([], 0.99) == 0


def test_drops_are_those_of_the_tenant_that_was_there_and_of_links() -> None:
    def endpoint(**reasons: int) -> dict[str, Any]:
        return {"drops": reasons}

    many = {"name": "many", "endpoints": [endpoint(spoofed=7)]}
    own = {"name": "a", "endpoints": [endpoint(down=1, aqm=2), endpoint()]}
    link = {"a": {"drops": 3}, "b": {"drops": 0}}
    assert drops({"switches": [{"tenants": [own, many]}], "links": [link]}) == 6


def test_claims_hold_where_nothing_is_lost_and_the_loop_is_in_time() -> None:
    good = [turn("added", 50), turn("nothing", 40), turn("removed", 60)]
    assert all(c.holds for c in claims(good, 0, 1))
    assert [c.holds for c in claims(good, 1, 1)] == [True, False, True, True]
    late = [turn("added", LAG_US + 1), turn("removed", 60, lost=1)]
    assert [c.holds for c in claims(late, 0, 1)] == [False, True, False, True]
    # What was disturbed says nothing about the lag; what was lost is lost all the same.
    disturbed = [turn("added", 50, lost=1, disturbed="others"), turn("removed", 60)]
    assert [c.holds for c in claims(disturbed, 0, 1)] == [False, True, False, True]
