"""NetPIPE (NPtcp): throughput and latency of one TCP connection over message size, as ping-pong.

NetPIPE 3.7.2, Debian's netpipe-tcp. Its three columns are bytes, Mbit/s of 2^20 bits, and seconds
one way. `-p 0` leaves out the sizes beside each size, `-u` is the largest message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.net import Failed
from lab.workload import Guest

#: NetPIPE's Mbit.
MBIT = 1 << 20
#: The largest message of the published curves, in bytes.
LARGEST = 8 << 20
#: NPtcp ends by itself after this, whatever happens.
LONGEST_S = 300


@dataclass(frozen=True)
class Point:
    """A message size: payload rate, and the time that one message takes."""

    nbytes: int
    bps: float
    seconds: float


def play(src: Guest, dst: Guest, file: Path, largest: int = LARGEST) -> list[Point]:
    """The curve between two guests."""
    limit = ("timeout", str(LONGEST_S), "NPtcp", "-p", "0", "-u", str(largest))
    receiver = dst.namespace.spawn("netpipe-receiver", *limit)
    receiver.wait_for(lambda: _listens(dst), "a listening NPtcp")
    transmitter = src.namespace.spawn("netpipe", *limit, "-h", dst.address, "-o", str(file))
    if transmitter.popen.wait(LONGEST_S + 5) != 0:
        raise Failed(f"NPtcp failed: {transmitter.output()[-500:]}")
    receiver.stop()
    return parse(file.read_text())


def _listens(guest: Guest) -> bool:
    return ":5002 " in guest.namespace.run("ss", "-Hltn")


def parse(text: str) -> list[Point]:
    """What NPtcp wrote into its file."""
    points = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 3:
            points.append(Point(int(fields[0]), float(fields[1]) * MBIT, float(fields[2])))
    return points


def best(points: Sequence[Point]) -> float:
    """The highest payload rate of a curve, in bit/s."""
    return max((p.bps for p in points), default=0.0)


def plateau(points: Sequence[Point], least: int = 1 << 20) -> float:
    """The payload rate of large messages, the median of those of `least` bytes and more: what
    token buckets let through at once counts little there."""
    rates = sorted(p.bps for p in points if p.nbytes >= least)
    return rates[len(rates) // 2] if rates else 0.0
