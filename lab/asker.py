"""Asks by ARP for an address, again and again, and counts the answers: can somebody new to it find
an endpoint?

It asks as a host with an address of its own, by a packet socket, so that no table remembers an
answer. With `--storm-per-s` the wire carries so many broadcasts in the VLAN `--vlan` too, and each
question comes right behind some of them. Stops by itself, then writes one JSON object.

    python -m lab.asker --device uplink --mac 02:00:00:00:01:fe --ip 10.1.0.254 --to-ip 10.1.0.1 \\
        --per-s 50 --seconds 5
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import json
import struct
import sys
import time

from lab import frames
from lab.costly import LEAST_BYTES, LOCAL_ETHERTYPE
from lab.frames import arp, ethernet
from lab.sender import LONGEST_S, MOST_PER_S, READY, Case, Outlet, Until, packet_socket

#: How long an answer may take after the last question.
LATE_S = 0.2
#: A storm that is later than this makes up for it before the next question.
STORM_LATE_S = 0.01
#: While nothing is to be sent.
NAP_S = 200e-6
#: Whose the broadcasts are.
STORM_MAC = "02:66:66:66:66:66"


def is_answer(frame: bytes, mac: str, of: str) -> bool:
    """Whether a frame is an ARP answer to `mac` that speaks for the address `of`."""
    is_reply = frame[20:22] == struct.pack("!H", 2)
    return (
        frame[:6] == frames.mac_bytes(mac)
        and is_reply
        and frame[28:32] == ipaddress.IPv4Address(of).packed
    )


class Asker:
    """Who asks, and how often it was answered."""

    def __init__(self, device: str, mac: str, own: str, of: str) -> None:
        self._socket = packet_socket(device, frames.ARP)
        self._socket.setblocking(False)
        self._mac, self._of = mac, of
        question = ethernet(frames.BROADCAST, mac, frames.ARP, arp(1, mac, own, of))
        self._question = question + bytes(LEAST_BYTES - len(question))
        self.asked = self.answered = 0

    def ask(self) -> None:
        self._socket.send(self._question)
        self.asked += 1

    def look(self) -> None:
        """Takes what has come."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.answered += is_answer(self._socket.recv(LEAST_BYTES), self._mac, self._of)


def storm(device: str, vlan: int) -> Outlet:
    """Broadcasts in a VLAN."""
    tag = struct.pack("!HH", vlan, LOCAL_ETHERTYPE)
    frame = ethernet(frames.BROADCAST, STORM_MAC, frames.VLAN, tag + bytes(LEAST_BYTES - 18))
    return Outlet(device, [Case("broadcasts in one VLAN", None, [frame])])


def ask(
    asker: Asker, per_s: float, seconds: float, around: Outlet | None, storm_per_s: float
) -> float:
    """Asks for `seconds`, or until SIGTERM, amid so many broadcasts; how many of these were sent a
    second."""
    sent, until = 0, Until(seconds)
    print(READY, file=sys.stderr, flush=True)
    while (over_s := until.over_s) < LATE_S:
        now = until.elapsed_s
        goes_on, behind = over_s < 0, now * storm_per_s - sent
        if around is not None and goes_on and behind > 0:
            sent += around.push()
        # Right behind broadcasts, when the storm is nearly on time.
        is_amid = around is None or 0 < behind < STORM_LATE_S * storm_per_s
        if goes_on and is_amid and asker.asked < now * per_s:
            asker.ask()
        asker.look()
        if not goes_on or behind <= 0:
            time.sleep(NAP_S)
    return sent / until.lasts_s


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.asker", description=__doc__.split("\n")[0])
    for name in ("device", "mac", "ip", "to-ip"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--per-s", type=float, required=True, help="questions a second")
    parser.add_argument("--storm-per-s", type=float, default=0, help="broadcasts a second")
    parser.add_argument("--vlan", type=int, default=0, help="in which they are")
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    if not 0 < args.seconds <= LONGEST_S or not 0 < args.per_s <= 1000:
        parser.error(f"at most {LONGEST_S:g} s and 1000 questions a second")
    if not 0 <= args.storm_per_s <= MOST_PER_S:
        parser.error(f"at most {MOST_PER_S} broadcasts a second")
    asker = Asker(args.device, args.mac, args.ip, args.to_ip)
    around = storm(args.device, args.vlan) if args.storm_per_s else None
    per_s = ask(asker, args.per_s, args.seconds, around, args.storm_per_s)
    told = {"asked": asker.asked, "answered": asker.answered, "per_s": per_s}
    print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
