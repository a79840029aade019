"""NetPIPE (NPtcp): throughput and latency of one TCP connection over message size, as ping-pong.

NetPIPE 3.7.2, Debian's netpipe-tcp. Its three columns are bytes, Mbit/s of 2^20 bits, and seconds
one way. `-p 0` leaves out the sizes beside each size, `-u` is the largest message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lab.guest import Machine
from lab.net import Failed, Process
from lab.workload import Guest

#: NetPIPE's Mbit.
MBIT = 1 << 20
#: The largest message of the published curves, in bytes.
LARGEST = 8 << 20
PROGRAM = "NPtcp"
#: NPtcp ends by itself after this, whatever happens.
LONGEST_S = 300


@dataclass(frozen=True)
class Point:
    """A message size: payload rate, and the time that one message takes."""

    nbytes: int
    bps: float
    seconds: float


class Place(Protocol):
    """Where programs run: a namespace, a container."""

    def run(self, *command: str) -> str:
        """Runs a command; what it says."""

    def spawn(self, label: str, *command: str) -> Process:
        """Starts a program."""


#: The smallest message and the largest, in bytes. How often the smallest is sent NetPIPE reckons
#: from what one byte takes: of one that takes longer it is far too often.
Sizes = tuple[int, int]


def play(src: Guest, dst: Guest, file: Path, largest: int = LARGEST) -> list[Point]:
    """The curve between two guests."""
    return play_at(src.namespace, dst.namespace, dst.address, file, (1, largest))


def play_at(
    src: Place, dst: Place, address: str, file: Path, sizes: Sizes, by: Sequence[str] = ()
) -> list[Point]:
    """The curve between two places, of which the second has the address. `file` is the first one's:
    NPtcp writes it there. `by` is what runs NPtcp at both, if anything does."""
    limit = ("timeout", str(LONGEST_S), *by, *_command(sizes))
    receiver = dst.spawn("netpipe-receiver", *limit)
    receiver.wait_for(lambda: _LISTENS in dst.run("cat", "/proc/net/tcp"), "a listening NPtcp")
    transmitter = src.spawn("netpipe", *limit, "-h", address, "-o", str(file))
    if transmitter.popen.wait(LONGEST_S + 5) != 0:
        raise Failed(f"NPtcp failed: {transmitter.output()[-500:]}")
    receiver.stop()
    return parse(src.run("cat", str(file)))


def play_in(src: Machine, dst: Machine, address: str, sizes: Sizes) -> list[Point]:
    """The curve between two virtual machines."""
    command = " ".join(_command(sizes))
    listens = f"grep -q '{_LISTENS}' /proc/net/tcp"
    # One that has just served another curve may not have ended.
    dst.run(f"killall -q {PROGRAM}; while {listens}; do sleep 0.1; done")
    dst.run(f"{command} >/dev/null 2>&1 &")
    dst.run(f"until {listens}; do sleep 0.1; done")
    file = "/tmp/netpipe.txt"
    src.run(f"{command} -h {address} -o {file} >/dev/null 2>&1", LONGEST_S)
    return parse(src.run(f"cat {file}"))


def _command(sizes: Sizes) -> tuple[str, ...]:
    smallest, largest = map(str, sizes)
    return (PROGRAM, "-p", "0", "-l", smallest, "-u", largest)


#: How /proc/net/tcp has a socket that listens at NetPIPE's port, 5002.
_LISTENS = ":138A 00000000:0000 0A"


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
