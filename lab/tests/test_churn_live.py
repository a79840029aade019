"""What the live churn claims: the worst phase counts, and what was off its candidates is allowed
after kills only."""

from __future__ import annotations

from dataclasses import replace

from lab.churn_live import (
    CHANGED,
    CONNECTIONS,
    KEPT,
    KILLED,
    PHASE_S,
    REPLACED,
    WAYS,
    Cell,
    Way,
    claims,
    shown,
)


def cell(kind: str, broken: int, kept: int = 0, off: int = 0) -> Cell:
    how = {"TimeoutError": broken} if broken else {}
    return Cell(Way(kind, "p2c"), 5, 1000, how, kept, off, 0, 0.1)


def held(cells: list[Cell]) -> list[bool]:
    return [claim.holds for claim in claims(cells, quick=True)]


def test_nothing_may_be_broken_but_what_a_kill_could_not_keep() -> None:
    good = [cell(CHANGED, 0), cell(REPLACED, 0, off=7), cell(KILLED, 2, kept=1, off=3)]
    assert held(good) == [True, True, True]
    assert "TimeoutError 2" in shown(good)
    assert held([*good, cell(KILLED, 2, kept=1, off=2)]) == [True, True, False]
    assert held([*good, cell(REPLACED, 1, off=9)]) == [True, False, True]
    assert held([*good, cell(CHANGED, 0, kept=1, off=9)]) == [False, True, True]


def test_without_phases_nothing_holds_and_a_whole_run_is_long_enough() -> None:
    assert held([]) == [False, False, False]
    whole = claims([cell(CHANGED, 0)], quick=False)
    assert not whole[-1].holds and whole[-1].value == 5 * KEPT
    assert not whole[-2].holds and whole[-2].value == 1000


def test_connections_that_no_event_met_are_not_enough() -> None:
    seldom = replace(cell(CHANGED, 0), connections=2 * CONNECTIONS, events=1)
    assert [claim.holds for claim in claims([seldom], quick=False)][-2:] == [True, False]
    # An event takes time: at most half a second, where the next comes 2.5 s later.
    often = replace(seldom, events=int(PHASE_S[False] / 3))
    assert claims([often] * len(WAYS), quick=False)[-1].holds
    # One that broke is open at no event.
    broken = replace(often, kept_broken=KEPT)
    assert broken.met == 0
