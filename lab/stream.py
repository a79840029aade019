"""Paced TCP connections, and when their data arrived: what an application notices of its network.

iperf3 tells tenths of seconds; here the receiver notes the arrival of every `--row-ms`, so that
gaps and windows of any length can be cut out afterwards. Times are CLOCK_MONOTONIC, which all
programs of a machine share. The sender lets the kernel pace (SO_MAX_PACING_RATE, tcp(7)), so that a
connection takes its rate and no more. Both ends stop by themselves after `--seconds`, or on
SIGTERM; the receiver then writes one JSON object, the sender another:

    python -m lab.stream serve --port 7000 --seconds 60 --row-ms 1
    python -m lab.stream send --to 10.1.0.2 --port 7000 --rate-bps 20000000 --connections 4
    --seconds 60
"""

from __future__ import annotations

import argparse
import json
import selectors
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from types import FrameType

_SO_MAX_PACING_RATE = 47
_READ_BYTES = 256 << 10
#: What a sender hands over at once: 1 ms at 100 Mbit/s, so that it notices soon that it should
#: stop.
_WRITE_BYTES = 16 << 10
#: How long a receiver waits before it looks whether it should stop.
_LOOK_S = 0.05
#: A sender that was stopped gives what is under way so long to arrive.
_DRAIN_S = 2.0


class Stop:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.wanted = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True


@dataclass
class _Connection:
    """What came: rows of [time, bytes so far]. `end` is None while it is open."""

    rows: list[tuple[float, int]] = field(default_factory=list)
    nbytes: int = 0
    end: str | None = None

    def note(self, now: float, got: int, row_s: float) -> None:
        """Bytes arrived. A row keeps the first arrival in its time and all bytes of it."""
        self.nbytes += got
        if self.rows and now - self.rows[-1][0] < row_s:
            self.rows[-1] = (self.rows[-1][0], self.nbytes)
        else:
            self.rows.append((now, self.nbytes))


def serve(port: int, seconds: float, row_s: float, stop: Stop) -> dict[str, object]:
    """Reads what comes until told to stop; when it came, and how each connection ended."""
    listener = socket.create_server(("", port), backlog=64)
    listener.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    connections: list[_Connection] = []
    deadline = time.monotonic() + seconds
    while not stop.wanted and time.monotonic() < deadline:
        for key, _ in selector.select(_LOOK_S):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if sock is listener:
                accepted, _ = listener.accept()
                connections.append(_Connection())
                selector.register(accepted, selectors.EVENT_READ, connections[-1])
                continue
            connection: _Connection = key.data
            try:
                got = sock.recv(_READ_BYTES)
            except OSError as error:
                connection.end = str(error)
            else:
                connection.note(time.monotonic(), len(got), row_s)
                connection.end = None if got else "closed"
            if connection.end is not None:
                selector.unregister(sock)
                sock.close()
    return {"connections": [{"rows": c.rows, "end": c.end} for c in connections]}


def send(
    to: str, port: int, rate_bps: int, connections: int, seconds: float, stop: Stop
) -> dict[str, object]:
    """Keeps connections full at `rate_bps` each until told to stop; errors of those that broke."""
    broken: list[str] = []

    def one() -> None:
        try:
            with socket.create_connection((to, port), timeout=5) as sock:
                sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate_bps // 8)
                sock.settimeout(_LOOK_S)
                data = bytes(_WRITE_BYTES)
                while not stop.wanted and time.monotonic() < deadline:
                    try:
                        sock.send(data)
                    except TimeoutError:
                        continue
        except OSError as error:
            broken.append(str(error))

    deadline = time.monotonic() + seconds
    threads = [threading.Thread(target=one, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and time.monotonic() < deadline + _DRAIN_S:
            # In steps: a signal is handled between them.
            thread.join(_LOOK_S)
    return {"connections": connections, "broken": broken}


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.stream", description=__doc__.split("\n")[0])
    parser.add_argument("role", choices=["serve", "send"])
    parser.add_argument("--to", help="receiver's IPv4 address (send)")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--rate-bps", type=int, default=100_000_000, help="of each connection (send)"
    )
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--row-ms", type=float, default=1.0, help="resolution (serve)")
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    stop = Stop()
    if args.role == "serve":
        report = serve(args.port, args.seconds, args.row_ms / 1000, stop)
    else:
        report = send(args.to, args.port, args.rate_bps, args.connections, args.seconds, stop)
    print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
