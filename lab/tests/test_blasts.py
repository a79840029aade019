"""When a victim counts as restored; and the testbed of blasts, live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lab.blasts import (
    FLOOD,
    FLOODS,
    LAG_LIMIT_US,
    LINKS_BPS,
    NONE,
    PACED,
    PROMISED,
    Blasted,
    Load,
    Rows,
    span_rows,
    topology,
)
from lab.experiments import convergence_live
from lab.machine import BUSY_LIMIT

ROW_S = 0.005
SPAN_ROWS = 5
DUE = 1000.0


def rows(*stretches: tuple[int, float]) -> Rows:
    """So many rows of which so many bytes arrived; all were sent at the same pace."""
    arrived = [nbytes for count, nbytes in stretches for _ in range(count)]
    return Rows([DUE] * len(arrived), arrived, SPAN_ROWS, ROW_S)


def test_restored_from_the_first_row_after_the_last_short_one() -> None:
    arrivals = rows((20, DUE), (3, 400), (1, DUE), (2, 600), (40, DUE))
    begin_s, end_s = 20 * ROW_S, 66 * ROW_S
    assert arrivals.restored_s(begin_s, end_s) == pytest.approx(6 * ROW_S)
    assert arrivals.lost(begin_s, end_s) == pytest.approx(2.6 / 46)
    # Six spans begin at or before the last short row.
    assert arrivals.whole(begin_s, end_s) == pytest.approx(1 - 6 / (46 - SPAN_ROWS + 1))


def test_a_victim_that_nothing_harms_is_restored_at_once() -> None:
    assert rows((60, DUE)).restored_s(0.1, 0.3) == 0.0
    assert rows((60, DUE)).whole(0.1, 0.3) == 1.0


def test_a_datagram_lost_now_and_then_is_no_harm_and_two_at_once_are() -> None:
    one = rows((30, DUE), (1, 0.96 * DUE), (30, DUE))
    assert one.restored_s(0.1, 0.3) == 0.0
    assert one.lost(0.1, 0.3) > 0
    two = rows((30, DUE), (1, 0.92 * DUE), (30, DUE))
    assert two.restored_s(0.1, 0.3) == pytest.approx(31 * ROW_S - 0.1)


def test_a_victim_that_is_short_at_the_end_never_was_restored() -> None:
    assert rows((20, DUE), (40, 500)).restored_s(0.1, 0.3) is None
    assert rows((50, DUE), (10, 500)).restored_s(0.1, 0.3) is None


def test_what_was_not_sent_is_not_lost_but_the_senders_fault() -> None:
    stalled = Rows([DUE] * 30 + [0.0] * 10 + [DUE] * 20, [DUE] * 30 + [0.0] * 10 + [DUE] * 20, 1)
    assert stalled.restored_s(0.1, 0.3) == 0.0
    assert stalled.lost(0.1, 0.3) == 0
    assert stalled.paced(DUE, 0.1, 0.3) == pytest.approx(0.75)


def load(**changes: Any) -> Load:  # noqa: ANN401 - any field's value
    usual = Load(0.4, {"h1": 0.3, "h2": 0.2}, {"h1": 90, "h2": 80}, {"h1": 2000, "h2": 900})
    return replace(usual, **changes)


def test_a_blast_is_bound_by_the_machine_or_by_any_worker() -> None:
    assert load().bound() is None, "the longest lags of all do not bind"
    assert "machine" in str(load(idle=0.01).bound())
    assert "h2" in str(load(busy={"h1": 0.3, "h2": BUSY_LIMIT + 0.01}).bound())
    assert "h1" in str(load(lag_p99_us={"h1": LAG_LIMIT_US + 1, "h2": 80}).bound())


def test_guarantees_and_headroom_fit_the_link_and_the_control_does_not_contend() -> None:
    assert sum(PROMISED.values()) + 0.005 + 0.02 < 1
    assert PROMISED["A"] + FLOODS[PACED] < 0.97
    assert set(convergence_live.SENDERS) == set(LINKS_BPS)


def test_windows_are_of_5_ms_at_1_gbit_and_longer_where_those_have_few_datagrams() -> None:
    assert LINKS_BPS[1] == 10**9
    assert {senders: span_rows(senders) for senders in LINKS_BPS} == {1: 1, 4: 2}


def test_every_sender_has_a_host_of_its_own() -> None:
    shape = topology(4)
    assert [h.name for h in shape.hosts] == ["h1", "h2", "h3", "h4", "h5", "h6"]
    assert [e.host for e in shape.endpoints if e.tenant == "B"] == ["h1", "h3", "h4", "h5", "h6"]


def blasted(
    restored_s: float | None, kind: str = FLOOD, whole: float = 1.0, bound: str | None = None
) -> Blasted:
    return Blasted(kind, 1, restored_s, 0.0, whole, 1.0, load(), bound)


CONTROLS = [blasted(0.0, NONE), blasted(0.0, PACED)]


def test_the_median_counts_and_who_never_was_back_is_last() -> None:
    played = [blasted(back) for back in (0.005, None, 0.015)]
    assert convergence_live.back_ms(played) == pytest.approx(15.0)
    assert convergence_live.back_ms([blasted(None)] * 3) is None
    whole, late, kept = convergence_live.claims(1, [*CONTROLS, *played], [97.0, 99.0])
    assert whole.holds
    assert late.holds
    assert not kept.holds
    _, never, _ = convergence_live.claims(1, [*CONTROLS, blasted(None)], [100.0])
    assert not never.holds


def test_nothing_is_said_where_a_control_is_short_or_no_blast_counts() -> None:
    short = [blasted(0.0, NONE), blasted(0.1, PACED, whole=0.99)]
    whole, back, _ = convergence_live.claims(1, [*short, blasted(0.005)], [100.0])
    assert not whole.holds
    assert back.value is None
    _, back, _ = convergence_live.claims(1, [*CONTROLS, blasted(0.005, bound="machine")], [100.0])
    assert back.value is None
