"""A datagram at each beat, with its number and the time at which it was sent; and when each came.

`python -m lab.pulse serve --port N --seconds S` prints, once it is terminated or the time is over,
the number and time of each datagram that came; `send --to A --port N --seconds S` sends them, and
prints when. Times are nanoseconds of the wall clock. That of an arrival is the kernel's
(SO_TIMESTAMPNS, socket(7)), so that it is no matter when this process gets a processor.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence

#: Not in Python's socket module (asm-generic/socket.h).
SO_TIMESTAMPNS = 35
_HEAD = struct.Struct("!Q")
_TIME = struct.Struct("@qq")
_BYTES = 100


class _Over(Exception):
    """It is to end."""


def _end(_signal: int, _frame: object) -> None:
    raise _Over


def send(to: str, port: int, seconds: float, interval_s: float) -> list[int]:
    """When each was sent."""
    sent: list[int] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        due = time.monotonic()
        end = due + seconds
        while due < end:
            sent.append(time.time_ns())
            payload = _HEAD.pack(len(sent) - 1).ljust(_BYTES, b"\0")
            try:
                out.sendto(payload, (to, port))
            except OSError as error:
                print(f"pulse: {error}", file=sys.stderr)
            due = max(due + interval_s, time.monotonic() - interval_s)
            time.sleep(max(0.0, due - time.monotonic()))
    return sent


def serve(port: int, seconds: float, came: list[tuple[int, int]]) -> None:
    """Adds the number of each that came, and when."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        there.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        there.bind(("", port))
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            there.settimeout(left)
            data, ancillary, _, _ = there.recvmsg(_BYTES, 64)
            (number,) = _HEAD.unpack_from(data)
            for _, kind, value in ancillary:
                if kind == SO_TIMESTAMPNS:
                    whole, rest = _TIME.unpack(value)
                    came.append((number, whole * 1_000_000_000 + rest))


def longest_wait_ns(
    sent: Sequence[int], came: Sequence[tuple[int, int]], start_ns: int, end_ns: int
) -> int:
    """The longest time from when one was sent, between two times, until it or a later one had come.
    What is sent late, or never comes, is no matter so far as others pass."""
    soonest = [0] * len(sent)
    for number, at in came:
        if number < len(sent):
            soonest[number] = min(at, soonest[number] or at)
    longest, later = 0, max((at for _, at in came), default=end_ns)
    is_known = False
    for at_sent, at_came in zip(reversed(sent), reversed(soonest), strict=True):
        if at_came:
            later = at_came if not is_known else min(later, at_came)
            is_known = True
        if start_ns <= at_sent <= end_ns:
            longest = max(longest, (later if is_known else max(end_ns, later)) - at_sent)
    return longest


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("send", "serve"))
    parser.add_argument("--to")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--interval", type=float, default=0.001)
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _end)
    if options.what == "serve":
        came: list[tuple[int, int]] = []
        with contextlib.suppress(_Over):
            with contextlib.suppress(TimeoutError):
                serve(options.port, options.seconds, came)
            # Where its time is over, who tells it to end finds it writing.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(json.dumps({"came": came}))
    else:
        try:
            sent = send(options.to, options.port, options.seconds, options.interval)
            print(json.dumps({"sent": sent}))
        except _Over:
            sys.exit(1)


if __name__ == "__main__":
    main()
