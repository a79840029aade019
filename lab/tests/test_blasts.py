"""When a victim counts as restored; and the testbed of blasts, live."""

from __future__ import annotations

import pytest

from lab.blasts import SPAN_ROWS, Blasted, lost, restored_s, topology
from lab.experiments import convergence_live

ROW_S = 0.005
DUE = 1000.0


def rows(*stretches: tuple[int, float]) -> list[float]:
    """So many rows of so many bytes."""
    return [nbytes for count, nbytes in stretches for _ in range(count)]


def test_restored_from_the_first_row_after_the_last_short_one() -> None:
    arrivals = rows((20, DUE), (3, 400), (1, DUE), (2, 600), (40, DUE))
    begin_s, end_s = 20 * ROW_S, 66 * ROW_S
    assert restored_s(arrivals, ROW_S, begin_s, end_s, DUE) == pytest.approx(6 * ROW_S)
    assert lost(arrivals, ROW_S, begin_s, end_s, DUE) == pytest.approx(2.6 / 46)


def test_a_victim_that_nothing_harms_is_restored_at_once() -> None:
    assert restored_s(rows((60, DUE)), ROW_S, 0.1, 0.3, DUE) == 0.0


def test_jitter_between_rows_is_no_harm() -> None:
    arrivals = [DUE * (1.05 if at % 2 else 0.95) for at in range(60)]
    # An odd number of rows is a little short: by 1 %, and no more.
    assert SPAN_ROWS % 2 == 1
    assert restored_s(arrivals, ROW_S, 0.1, 0.3, DUE) == pytest.approx(0.0, abs=ROW_S)


def test_a_victim_that_is_short_at_the_end_never_was_restored() -> None:
    assert restored_s(rows((20, DUE), (40, 500)), ROW_S, 0.1, 0.3, DUE) is None
    short_again = rows((50, DUE), (10, 500))
    assert restored_s(short_again, ROW_S, 0.1, 0.3, DUE) is None


def test_every_sender_has_a_host_of_its_own() -> None:
    shape = topology(4)
    assert [h.name for h in shape.hosts] == ["h1", "h2", "h3", "h4", "h5", "h6"]
    assert [e.host for e in shape.endpoints if e.tenant == "B"] == ["h1", "h3", "h4", "h5", "h6"]


def test_the_median_counts_and_who_never_was_back_is_last() -> None:
    played = [Blasted(1, back, 0.0) for back in (0.005, None, 0.015)]
    assert convergence_live.back_ms(played) == pytest.approx(15.0)
    assert convergence_live.back_ms([Blasted(1, None, 0.5)] * 3) is None
    late, kept = convergence_live.claims(1, played, 98.0)
    assert late.holds
    assert not kept.holds
    never, _ = convergence_live.claims(1, [Blasted(1, None, 0.5)], 100.0)
    assert not never.holds
