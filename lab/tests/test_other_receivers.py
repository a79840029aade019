"""The judge of a throttled sender's other traffic: made-up cells whose claims are known."""

from __future__ import annotations

import pytest

from lab import wire
from lab.cell import Cell
from lab.experiments.other_receivers import (
    FLOOD,
    LINK_BPS,
    PACED,
    PROMISED,
    TCP,
    UDP,
    claims,
    flows,
)
from lab.net import Received

WINDOW_S = 2.0


def cell(
    other: str,
    contended: bool,
    flooded: float,
    elsewhere: float,
    valid: bool = True,
    victim: float = PROMISED["A"],
) -> Cell:
    """A cell of `rate` in which a1, b1 and b4 got these parts of the link, in full frames."""
    parts = {"a1": victim if contended else 0.0, "b1": flooded, "b4": elsewhere}
    received = {}
    for name, part in parts.items():
        frames = round(part * LINK_BPS / 8 * WINDOW_S / wire.FULL_BYTES)
        received[name] = Received(frames * (wire.MTU_BYTES + wire.ETHERNET_BYTES), frames)
    return Cell(
        labels={"peer": "rate", "other": other, "contended": contended},
        window_s=WINDOW_S,
        goodput_bps={},
        flows={},
        wire={},
        idle=0.5,
        cores={},
        strangers=0.0,
        worker=None,
        bound=None,
        disturbed=None,
        valid=valid,
        received=received,
    )


def cells(held: float = PACED, flooded: float = 0.27, victim: float = PROMISED["A"]) -> list[Cell]:
    return [
        made
        for other in (UDP, TCP)
        for made in (
            cell(other, False, FLOOD, PACED),
            cell(other, True, flooded, held, victim=victim),
        )
    ]


def test_traffic_elsewhere_that_keeps_its_rate_holds() -> None:
    assert [c.holds for c in claims(cells())] == [True] * 6


def test_traffic_elsewhere_that_is_halved_is_found() -> None:
    judged = claims(cells(held=PACED / 2))
    assert [c.holds for c in judged] == [False, True, True] * 2
    assert judged[0].value == pytest.approx(50, rel=1e-2)


def test_a_flood_that_nobody_throttles_shows_nothing() -> None:
    assert [c.holds for c in claims(cells(flooded=FLOOD))] == [True, False, True] * 2


def test_a_victim_that_does_not_get_its_guarantee_is_found() -> None:
    assert [c.holds for c in claims(cells(victim=0.69))] == [True, True, False] * 2


def test_without_a_valid_cell_nothing_holds() -> None:
    made = [cell(UDP, False, FLOOD, PACED), cell(UDP, True, 0.27, PACED, valid=False)]
    assert [c.holds for c in claims(made)] == [False] * 6


def test_the_sender_alone_does_not_fill_its_own_link() -> None:
    assert FLOOD + PACED < 1
    assert FLOOD + PROMISED["A"] > 1, "toward the victim's host there is contention"
    assert [f.name for f in flows(UDP, contended=True)] == ["flood", "other", "victim"]
    assert [f.name for f in flows(TCP, contended=False)] == ["flood", "other"]
