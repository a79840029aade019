"""Sends frames that no honest endpoint sends: malformed, spoofed, too many, or with offload headers
that lie.

A kind of attack is a list of cases; each case is a few frames and the name of the counter under
which a switch should drop them (`levada show`), or none where they are allowed and only many. The
cases take turns at `--per-s` frames a second (`lab.sender`). Bounded, stops by itself, then writes
one JSON object: how many frames of which counter were sent.

    python -m lab.hostile malformed --device eth0 --mac 02:00:00:00:00:01 --ip 10.0.0.1 \\
        --to-mac 02:00:00:00:00:02 --to-ip 10.0.0.2 --other-mac 02:.. --other-ip 10.. --per-s 20000
        --seconds 5

`--mac` and `--ip` are the sender's own, `--to-...` its peer's, `--other-...` somebody's whom it
pretends to be. With `--outside` it sends as the network outside would, where it is not an endpoint.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import random
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple

from lab import frames
from lab.frames import arp, ethernet, ipv4, ipv6, tcp, udp
from lab.sender import GSO_TCPV4, GSO_UDP, LONGEST_S, MOST_PER_S, Case, Outlet, offload, send


class Parties(NamedTuple):
    """Who is who, as text."""

    mac: str
    ip: str
    to_mac: str
    to_ip: str
    other_mac: str
    other_ip: str
    outside: bool = False


# --- the kinds ----------------------------------------------------------------------------

#: So many different source addresses; a switch that keeps them all has lost.
MAC_FLOOD_ADDRESSES = 16_384
#: A name nobody has: frames to it reach the wire and burden no receiver.
NOBODY = "02:00:00:00:ff:fe"


def mac_flood(p: Parties) -> list[Case]:
    """Another source address in every frame."""
    rng = random.Random(1)
    macs = [f"06:{rng.randbytes(5).hex(':')}" for _ in range(MAC_FLOOD_ADDRESSES)]
    body = ipv4(p.ip, p.to_ip, frames.UDP, udp(9, 9, bytes(18)))
    sent = [ethernet(p.to_mac, mac, frames.IPV4, body) for mac in macs]
    return [Case("random source addresses", None if p.outside else "spoofed-mac", sent)]


def mac_flood_learned(p: Parties) -> list[Case]:
    """The same from an endpoint without declared addresses."""
    return [Case(c.what, "fdb-full", c.frames) for c in mac_flood(p)]


def storm(p: Parties) -> list[Case]:
    """Broadcasts: ARP requests, as a loop would multiply them."""
    ask = arp(1, p.mac, p.ip, p.to_ip)
    return [
        Case("ARP requests", "flood-limit", [ethernet(frames.BROADCAST, p.mac, frames.ARP, ask)])
    ]


def malformed(p: Parties) -> list[Case]:
    """Headers that are cut off or contradict themselves."""

    def v4(protocol: int, payload: bytes, **lies: int) -> tuple[int, bytes]:
        return frames.IPV4, ipv4(p.ip, p.to_ip, protocol, payload, **lies)

    def v6(following: int, payload: bytes, length: int | None = None) -> tuple[int, bytes]:
        ends = frames.link_local(p.mac), frames.link_local(p.to_mac)
        return frames.IPV6, ipv6(*ends, following, payload, length)

    good = udp(9, 9, bytes(18))
    whole = v4(frames.UDP, good)[1]
    wrong = {
        "IPv4 header of 4 words": v4(frames.UDP, good, words=4),
        "IPv4 header longer than the packet": v4(frames.UDP, b"", words=15),
        "IPv4 longer than the frame": v4(frames.UDP, good, total=1400),
        "IPv4 shorter than its header": v4(frames.UDP, good, total=19),
        "IPv4 of version 5": v4(frames.UDP, good, version=5),
        "IPv4 cut off": (frames.IPV4, whole[:12]),
        "TCP header of 4 words": v4(frames.TCP, tcp(9, 9, b"", words=4)),
        "TCP header longer than the packet": v4(frames.TCP, tcp(9, 9, b"", words=15)),
        "TCP cut off": v4(frames.TCP, bytes(10)),
        "UDP longer than its packet": v4(frames.UDP, udp(9, 9, bytes(18), length=900)),
        "UDP of 4 bytes": v4(frames.UDP, udp(9, 9, bytes(18), length=4)),
        "ICMP of 4 bytes": v4(frames.ICMP, bytes(4)),
        "IPv6 longer than the frame": v6(frames.UDP, good, length=1400),
        "IPv6 cut off": (frames.IPV6, bytes([0x60]) + bytes(20)),
        "IPv6 options cut off": v6(frames.HOP_BY_HOP, bytes([frames.UDP, 200]) + bytes(6)),
        "ARP cut off": (frames.ARP, arp(1, p.mac, p.ip, p.to_ip)[:20]),
        "ARP of another hardware": (frames.ARP, b"\x00\x18" + arp(1, p.mac, p.ip, p.to_ip)[2:]),
        "LLC longer than the frame": (0x0400, bytes(40)),
    }
    cases = [
        Case(what, "malformed", [ethernet(p.to_mac, p.mac, *frame)])
        for what, frame in wrong.items()
    ]
    group = "03:00:00:00:00:01"
    pause = ethernet(
        "01:80:c2:00:00:01", p.mac, frames.MAC_CONTROL, bytes([0, 1, 255, 255]) + bytes(42)
    )
    return [
        *cases,
        Case("a group as source", "bad-source", [ethernet(p.to_mac, group, frames.IPV4, whole)]),
        Case("PAUSE", "reserved", [pause]),
    ]


def offload_lies(p: Parties) -> list[Case]:
    """Offload headers that do not fit their frames. Linux refuses the grossest itself (a sum that
    would be stored in the Ethernet or IP header); these it hands on."""
    payload = bytes(1000)
    l4 = 14 + 20

    def one(what: str, protocol: int, body: bytes, header: bytes) -> Case:
        packet = ethernet(p.to_mac, p.mac, frames.IPV4, ipv4(p.ip, p.to_ip, protocol, body))
        return Case(what, "bad-offload", [packet], header)

    segment, datagram = tcp(9, 9, payload), udp(9, 9, payload)
    long_tcp, long_udp = tcp(9, 9, bytes(20_000)), udp(9, 9, bytes(20_000), length=400)
    return [
        one("a sum over TCP stored in its ports", frames.TCP, segment, offload(l4, 0)),
        one("a sum from the middle of UDP's header", frames.UDP, datagram, offload(l4 + 4, 2)),
        one("TCP in 20 000 segments", frames.TCP, long_tcp, offload(l4, 16, GSO_TCPV4, 1, l4 + 20)),
        one(
            "UDP segments of a shorter datagram",
            frames.UDP,
            long_udp,
            offload(l4, 6, GSO_UDP, 1000, l4 + 8),
        ),
    ]


def fragments(p: Parties) -> list[Case]:
    """IPv4 and IPv6 fragments: allowed ones that are never whole or overlap, and impossible
    ones."""
    body = udp(9, 9, bytes(1400))

    def v4(count: int, offset: int, part: bytes, flags: int = frames.MORE_FRAGMENTS) -> list[bytes]:
        return [
            ethernet(
                p.to_mac,
                p.mac,
                frames.IPV4,
                ipv4(
                    p.ip, p.to_ip, frames.UDP, part, fragment=flags | offset // 8, identification=i
                ),
            )
            for i in range(1, count + 1)
        ]

    def v6(offset: int, more: int, part: bytes) -> list[bytes]:
        header = struct.pack("!BBHI", frames.UDP, 0, offset | more, 7)
        packet = ipv6(
            frames.link_local(p.mac), frames.link_local(p.to_mac), frames.FRAGMENT, header + part
        )
        return [ethernet(p.to_mac, p.mac, frames.IPV6, packet)]

    return [
        Case("first fragments of nothing", None, v4(256, 0, body[:1400])),
        Case("last fragments of nothing", None, v4(256, 1400, body[:400], flags=0)),
        Case("fragments of 8 bytes", None, v4(256, 0, body[:8])),
        Case("fragments that overlap", None, v4(256, 200, body[:400])),
        Case(
            "longer than any packet, reassembled", "malformed", v4(1, 65_528, body[:800], flags=0)
        ),
        Case("IPv6, longer than any packet", "malformed", v6(65_528, 0, body[:800])),
        Case("IPv6, not a multiple of 8", "malformed", v6(0, 1, body[:101])),
        Case("IPv6, a first one that lacks UDP's header", "malformed", v6(0, 1, b"")),
    ]


def spoofed(p: Parties) -> list[Case]:
    """What claims to be from somebody else, or to be what it may not."""
    body = udp(9, 9, bytes(18))

    def v4(source: str, payload: bytes = body) -> bytes:
        return ipv4(source, p.to_ip, frames.UDP, payload)

    if p.outside:
        return [
            Case(
                "a local endpoint's MAC",
                "loop",
                [ethernet(p.to_mac, p.to_mac, frames.IPV4, v4(p.ip))],
            )
        ]
    own = frames.link_local(p.mac)
    answer = ipv6(own, "ff02::1", frames.ICMPV6, _nd(136, frames.link_local(p.other_mac)))
    router = ipv6(own, "ff02::1", frames.ICMPV6, bytes([134]) + bytes(15))
    theirs = ipv6(frames.link_local(p.other_mac), "ff02::1", frames.UDP, body)
    group = "33:33:00:00:00:01"
    claims: dict[str, tuple[str, str, str, int, bytes]] = {
        "another's MAC": ("spoofed-mac", p.to_mac, p.other_mac, frames.IPV4, v4(p.ip)),
        "another's IPv4": ("spoofed-ipv4", p.to_mac, p.mac, frames.IPV4, v4(p.other_ip)),
        "another's IPv4 in ARP": (
            "spoofed-arp",
            p.to_mac,
            p.mac,
            frames.ARP,
            arp(2, p.mac, p.other_ip, p.to_ip),
        ),
        "another's MAC in ARP": (
            "spoofed-arp",
            p.to_mac,
            p.mac,
            frames.ARP,
            arp(2, p.other_mac, p.ip, p.to_ip),
        ),
        "another's IPv6": ("spoofed-ipv6", group, p.mac, frames.IPV6, theirs),
        "another's IPv6 in an advertisement": ("spoofed-nd", group, p.mac, frames.IPV6, answer),
        "a router's advertisement": ("router-advertisement", group, p.mac, frames.IPV6, router),
        "a DHCP server": (
            "dhcp-server",
            p.to_mac,
            p.mac,
            frames.IPV4,
            v4(p.ip, udp(67, 68, bytes(240))),
        ),
        "a VLAN tag": (
            "bad-vlan",
            p.to_mac,
            p.mac,
            frames.VLAN,
            struct.pack("!HH", 10, frames.IPV4) + v4(p.ip),
        ),
    }
    return [
        Case(what, reason, [ethernet(to, source, ethertype, packet)])
        for what, (reason, to, source, ethertype, packet) in claims.items()
    ]


def _nd(kind: int, target: str) -> bytes:
    """A neighbour advertisement (136) or solicitation (135) for a target (RFC 4861)."""
    return struct.pack("!BBHI", kind, 0, 0, 0) + ipaddress.IPv6Address(target).packed


def small(p: Parties) -> list[Case]:
    """Honest frames of 64 bytes, which are only many. Nobody receives them."""
    body = ipv4(p.ip, p.to_ip, frames.UDP, udp(9, 9, bytes(18)))
    return [Case("frames of 64 bytes", None, [ethernet(NOBODY, p.mac, frames.IPV4, body)])]


KINDS: dict[str, Callable[[Parties], list[Case]]] = {
    "mac-flood": mac_flood,
    "mac-flood-learned": mac_flood_learned,
    "storm": storm,
    "malformed": malformed,
    "offload-lies": offload_lies,
    "fragments": fragments,
    "spoofed": spoofed,
    "small": small,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.hostile", description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--device", required=True)
    for name in Parties._fields[:-1]:
        parser.add_argument(f"--{name.replace('_', '-')}", required=True)
    parser.add_argument("--outside", action="store_true", help="from the network, not an endpoint")
    parser.add_argument("--per-s", type=float, required=True, help="frames a second")
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    if not 0 < args.seconds <= LONGEST_S or not 0 < args.per_s <= MOST_PER_S:
        parser.error(f"at most {LONGEST_S:g} s and {MOST_PER_S} frames a second")
    parties = Parties(*(getattr(args, name) for name in Parties._fields))
    outlet = Outlet(args.device, KINDS[args.kind](parties))
    print(json.dumps(send([outlet], args.per_s, args.seconds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
