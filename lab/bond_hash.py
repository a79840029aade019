"""The transmit hashes of Linux's bonding driver, from its documented formulas, and test frames.

Sources: Linux Documentation/networking/bonding.rst (xmit_hash_policy) and what the kernel's flow
dissector keeps. The datapath's hashes (datapath/src/bond/hash.rs) are tested against what this
prints:
    python3 -m lab.bond_hash > datapath/src/bond/hash/vectors.txt
Each line is a frame in hex, and its hash by each policy, little-endian machines' words.
"""

from __future__ import annotations

import ipaddress
import random
import struct
from dataclasses import dataclass, field

POLICIES = ("layer2", "layer2+3", "layer3+4", "encap2+3", "encap3+4", "vlan+srcmac")
IPV4, ARP, IPV6, VLAN, BRIDGED = 0x0800, 0x0806, 0x86DD, 0x8100, 0x6558
ICMP, IPIP, TCP, UDP, IPV6_IN_IP, FRAGMENT, GRE, ICMPV6 = 1, 4, 6, 17, 41, 44, 47, 58
PORT_OFFSETS = {6: 0, 17: 0, 33: 0, 50: 0, 132: 0, 136: 0, 51: 4}
EXTENSIONS = (0, 43, 60)


@dataclass
class Keys:
    """What the kernel's dissector keeps."""

    source: bytes = b""
    destination: bytes = b""
    ports: bytes = bytes(4)
    icmp: tuple[int, int, int] = field(default=(0, 0, 0))

    def word(self) -> int:
        """Ports, or the ICMP key where it has an identifier."""
        kind, code, identifier = self.icmp
        packed = struct.pack("<BBH", kind, code, identifier) if identifier else self.ports
        return int(struct.unpack("<I", packed)[0])


def words(address: bytes) -> int:
    """The address' words together, as a little-endian machine loads them."""
    value = 0
    for (word,) in struct.iter_unpack("<I", address):
        value ^= word
    return value


def ports(packet: bytes, number: int) -> bytes:
    """The four bytes in which `number` has its ports."""
    at = PORT_OFFSETS.get(number)
    found = packet[at : at + 4] if at is not None else b""
    return found if len(found) == 4 else bytes(4)


def icmp(packet: bytes) -> tuple[int, int, int]:
    """Type, code and identifier; a message without one has 0, and 0 counts as 1."""
    if len(packet) < 8:
        return (0, 0, 0)
    has = packet[0] in (0, 8, 13, 14, 128, 129)
    return (packet[0], packet[1], max(struct.unpack(">H", packet[4:6])[0], 1) if has else 0)


def header(packet: bytes, kind: int) -> tuple[Keys, int | None, bytes] | None:
    """Addresses, protocol (none in a fragment) and what follows the fixed header."""
    if kind == IPV4 and len(packet) >= 20:
        length = (packet[0] & 15) * 4
        fragment = struct.unpack(">H", packet[6:8])[0] & 0x3FFF
        return Keys(packet[12:16], packet[16:20]), None if fragment else packet[9], packet[length:]
    if kind == IPV6 and len(packet) >= 40:
        return Keys(packet[8:24], packet[24:40]), packet[6], packet[40:]
    return None


def plain(packet: bytes, kind: int) -> Keys | None:
    """What layer2+3 and layer3+4 look at."""
    found = header(packet, kind)
    if found is None:
        return None
    keys, number, rest = found
    if number in (ICMP, ICMPV6):
        keys.icmp = icmp(rest)
        errors = (3, 4, 5, 11, 12) if number == ICMP else (1, 2, 3, 4)
        if rest and rest[0] in errors:
            inner = header(rest[8:], kind)
            if inner is None:
                return None
            keys, number, rest = inner
    if number is not None:
        keys.ports = ports(rest, number)
    return keys


