"""Sends frames that an endpoint may send, and that cost a switch much: its time, its memory, its
copies.

A kind is frames for one device, or for each of many (`--ports`) that are called `--device` and a
number; their MAC addresses count up from `--mac`. One process sends by all of them, `--per-s`
frames a second together (`lab.sender`), stops by itself, and writes one JSON object.

    python -m lab.costly tiny-segments --device red0 --mac 02:00:00:00:02:01 --ip 10.2.0.1 \\
        --to-mac 02:00:00:00:02:02 --to-ip 10.2.0.2 --per-s 20000 --seconds 5
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from lab import frames
from lab.frames import begun, ethernet, ipv4, tcp, udp
from lab.sender import (
    BATCH,
    GSO_TCPV4,
    GSO_UDP,
    LONGEST_S,
    MOST_PER_S,
    Case,
    Outlet,
    offload,
    send,
)

#: Payload of an offloaded frame that is nearly as long as one can be.
LONG_BYTES = 64_000
#: The same where it waits: with its headers it takes a buffer of 64 KiB in a switch that has no
#: size between this and 16 KiB.
WAITING_BYTES = 17_000
TINY_BYTES, FULL_BYTES = 32, 1400
#: Without a receiver: a multicast group (RFC 1112, 2365), and a name that nobody has.
GROUP, GROUP_MAC = "239.1.1.1", "01:00:5e:01:01:01"
NOBODY = "02:0e:0e:0e:0e:0e"
#: An EtherType for experiments (IEEE 802, clause 9.2.3).
LOCAL_ETHERTYPE = 0x88B5
#: Different senders of SYNs, and where they ask: a switch that keeps them all has lost.
SYN_SOURCES, SERVICE_PORT = 16_000, 80
DATAGRAM_SOURCES = 1000
#: Packets of which first fragments are sent, and behind how many of them a later one follows: a
#: switch has forgotten the first one by then, or has lost.
FRAGMENTED, LATER_BY = 16_000, 3000
#: Connections that a server is to be blamed for, few enough that a switch keeps them all; a round
#: of SYNs takes longer than a client waits for an answer (RFC 6298: 1 s).
BLAMED, BLAMED_PER_S = 100, 85
#: Who asks for echoes outside, and whom.
ECHO_SOURCES = 200
#: Of an Ethernet frame without FCS.
LEAST_BYTES = 60
_L4 = 14 + 20


class Ends(NamedTuple):
    """Sender and receiver, as text."""

    mac: str
    ip: str
    to_mac: str
    to_ip: str


def mac_after(first: str, number: int) -> str:
    """The MAC address that is `number` after another."""
    value = int.from_bytes(frames.mac_bytes(first), "big") + number
    return value.to_bytes(6, "big").hex(":")


def _segments(e: Ends, nbytes: int, size: int) -> list[Case]:
    """A TCP segment of `nbytes` that is to be cut into many of `size`."""
    segment = begun(tcp(9, 9, bytes(nbytes)), 16, e.ip, e.to_ip, frames.TCP)
    frame = ethernet(e.to_mac, e.mac, frames.IPV4, ipv4(e.ip, e.to_ip, frames.TCP, segment))
    header = offload(_L4, 16, GSO_TCPV4, size, _L4 + 20)
    return [Case(f"TCP to be cut every {size} bytes", None, [frame], header)]


def tiny_segments(e: Ends) -> list[Case]:
    """64 KiB of TCP in 2000 segments: that much work for a port that cannot cut."""
    return _segments(e, LONG_BYTES, TINY_BYTES)


def full_segments(e: Ends) -> list[Case]:
    """The same in segments as a program would have them."""
    return _segments(e, LONG_BYTES, FULL_BYTES)


def waiting(e: Ends) -> list[Case]:
    """Frames that take the longest buffers, to somebody beyond a slow limit."""
    return _segments(e._replace(to_mac=NOBODY), WAITING_BYTES, FULL_BYTES)


def waiting_small(e: Ends) -> list[Case]:
    """The same of 64 bytes."""
    return small(e._replace(to_mac=NOBODY))


def small(e: Ends) -> list[Case]:
    """Datagrams in frames of 64 bytes."""
    body = ipv4(e.ip, e.to_ip, frames.UDP, udp(9, 9, bytes(18)))
    return [Case("frames of 64 bytes", None, [ethernet(e.to_mac, e.mac, frames.IPV4, body)])]


def group(e: Ends) -> list[Case]:
    """64 KiB of UDP to be segmented, to all members of the tenant."""
    datagram = begun(udp(9, 9, bytes(LONG_BYTES)), 6, e.ip, GROUP, frames.UDP)
    frame = ethernet(GROUP_MAC, e.mac, frames.IPV4, ipv4(e.ip, GROUP, frames.UDP, datagram))
    header = offload(_L4, 6, GSO_UDP, FULL_BYTES, _L4 + 8)
    return [Case("UDP of 64 KiB to a group", None, [frame], header)]


def group_small(e: Ends) -> list[Case]:
    """The same in frames of 64 bytes."""
    body = ipv4(e.ip, GROUP, frames.UDP, udp(9, 9, bytes(18)))
    return [Case("64 bytes to a group", None, [ethernet(GROUP_MAC, e.mac, frames.IPV4, body)])]


def neighbours(e: Ends) -> list[Case]:
    """Frames of 64 bytes to the endpoint beside."""
    frame = ethernet(e.to_mac, e.mac, LOCAL_ETHERTYPE, bytes(LEAST_BYTES - 14))
    return [Case("64 bytes to a neighbour", None, [frame])]


def singles(e: Ends) -> list[Case]:
    """The same, of many to one."""
    return neighbours(e)


def syns(e: Ends) -> list[Case]:
    """SYNs to a service, each from another address and port: of the upper half of a /16."""
    prefix = e.ip.rsplit(".", 2)[0]
    sent = []
    for n in range(SYN_SOURCES):
        source = f"{prefix}.{128 + n // 250}.{1 + n % 250}"
        segment = tcp(1024 + n, SERVICE_PORT, b"", flags=frames.SYN)
        packet = ipv4(source, e.to_ip, frames.TCP, segment)
        sent.append(ethernet(e.to_mac, e.mac, frames.IPV4, packet + bytes(6)))
    return [Case("SYNs of many addresses", None, sent)]


def datagrams(e: Ends) -> list[Case]:
    """Long datagrams to a service, each from another address and port."""
    sent = []
    for n in range(DATAGRAM_SOURCES):
        source = f"{e.ip.rsplit('.', 2)[0]}.{128 + n // 250}.{1 + n % 250}"
        packet = ipv4(source, e.to_ip, frames.UDP, udp(1024 + n, SERVICE_PORT, bytes(FULL_BYTES)))
        sent.append(ethernet(e.to_mac, e.mac, frames.IPV4, packet))
    return [Case("datagrams of many addresses", None, sent)]


def fragments(e: Ends) -> list[Case]:
    """First fragments of datagrams to a service, and later ones of packets that were begun long
    before."""
    parts = udp(9, SERVICE_PORT, bytes(32))[:24], bytes(16)

    def part(number: int, offset: int) -> bytes:
        flags = 0 if offset else frames.MORE_FRAGMENTS
        packet = ipv4(
            *(e.ip, e.to_ip, frames.UDP, parts[offset > 0]),
            fragment=flags | offset // 8,
            identification=1 + number,
        )
        frame = ethernet(e.to_mac, e.mac, frames.IPV4, packet)
        return frame + bytes(LEAST_BYTES - len(frame))

    sent = []
    for number in range(FRAGMENTED):
        sent.append(part(number, 0))
        if number >= LATER_BY:
            sent.append(part(number - LATER_BY, 24))
    return [Case("fragments of many packets", None, sent)]


def _segments_to(e: Ends, first: int, flags: int) -> list[bytes]:
    """Segments to a service without data, whose checksums are begun."""
    made = []
    for port in range(first, first + BLAMED):
        bare = tcp(port, SERVICE_PORT, b"", flags=flags)
        segment = begun(bare, 16, e.ip, e.to_ip, frames.TCP)
        packet = ipv4(e.ip, e.to_ip, frames.TCP, segment)
        made.append(ethernet(e.to_mac, e.mac, frames.IPV4, packet + bytes(6)))
    return made


def unanswered(e: Ends) -> list[Case]:
    """SYNs with a wrong checksum, which a server throws away, and again after a second, as if it
    had not answered."""
    return [Case("SYNs with a wrong checksum", None, _segments_to(e, 2000, frames.SYN))]


def disowned(e: Ends) -> list[Case]:
    """The same, and an acknowledgement behind each, which the server resets, as if it refused the
    connection."""
    made = {flags: _segments_to(e, 2000 + BLAMED, flags) for flags in (frames.SYN, frames.ACK)}
    return [
        Case("SYNs with a wrong checksum, before acknowledgements", None, made[frames.SYN]),
        Case("acknowledgements of nothing", None, made[frames.ACK], offload(_L4, 16)),
    ]


def echoes(e: Ends) -> list[Case]:
    """Echo requests (RFC 792) of some addresses."""
    message = struct.pack("!BBHHH", 8, 0, frames.checksum(b"\x08" + bytes(31)), 0, 0) + bytes(24)
    sent = []
    for n in range(ECHO_SOURCES):
        packet = ipv4(f"{e.ip.rsplit('.', 1)[0]}.{1 + n}", e.to_ip, frames.ICMP, message)
        sent.append(ethernet(e.to_mac, e.mac, frames.IPV4, packet))
    return [Case("echo requests", None, sent)]


def tagged(case: Case, vlan: int) -> Case:
    """The same in a VLAN; of frames that nothing is left to be done with."""
    tag = struct.pack("!HH", frames.VLAN, vlan)
    return replace(case, frames=[frame[:12] + tag + frame[12:] for frame in case.frames])


KINDS: dict[str, Callable[[Ends], list[Case]]] = {
    "tiny-segments": tiny_segments,
    "full-segments": full_segments,
    "waiting": waiting,
    "waiting-small": waiting_small,
    "small": small,
    "group": group,
    "group-small": group_small,
    "neighbours": neighbours,
    "singles": singles,
    "syns": syns,
    "datagrams": datagrams,
    "fragments": fragments,
    "unanswered": unanswered,
    "disowned": disowned,
    "echoes": echoes,
}


def ports(kind: str, device: str, ends: Ends, count: int) -> list[tuple[str, list[Case]]]:
    """Each device and its frames. Of many each sends to the one beside it, in pairs, or all send to
    one."""
    make = KINDS[kind]
    if count == 1:
        return [(device, make(ends))]
    macs = [mac_after(ends.mac, n) for n in range(count)]
    beside = [macs[n ^ 1 if n ^ 1 < count else 0] for n in range(count)]
    to = [ends.to_mac] * count if make is singles else beside
    return [
        (f"{device}{n}", make(ends._replace(mac=mac, to_mac=to[n]))) for n, mac in enumerate(macs)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.costly", description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--device", required=True)
    parser.add_argument("--ports", type=int, default=1, help="so many devices, DEVICE and a number")
    for name in Ends._fields:
        parser.add_argument(f"--{name.replace('_', '-')}", required=True)
    parser.add_argument("--per-s", type=float, required=True, help="frames a second, all together")
    parser.add_argument(
        "--line-bps", type=float, default=math.inf, help="what the line carries in bits a second"
    )
    parser.add_argument("--batch", type=int, default=BATCH, help="frames a system call")
    parser.add_argument("--vlan", type=int, default=0, help="in which they are; 0 for no tag")
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    if not 0 < args.seconds <= LONGEST_S or not 0 < args.per_s <= MOST_PER_S:
        parser.error(f"at most {LONGEST_S:g} s and {MOST_PER_S} frames a second")
    ends = Ends(*(getattr(args, name) for name in Ends._fields))
    outlets = [
        Outlet(device, [tagged(c, args.vlan) for c in cases] if args.vlan else cases, args.batch)
        for device, cases in ports(args.kind, args.device, ends, args.ports)
    ]
    print(json.dumps(send(outlets, args.per_s, args.seconds, args.line_bps)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
