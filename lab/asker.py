"""Asks by ARP for an address, again and again, and counts the answers: can somebody new to it find
an endpoint?

It asks as a host with an address of its own, by a packet socket, so that no table remembers an
answer. Stops by itself, then writes one JSON object.

    python -m lab.asker --device uplink --mac 02:00:00:00:01:fe --ip 10.1.0.254 --to-ip 10.1.0.1 \\
        --per-s 50 --seconds 5
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import struct
import sys
import time

from lab import frames
from lab.costly import LEAST_BYTES
from lab.frames import arp, ethernet
from lab.sender import LONGEST_S, READY, packet_socket

#: How long an answer may take after the last question.
LATE_S = 0.2


def is_answer(frame: bytes, mac: str, of: str) -> bool:
    """Whether a frame is an ARP answer to `mac` that speaks for the address `of`."""
    is_reply = frame[20:22] == struct.pack("!H", 2)
    return (
        frame[:6] == frames.mac_bytes(mac)
        and is_reply
        and frame[28:32] == ipaddress.IPv4Address(of).packed
    )


def ask(
    device: str, mac: str, own: str, of: str, per_s: float, seconds: float
) -> dict[str, object]:
    """Asks for `seconds`; questions and answers."""
    sock = packet_socket(device, frames.ARP)
    question = ethernet(frames.BROADCAST, mac, frames.ARP, arp(1, mac, own, of))
    question += bytes(LEAST_BYTES - len(question))
    print(READY, file=sys.stderr, flush=True)
    asked = answered = 0
    start = due = time.monotonic()
    while (now := time.monotonic()) < start + seconds + LATE_S:
        if now < start + seconds and now >= due:
            sock.send(question)
            asked += 1
            due += 1 / per_s
        sock.settimeout(max(0.001, min(due, start + seconds + LATE_S) - time.monotonic()))
        try:
            answered += is_answer(sock.recv(LEAST_BYTES), mac, of)
        except TimeoutError:
            continue
    return {"asked": asked, "answered": answered}


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.asker", description=__doc__.split("\n")[0])
    for name in ("device", "mac", "ip", "to-ip"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--per-s", type=float, required=True, help="questions a second")
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    if not 0 < args.seconds <= LONGEST_S or not 0 < args.per_s <= 1000:
        parser.error(f"at most {LONGEST_S:g} s and 1000 questions a second")
    told = ask(args.device, args.mac, args.ip, args.to_ip, args.per_s, args.seconds)
    print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
