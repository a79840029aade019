"""The receiver of a flood: counts what its device receives, and reads nothing.

A program that read the flood would take from the switch, on a small machine, the time which
is to be measured. So a socket is bound, whose small buffer is full at once (the kernel drops
there and answers nothing), and the device's own counter is noted every 100 ms. Stops by itself,
then writes one JSON object:

    python -m bench.deaf --port 5201 --seconds 5
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from pathlib import Path

#: How often the counter is noted: the resolution of a window over the rows.
ROW_S = 0.1
READY = "deaf: ready"


def received_frames() -> int:
    """Frames that the devices of this namespace, loopback aside, have received so far."""
    frames = 0
    for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]:
        name, counters = line.split(":", 1)
        if name.strip() != "lo":
            frames += int(counters.split()[1])
    return frames


def count(seconds: float) -> list[tuple[float, int]]:
    """(seconds since the start, frames since the start), every `ROW_S`."""
    start, first = time.monotonic(), received_frames()
    rows = [(0.0, 0)]
    while rows[-1][0] < seconds:
        time.sleep(ROW_S)
        rows.append((time.monotonic() - start, received_frames() - first))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.deaf", description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        deaf.bind(("", args.port))
        print(READY, file=sys.stderr, flush=True)
        print(json.dumps({"rows": count(args.seconds)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
