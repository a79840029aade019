"""Held acknowledgements are judged beside `dctcp` in the same run, and beside nothing where that
loses nothing."""

from __future__ import annotations

import pytest

from lab.incast_live import Cell, claims, text


def cells(again: int, use: float, dctcp_again: int = 1000) -> list[Cell]:
    return [
        Cell("legacy", 0.95, 3000, 20),
        Cell("dctcp", 0.97, dctcp_again, 1),
        Cell("held", use, again, 0),
    ]


@pytest.mark.parametrize(
    ("again", "use", "hold"),
    [(20, 0.98, [True, True]), (21, 0.98, [False, True]), (0, 0.979, [True, False])],
)
def test_held_sends_nearly_nothing_again_and_fills_the_link(
    again: int, use: float, hold: list[bool]
) -> None:
    assert [claim.holds for claim in claims(cells(again, use))] == hold


def test_where_dctcp_sends_nothing_again_there_is_nothing_to_show() -> None:
    assert [claim.holds for claim in claims(cells(0, 0.99, dctcp_again=0))] == [False, True]


def test_all_treatments_are_in_the_table() -> None:
    lines = text(cells(7, 0.984)).splitlines()
    assert any(line.split() == ["held", "98.4", "%", "7", "0"] for line in lines)
