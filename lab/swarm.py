"""A swarm of short TCP connections: all slow start, never long enough to adapt.

The client keeps `--concurrency` connections going for `--seconds`, or begins `--per-s` a second
where that is fewer; each sends `--bytes`, waits until the server has read them all, and closes. One
thread a connection: they wait for the network nearly all the time. Both ends stop by themselves;
the client then writes one JSON object:

    python -m lab.swarm serve --port 8000 --seconds 6
    python -m lab.swarm run --to 10.1.0.2 --port 8000 --bytes 65536 --concurrency 16 --seconds 5
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import struct
import sys
import threading
import time

#: How long a refused or failed client waits before it tries again, so that an unreachable
#: server is not hammered.
RETRY_S = 0.01
#: A connection that does not finish in this time is given up and counted as failed.
TIMEOUT_S = 2.0
#: The same as socket(7) wants it: a timeval.
_TIMEOUT = struct.pack("ll", int(TIMEOUT_S), 0)
_READ_BYTES = 256 << 10
_WAKE_BYTES = 32 << 10


def serve(port: int, seconds: float) -> dict[str, int]:
    """Reads what comes on any number of connections, answers each end with one byte."""
    listener = socket.create_server(("", port), backlog=1024)
    listener.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    served = received = 0
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for key, _ in selector.select(min(left, 0.1)):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if sock is listener:
                connection, _ = listener.accept()
                # Woken for much at once, or for the end, and not for each segment: a swarm is to
                # load the network, not the processors.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _WAKE_BYTES)
                selector.register(connection, selectors.EVENT_READ)
                continue
            try:
                got = len(sock.recv(_READ_BYTES))
                received += got
                if got == 0:
                    sock.send(b".")
                    served += 1
            except ConnectionError:
                got = 0
            if got == 0:
                selector.unregister(sock)
                sock.close()
    return {"connections": served, "bytes": received}


class _Tally:
    """What the client's threads did, each row [end since start in s, duration in s]."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: list[tuple[float, float]] = []
        self.failed = 0


def run_clients(
    to: str, port: int, nbytes: int, concurrency: int, seconds: float, per_s: float = 0
) -> dict[str, object]:
    """Keeps the swarm going for `seconds`, beginning at most `per_s` connections a second (0: as
    fast as it goes); connections done, failed, and how long each took."""
    tally = _Tally()
    start = time.monotonic()
    pause_s = concurrency / per_s if per_s else 0.0
    threads = [
        threading.Thread(
            target=_one_client, args=(to, port, nbytes, start, seconds, tally, pause_s)
        )
        for _ in range(concurrency)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "connections": len(tally.rows),
        "failed": tally.failed,
        "bytes_each": nbytes,
        "seconds": seconds,
        "rows": sorted(tally.rows),
    }


def _one_client(
    to: str,
    port: int,
    nbytes: int,
    start: float,
    seconds: float,
    tally: _Tally,
    pause_s: float,
) -> None:
    """One connection after the other, each begun `pause_s` after the one before at the earliest."""
    payload = bytes(nbytes)
    while (begun := time.monotonic()) < start + seconds:
        try:
            with socket.socket() as sock:
                # In the kernel: a time-out of Python's own polls before each call.
                for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                    sock.setsockopt(socket.SOL_SOCKET, option, _TIMEOUT)
                sock.connect((to, port))
                sock.sendall(payload)
                sock.shutdown(socket.SHUT_WR)
                finished = sock.recv(1) == b"."
        except OSError:
            finished = False
        now = time.monotonic()
        with tally.lock:
            if finished:
                tally.rows.append((now - start, now - begun))
            else:
                tally.failed += 1
        if not finished:
            time.sleep(RETRY_S)
        time.sleep(max(0.0, begun + pause_s - time.monotonic()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.swarm", description=__doc__.split("\n")[0])
    parser.add_argument("role", choices=["serve", "run"])
    parser.add_argument("--to", help="server's IPv4 address (run)")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bytes", type=int, default=64 << 10)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--per-s", type=float, default=0, help="connections a second; 0: no bound")
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    report: object
    if args.role == "serve":
        report = serve(args.port, args.seconds)
    else:
        report = run_clients(
            args.to, args.port, args.bytes, args.concurrency, args.seconds, args.per_s
        )
    print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