def dissected(packet: bytes, kind: int) -> Keys | None:  # noqa: C901 - one case a header
    """What the encap policies look at: the innermost packet."""
    keys = Keys()
    while True:
        if kind == VLAN:
            kind, packet = struct.unpack(">H", packet[2:4])[0], packet[4:]
            continue
        if kind == ARP:
            return keys
        found = header(packet, kind)
        if found is None:
            return None
        keys, number, rest = found
        while kind == IPV6 and number in EXTENSIONS:
            number, rest = rest[0], rest[(rest[1] + 1) * 8 :]
        if number is None or (kind == IPV6 and number == FRAGMENT):
            return keys
        if number == IPIP:
            packet, kind = rest, IPV4
        elif number == IPV6_IN_IP:
            packet, kind = rest, IPV6
        elif number == GRE:
            flags, kind = struct.unpack(">HH", rest[:4])
            if flags & 0x4007:
                return keys
            packet = rest[4 + 4 * sum(bool(flags & bit) for bit in (0x8000, 0x2000, 0x1000)) :]
            if kind == BRIDGED:
                kind, packet = struct.unpack(">H", packet[12:14])[0], packet[14:]
        elif number in (ICMP, ICMPV6):
            keys.icmp = icmp(rest)
            return keys
        else:
            keys.ports = ports(rest, number)
            return keys


def fold(value: int) -> int:
    """Upper bits into the lower ones."""
    value ^= value >> 16
    return value ^ value >> 8


def hashes(frame: bytes) -> list[int]:
    """The frame's hash by each of POLICIES; one tag in front counts as kept beside the frame."""
    tci, kind, at = 0, int.from_bytes(frame[12:14], "big"), 14
    if kind == VLAN:
        tci = int.from_bytes(frame[14:16], "big")
        kind = int.from_bytes(frame[16:18], "big")
        at = 18
    packet = frame[at:]
    layer2 = frame[5] ^ frame[11] ^ kind

    def by_ip(keys: Keys | None, with_ports: bool) -> int:
        if keys is None:
            return layer2
        value = (
            (keys.word() if with_ports else layer2) ^ words(keys.source) ^ words(keys.destination)
        )
        return fold(value) >> with_ports

    simple, inner = plain(packet, kind), dissected(packet, kind)
    vendor, device = int.from_bytes(frame[6:9], "big"), int.from_bytes(frame[9:12], "big")
    return [
        layer2,
        by_ip(simple, False),
        by_ip(simple, True),
        by_ip(inner, False),
        by_ip(inner, True),
        tci ^ vendor ^ device,
    ]


def v4(
    source: str, destination: str, number: int, rest: bytes, fragment: int = 0, options: bytes = b""
) -> bytes:
    """An IPv4 packet; the checksum is left at 0."""
    length = 20 + len(options)
    head = struct.pack(
        ">BBHHHBBH", 0x40 | length // 4, 0, length + len(rest), 0, fragment, 64, number, 0
    )
    return (
        head
        + ipaddress.IPv4Address(source).packed
        + ipaddress.IPv4Address(destination).packed
        + options
        + rest
    )


def v6(source: str, destination: str, number: int, rest: bytes) -> bytes:
    """An IPv6 packet."""
    head = struct.pack(">IHBB", 0x60000000, len(rest), number, 64)
    return (
        head
        + ipaddress.IPv6Address(source).packed
        + ipaddress.IPv6Address(destination).packed
        + rest
    )


def udp(source: int, destination: int) -> bytes:
    """A UDP header and eight bytes."""
    return struct.pack(">HHHH", source, destination, 16, 0) + bytes(8)


def tcp(source: int, destination: int) -> bytes:
    """A TCP header."""
    return struct.pack(">HHIIBBHHH", source, destination, 1, 2, 0x50, 0x10, 0xFFFF, 0, 0)


