"""Frames leave by each device in turn, and what is sent is what arrives."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import cast

import pytest

from lab.frames import ethernet
from lab.net import Lab, inside, missing_tools, veth
from lab.sender import Case, Outlet, send

ETHERTYPE = 0x88B5
needs_root = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(bool(missing_tools(["ip"])), reason="needs iproute2"),
]


def case(number: int) -> Case:
    frame = ethernet("02:00:00:00:00:01", f"02:00:00:00:00:1{number}", ETHERTYPE, bytes(46))
    return Case(f"frames of {number}", None, [frame])


class TestLive:
    pytestmark = needs_root

    def test_each_device_has_its_part_of_what_arrives(self) -> None:
        with Lab() as lab:
            space = lab.namespace("here")
            for n in range(3):
                veth(space, f"z{n}", space, f"peer{n}")
            before = [space.received(f"peer{n}").frames for n in range(3)]
            with inside(space.name):
                outlets = [Outlet(f"z{n}", [case(n)], batch=4) for n in range(3)]
            told = send(outlets, per_s=20_000, seconds=0.2)
            arrived = [space.received(f"peer{n}").frames - before[n] for n in range(3)]
            own = [sum(outlet.sent) for outlet in outlets]
            for outlet in outlets:
                outlet.close()
        assert told["refused"] == {}
        assert arrived == own
        assert sum(own) == told["frames"]
        assert max(own) - min(own) <= 4
        assert min(own) > 0


class _Counting(Outlet):
    """A device that takes all, 1000 bits each."""

    def __init__(self) -> None:
        self.turns = [(b"", Case("x", None, [b""]))]
        self.sent, self.refused, self._at, self._batch = [0], {}, 0, 1
        self.mean_bits = 1000

    def push(self) -> int:
        self.sent[0] += 1
        return 1


def test_what_was_late_is_made_up_for_no_faster_than_the_line() -> None:
    sent = send([_Counting()], per_s=1e6, seconds=0.2, line_bps=100_000)
    # 100 a second; one is on the line from the beginning.
    assert 1 <= cast(int, sent["frames"]) <= 21


def test_what_comes_again_in_a_round_lies_in_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = ctypes.create_string_buffer

    def counting(data: bytes) -> ctypes.Array[ctypes.c_char]:
        made.append(len(data))
        return real(data)

    monkeypatch.setattr("lab.sender.packet_socket", lambda device: _NoSocket())
    monkeypatch.setattr("lab.sender.ctypes.create_string_buffer", counting)
    outlet = Outlet("z0", [case(1)], batch=32)
    assert len(outlet.turns) == 32
    assert made == [len(outlet.turns[0][0])]


class _NoSocket:
    def setsockopt(self, *options: int) -> None:
        pass


def test_a_sender_ends_when_it_is_told_to() -> None:
    class Told(_Counting):
        def push(self) -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().push()

    before = signal.getsignal(signal.SIGTERM)
    try:
        sent = send([Told()], 1000, 60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert sent["frames"] == 1
