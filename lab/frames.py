"""Ethernet frames as bytes, right or wrong: every length can be told to lie.

Enough of Ethernet (IEEE 802.3), ARP (RFC 826), IPv4 (RFC 791), IPv6 (RFC 8200), UDP (RFC 768), TCP
(RFC 9293), ICMPv6 (RFC 4443), LLC and SNAP (IEEE 802.2, 802) to make what `lab.hostile`,
`lab.costly` and `lab.gate` send. Addresses are text. IPv4's checksum is right, as a receiver would
otherwise drop before it looks; a transport's is left zero, which UDP allows, but for ICMPv6's.
"""

from __future__ import annotations

import ipaddress
import struct

IPV4, ARP, IPV6, VLAN, MAC_CONTROL = 0x0800, 0x0806, 0x86DD, 0x8100, 0x8808
ICMP, TCP, UDP, ICMPV6, HOP_BY_HOP, FRAGMENT = 1, 6, 17, 58, 0, 44
BROADCAST = "ff:ff:ff:ff:ff:ff"
#: Of IPv4's field of flags and fragment offset.
MORE_FRAGMENTS = 0x2000


def mac_bytes(mac: str) -> bytes:
    """The 6 bytes of a MAC address."""
    return bytes.fromhex(mac.replace(":", ""))


def ethernet(to: str, source: str, ethertype: int, payload: bytes) -> bytes:
    """A frame. An `ethertype` below 0x600 is a length (IEEE 802.3, clause 3.2.6)."""
    return mac_bytes(to) + mac_bytes(source) + struct.pack("!H", ethertype) + payload


def arp(operation: int, sender_mac: str, sender_ip: str, target_ip: str) -> bytes:
    """A message: operation 1 asks, 2 answers."""
    sender = mac_bytes(sender_mac) + ipaddress.IPv4Address(sender_ip).packed
    target = bytes(6) + ipaddress.IPv4Address(target_ip).packed
    return struct.pack("!HHBBH", 1, IPV4, 6, 4, operation) + sender + target


def ipv4(
    source: str,
    to: str,
    protocol: int,
    payload: bytes,
    *,
    version: int = 4,
    words: int = 5,
    total: int | None = None,
    fragment: int = 0,
    identification: int = 0,
) -> bytes:
    """A packet. `words` and `total` are the lengths that it claims, `fragment` the field of flags
    and offset."""
    length = 20 + len(payload) if total is None else total
    head = struct.pack(
        "!BBHHHBBH4s4s",
        *(version << 4 | words, 0, length, identification, fragment, 64, protocol, 0),
        *(ipaddress.IPv4Address(source).packed, ipaddress.IPv4Address(to).packed),
    )
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def ipv6(source: str, to: str, following: int, payload: bytes, length: int | None = None) -> bytes:
    """A packet; `length` is the payload's as it claims. Hop limit 255, as neighbour discovery
    needs."""
    claimed = len(payload) if length is None else length
    ends = ipaddress.IPv6Address(source).packed + ipaddress.IPv6Address(to).packed
    return struct.pack("!IHBB", 6 << 28, claimed, following, 255) + ends + payload


def udp(source: int, to: int, payload: bytes, length: int | None = None) -> bytes:
    """A datagram; `length` as it claims."""
    claimed = 8 + len(payload) if length is None else length
    return struct.pack("!HHHH", source, to, claimed, 0) + payload


#: Flags of TCP.
SYN, ACK = 0x02, 0x10


def tcp(source: int, to: int, payload: bytes, words: int = 5, flags: int = ACK) -> bytes:
    """A segment; `words` is the header's length as it claims."""
    return struct.pack("!HHIIBBHHH", source, to, 1, 1, words << 4, flags, 65535, 0, 0) + payload


def icmpv6(source: str, to: str, message: bytes) -> bytes:
    """A packet with a message, whose checksum is made."""
    ends = ipaddress.IPv6Address(source).packed + ipaddress.IPv6Address(to).packed
    bare = message[:2] + bytes(2) + message[4:]
    even = bare + bytes(len(bare) % 2)
    made = checksum(ends + struct.pack("!II", len(message), ICMPV6) + even)
    return ipv6(source, to, ICMPV6, bare[:2] + struct.pack("!H", made) + bare[4:])


def begun(segment: bytes, at: int, source: str, to: str, protocol: int) -> bytes:
    """A TCP segment or UDP datagram over IPv4 whose checksum, `at` its place, is begun with the
    pseudo-header, as who leaves the rest to the device has to (virtio 1.2, section 5.1.6.2)."""
    ends = ipaddress.IPv4Address(source).packed + ipaddress.IPv4Address(to).packed
    sum_ = ~checksum(ends + struct.pack("!HH", protocol, len(segment))) & 0xFFFF
    return segment[:at] + struct.pack("!H", sum_) + segment[at + 2 :]


def llc(to: str, source: str, payload: bytes) -> bytes:
    """A frame with a length, of a protocol that says what it is by LLC."""
    return ethernet(to, source, len(payload), payload)


def snap(organisation: str, protocol: int, payload: bytes) -> bytes:
    """An LLC payload of an organisation's own protocol."""
    return bytes.fromhex("aaaa03" + organisation) + struct.pack("!H", protocol) + payload


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def link_local(mac: str) -> str:
    """The IPv6 address that a host makes of its MAC address (RFC 4291, appendix A)."""
    m = mac_bytes(mac)
    identifier = bytes([m[0] ^ 2]) + m[1:3] + b"\xff\xfe" + m[3:]
    return str(ipaddress.IPv6Address(bytes.fromhex("fe80000000000000") + identifier))
