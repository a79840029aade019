"""SYNs are connections of their own with a right checksum, and rounds are judged by their ratio."""

from __future__ import annotations

import itertools
import struct

import pytest

from lab.experiments.openflow_rate import Cell, claims
from lab.setups import PORTS, SetUps, syns


def _sum(text: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(text) // 2}H", text))
    total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) + (total >> 16)


def test_syns_differ_and_are_right() -> None:
    made = syns("02:00:00:00:00:01", "02:00:00:00:00:02", "10.1.0.100", 80, "10.1.1")
    some = list(itertools.islice(made, PORTS + 3))
    ends = {(frame[26:30], frame[34:36]) for frame in some}
    assert len(ends) == len(some)
    assert some[0][26:30] == bytes([10, 1, 1, 1])
    assert some[-1][26:30] == bytes([10, 1, 1, 2])
    for frame in (some[0], some[-1]):
        assert len(frame) == 60
        pseudo = frame[26:34] + struct.pack("!HH", 6, 20)
        assert _sum(pseudo + frame[34:54]) == 0xFFFF
        assert _sum(frame[14:34]) == 0xFFFF


def _cell(way: str, run: int, per_s: int, packet_ins: int | None) -> Cell:
    made = SetUps(per_s, per_s, 0, 1.0)
    alone = None if way == "hash" else made
    controller_us = {"reactive": 20.0, "os-ken": 240.0, "hash": 0.0}[way]
    return Cell(way, run, made, alone, packet_ins, None, 100.0, controller_us, 0.0, None)


def test_the_median_round_is_judged_and_any_frame_of_hash() -> None:
    cells = [
        *(_cell("reactive", n, rate, rate) for n, rate in enumerate((1200, 1100, 900))),
        *(_cell("os-ken", n, 100, None) for n in range(3)),
        *(_cell("hash", n, 5000, 0) for n in range(3)),
    ]
    made = {claim.id: claim for claim in claims(cells)}
    assert made["reactive: set-ups a second"].value == 11
    assert made["reactive: set-ups a second of its own"].value == pytest.approx(12)
    assert all(claim.holds for claim in made.values())
    made = {c.id: c for c in claims([*cells, _cell("hash", 3, 0, 1)])}
    assert not made["hash: frames to the controller"].holds
    assert not made["hash: runs that set up connections"].holds
    assert not claims([])[0].holds