def frames(seed: int = 27) -> list[bytes]:
    """Frames of every kind that the policies tell apart, with addresses from a seed."""
    rng = random.Random(seed)
    found = []
    for _ in range(4):
        a4, b4, c4, d4 = (
            str(ipaddress.IPv4Address(0x0A000000 | rng.getrandbits(24))) for _ in range(4)
        )
        a6, b6, c6, d6 = (
            str(ipaddress.IPv6Address(0xFD00 << 112 | rng.getrandbits(96))) for _ in range(4)
        )
        x, y = rng.randrange(1024, 65536), rng.randrange(1, 65536)
        echo = struct.pack(">BBHHH", 8, 0, 0, x, 1)
        inner4, inner6 = v4(c4, d4, TCP, tcp(y, x)), v6(c6, d6, UDP, udp(y, x))
        ethernet = bytes.fromhex("020000000001020000000002")
        packets = [
            (IPV4, v4(a4, b4, TCP, tcp(x, y))),
            (IPV4, v4(a4, b4, UDP, udp(x, y), options=b"\x01" * 8)),
            (IPV4, v4(a4, b4, UDP, udp(x, y), fragment=0x2000)),
            (IPV4, v4(a4, b4, UDP, b"later fragment", fragment=0x0010)),
            (IPV4, v4(a4, b4, 132, udp(x, y))),
            (IPV4, v4(a4, b4, 50, rng.randbytes(16))),
            (IPV4, v4(a4, b4, 51, bytes([6, 4, 0, 0]) + rng.randbytes(20))),
            (IPV4, v4(a4, b4, 89, rng.randbytes(16))),
            (IPV4, v4(a4, b4, ICMP, echo)),
            (IPV4, v4(a4, b4, ICMP, struct.pack(">BBHHH", 0, 0, 0, 0, 1))),
            (IPV4, v4(a4, b4, ICMP, struct.pack(">BBHI", 3, 1, 0, 0) + v4(b4, c4, UDP, udp(x, y)))),
            (IPV4, v4(a4, b4, ICMP, struct.pack(">BBHI", 9, 0, 0, 0))),
            (IPV6, v6(a6, b6, TCP, tcp(x, y))),
            (IPV6, v6(a6, b6, 60, bytes([UDP, 0]) + bytes(6) + udp(x, y))),
            (IPV6, v6(a6, b6, FRAGMENT, bytes([UDP, 0, 0, 1, 0, 0, 0, 1]) + udp(x, y))),
            (IPV6, v6(a6, b6, ICMPV6, struct.pack(">BBHHH", 128, 0, 0, y, 1))),
            (
                IPV6,
                v6(
                    a6, b6, ICMPV6, struct.pack(">BBHI", 2, 0, 0, 1280) + v6(b6, c6, TCP, tcp(x, y))
                ),
            ),
            (IPV4, v4(a4, b4, IPIP, inner4)),
            (IPV4, v4(a4, b4, IPV6_IN_IP, inner6)),
            (IPV4, v4(a4, b4, GRE, struct.pack(">HH", 0, IPV4) + inner4)),
            (IPV4, v4(a4, b4, GRE, struct.pack(">HHI", 0x2000, IPV6, 7) + inner6)),
            (
                IPV4,
                v4(
                    a4,
                    b4,
                    GRE,
                    struct.pack(">HH", 0, BRIDGED) + ethernet + struct.pack(">H", IPV4) + inner4,
                ),
            ),
            (IPV4, v4(a4, b4, GRE, struct.pack(">HH", 1, IPV4) + inner4)),
            (IPV4, v4(a4, b4, UDP, udp(x, 4789))),
            (ARP, struct.pack(">HHBBH", 1, IPV4, 6, 4, 1) + rng.randbytes(20)),
            (0x88B5, rng.randbytes(46)),
        ]
        for kind, packet in packets:
            for tag in (None, rng.randrange(1, 4095)):
                tagged = b"" if tag is None else struct.pack(">HH", VLAN, tag)
                macs = b"\x02" + rng.randbytes(5) + b"\x02" + rng.randbytes(5)
                found.append(macs + tagged + struct.pack(">H", kind) + packet)
    return found


def main() -> None:
    """Prints a line for each frame."""
    print(f"# frame {' '.join(POLICIES)}; written by lab/bond_hash.py")
    for frame in frames():
        print(frame.hex(), *hashes(frame))


if __name__ == "__main__":
    main()
