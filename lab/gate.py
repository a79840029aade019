"""Single frames of an endpoint beside a victim, and the verdict that each has to have.

Both endpoints declare their addresses, and both tenants are in the untagged network, where the
router is too. Each frame is sent once, with a mark at its end, and looked for at the victim, at the
router and in the counters of the sender's drops. What must not pass is what claims to be another's,
and what switches and routers say to each other; what passes is what a guest may say, however
strange.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lab import frames
from lab.attacked import ATTACKER, ROUTER, VICTIM, Attacked, Scene
from lab.costly import GROUP_MAC
from lab.frames import ethernet, icmpv6, ipv4, ipv6, llc, snap, udp
from lab.net import Lab, inside
from lab.report import Claim, at_most
from lab.sender import packet_socket
from lab.stats import table
from lab.switches.one_host import UPLINK
from lab.topology import Endpoint

PASSES = "passes"
#: The victim's link-local address, which it declares (RFC 7217).
VICTIM_LOCAL = "fe80::a1b2:c3d4:e5f6:708"
VICTIM_IP6, OWN_IP6 = "2001:db8::1", "2001:db8::2"
ROUTER_LOCAL = "fe80::1"
#: An address that nobody has declared.
STRANGER, STRANGER_MAC = "10.1.0.9", "02:aa:aa:aa:aa:aa"
#: How long a frame may take to where it goes, and the switch to count it.
ARRIVES_S = 0.03
_ALL = 0x0003
_MARK = b"levada-gate"
_LEAST_BYTES = 60
_MOST_BYTES = 2048


@dataclass(frozen=True)
class Kind:
    """A frame, and what has to become of it: `PASSES`, or the counter of its drop."""

    what: str
    expected: str
    frame: bytes

    def marked(self, number: int) -> bytes:
        """The frame with its mark, behind what its headers say that it holds."""
        padding = bytes(max(0, _LEAST_BYTES - len(_MARK) - 2 - len(self.frame)))
        return self.frame + padding + _MARK + struct.pack("!H", number)


@dataclass(frozen=True)
class Verdict:
    """What became of a kind."""

    what: str
    expected: str
    found: str

    @property
    def is_right(self) -> bool:
        return self.found == self.expected

    def as_row(self) -> dict[str, Any]:
        """For result.json."""
        return {"labels": {"frame": self.what}, "valid": True, **asdict(self)}


@dataclass(frozen=True)
class Who:
    """MAC and IPv4 addresses of the victim and of who sends."""

    victim_mac: str
    victim_ip: str
    mac: str
    ip: str

    @property
    def local(self) -> str:
        return frames.link_local(self.mac)


# --- the frames ---------------------------------------------------------------------------

ALL_NODES, ALL_NODES_MAC = "ff02::1", "33:33:00:00:00:01"
_CISCO, _PVST = "01:00:0c:cc:cc:cc", "01:00:0c:cc:cc:cd"
_CISCO_ORGANISATION = "00000c"
_SPANNING_TREE = bytes.fromhex("424203") + bytes(35)
#: The counter of what bridges and switches say to each other, and a guest does not.
_CONTROL = "control-protocol"
_OWN_OVERRIDE, _SOLICITED = 0x2000_0000, 0x6000_0000


def kinds(w: Who) -> list[Kind]:
    """All frames."""
    return [
        *_honest(w),
        *_arp(w),
        *_neighbour_discovery(w),
        *_router_advertisements(w),
        *_dhcp(w),
        *_control(w),
        *_routing(w),
        *_tagged(w),
        *_sources(w),
    ]


def _datagram(w: Who, source: str | None = None) -> bytes:
    """UDP over IPv4 to the victim."""
    return ipv4(source or w.ip, w.victim_ip, frames.UDP, udp(9, 9, bytes(20)))


def _to_victim(w: Who, ethertype: int, payload: bytes) -> bytes:
    return ethernet(w.victim_mac, w.mac, ethertype, payload)


def _honest(w: Who) -> Iterator[Kind]:
    yield Kind("UDP to the victim", PASSES, _to_victim(w, frames.IPV4, _datagram(w)))
    query = ipv4(w.ip, "224.0.0.251", frames.UDP, udp(5353, 5353, bytes(20)))
    yield Kind("mDNS", PASSES, ethernet("01:00:5e:00:00:fb", w.mac, frames.IPV4, query))
    for what, inner in (
        ("IPv4 in IPv4", ipv4(w.ip, w.victim_ip, 4, _datagram(w))),
        ("GRE", ipv4(w.ip, w.victim_ip, 47, struct.pack("!HH", 0, frames.IPV4) + _datagram(w))),
    ):
        yield Kind(f"a guest's own tunnel, {what}", PASSES, _to_victim(w, frames.IPV4, inner))
    asks = frames.arp(1, w.mac, w.ip, w.victim_ip)
    yield Kind("ARP asks", PASSES, ethernet(frames.BROADCAST, w.mac, frames.ARP, asks))


def _arp(w: Who) -> Iterator[Kind]:
    for what, expected, to, (operation, mac, source, target) in (
        ("probe for its own address", PASSES, frames.BROADCAST, (1, w.mac, "0.0.0.0", w.ip)),
        (
            "probe for the victim's",
            "spoofed-arp",
            frames.BROADCAST,
            (1, w.mac, "0.0.0.0", w.victim_ip),
        ),
        ("answer for the victim", "spoofed-arp", frames.BROADCAST, (2, w.mac, w.victim_ip, w.ip)),
        (
            "answer for nobody's address",
            "spoofed-arp",
            w.victim_mac,
            (2, w.mac, STRANGER, w.victim_ip),
        ),
        (
            "answer without an address",
            "spoofed-arp",
            w.victim_mac,
            (2, w.mac, "0.0.0.0", w.victim_ip),
        ),
        (
            "its address at another MAC",
            "spoofed-arp",
            w.victim_mac,
            (2, STRANGER_MAC, w.ip, w.victim_ip),
        ),
    ):
        message = frames.arp(operation, mac, source, target)
        yield Kind(f"ARP {what}", expected, ethernet(to, w.mac, frames.ARP, message))


def _advertises(source: str, target: str, mac: str, flags: int = _OWN_OVERRIDE) -> bytes:
    body = struct.pack("!BBHI", 136, 0, 0, flags) + ipaddress.IPv6Address(target).packed
    return icmpv6(source, ALL_NODES, body + bytes([2, 1]) + frames.mac_bytes(mac))


def _detects(target: str) -> bytes:
    """Duplicate address detection (RFC 4862, section 5.4)."""
    body = struct.pack("!BBHI", 135, 0, 0, 0) + ipaddress.IPv6Address(target).packed
    return icmpv6("::", "ff02::1:ff00:1", body)


def _neighbour_discovery(w: Who) -> Iterator[Kind]:
    for what, expected, packet in (
        ("advertises its own address", PASSES, _advertises(OWN_IP6, OWN_IP6, w.mac)),
        ("solicited, its own", PASSES, _advertises(OWN_IP6, OWN_IP6, w.mac, _SOLICITED)),
        ("advertises the victim's", "spoofed-nd", _advertises(w.local, VICTIM_IP6, w.mac)),
        ("the victim's link-local", "spoofed-nd", _advertises(w.local, VICTIM_LOCAL, w.mac)),
        ("detects its own address", PASSES, _detects(w.local)),
        ("detects the victim's link-local", "spoofed-nd", _detects(VICTIM_LOCAL)),
        (
            "from the victim's link-local",
            "spoofed-ipv6",
            ipv6(VICTIM_LOCAL, ALL_NODES, frames.UDP, udp(9, 9, bytes(20))),
        ),
    ):
        frame = ethernet(ALL_NODES_MAC, w.mac, frames.IPV6, packet)
        yield Kind(f"neighbour discovery: {what}", expected, frame)


def _router_advertisements(w: Who) -> Iterator[Kind]:
    reason = "router-advertisement"
    option = bytes([1, 1]) + frames.mac_bytes(w.mac)
    body = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0) + option
    bare = icmpv6(w.local, ALL_NODES, body)
    message = bare[40:]
    options = bytes([frames.ICMPV6, 0, 1, 4, 0, 0, 0, 0])
    to_options = bytes([60, 0, 1, 4, 0, 0, 0, 0])
    for what, packet in (
        ("bare", bare),
        ("behind hop-by-hop options", ipv6(w.local, ALL_NODES, 0, options + message)),
        ("behind seven options", ipv6(w.local, ALL_NODES, 60, to_options * 6 + options + message)),
    ):
        frame = ethernet(ALL_NODES_MAC, w.mac, frames.IPV6, packet)
        yield Kind(f"router advertisement, {what}", reason, frame)


def _dhcp(w: Who) -> Iterator[Kind]:
    offer = bytes([2]) + bytes(239)
    everyone = "255.255.255.255"
    for what, expected, length, fragment in (
        ("whole", "dhcp-server", None, 0),
        ("in a first fragment", "dhcp-server", 1000, frames.MORE_FRAGMENTS),
        ("in a first fragment without a length", "malformed", 0, frames.MORE_FRAGMENTS),
    ):
        datagram = udp(67, 68, offer, length)
        packet = ipv4(w.ip, everyone, frames.UDP, datagram, fragment=fragment)
        frame = ethernet(frames.BROADCAST, w.mac, frames.IPV4, packet)
        yield Kind(f"DHCP server, {what}", expected, frame)
    six = ipv6(w.local, ALL_NODES, frames.UDP, udp(547, 546, bytes([7]) + bytes(20)))
    yield Kind("DHCPv6 server", "dhcp-server", ethernet(ALL_NODES_MAC, w.mac, frames.IPV6, six))


def _control(w: Who) -> Iterator[Kind]:
    """What the switches and routers of the outside say to each other (IEEE 802.1Q, table 8-1 and
    clause 10; Cisco's protocols by their SNAP type)."""
    spoken = {"CDP": 0x2000, "VTP": 0x2003, "DTP": 0x2004, "UDLD": 0x0111, "PAgP": 0x0104}
    for name, protocol in spoken.items():
        payload = snap(_CISCO_ORGANISATION, protocol, bytes(30))
        yield Kind(name, _CONTROL, llc(_CISCO, w.mac, payload))
    pvst = snap(_CISCO_ORGANISATION, 0x010B, bytes(42))
    yield Kind("PVST+", _CONTROL, llc(_PVST, w.mac, pvst))
    for last, what in ((0x20, "GMRP"), (0x21, "MVRP"), (0x2F, "the last of its block")):
        frame = llc(f"01:80:c2:00:00:{last:02x}", w.mac, _SPANNING_TREE)
        yield Kind(f"01:80:c2:00:00:{last:02x}, {what}", _CONTROL, frame)
    yield Kind("spanning tree", "reserved", llc("01:80:c2:00:00:00", w.mac, _SPANNING_TREE))
    for what, to, ethertype in (
        ("LLDP", "01:80:c2:00:00:0e", 0x88CC),
        ("LACP", "01:80:c2:00:00:02", 0x8809),
        ("PAUSE", "01:80:c2:00:00:01", frames.MAC_CONTROL),
        ("PAUSE to the victim", w.victim_mac, frames.MAC_CONTROL),
    ):
        payload = bytes([0, 1, 0xFF, 0xFF]) + bytes(42)
        yield Kind(what, "reserved", ethernet(to, w.mac, ethertype, payload))
    yield Kind("LLDP to another group", _CONTROL, ethernet(GROUP_MAC, w.mac, 0x88CC, bytes(46)))


def _routing(w: Who) -> Iterator[Kind]:
    """What only routers say to hosts and to each other."""
    query = bytes.fromhex("1164ee9b") + bytes(4)
    for what, number, group, payload in (
        ("a membership query (IGMP)", 2, "224.0.0.1", query),
        ("OSPF", 89, "224.0.0.5", bytes(44)),
        ("VRRP", 112, "224.0.0.18", bytes(20)),
    ):
        packet = ipv4(w.ip, group, number, payload)
        frame = ethernet("01:00:5e" + group_end(group), w.mac, frames.IPV4, packet)
        yield Kind(what, "router-advertisement", frame)


def group_end(group: str) -> str:
    """The last half of a group's MAC address (RFC 1112, section 6.4)."""
    end = ipaddress.IPv4Address(group).packed[1:]
    return ":" + bytes([end[0] & 0x7F, *end[1:]]).hex(":")


def _tagged(w: Who) -> Iterator[Kind]:
    inner = struct.pack("!HH", 10, frames.IPV4) + _datagram(w)
    for what, ethertype in (("802.1Q", frames.VLAN), ("802.1ad", 0x88A8), ("0x9100", 0x9100)):
        yield Kind(f"a tag of {what}", "bad-vlan", _to_victim(w, ethertype, inner))
    hidden = snap("000000", frames.IPV4, _datagram(w, STRANGER))
    yield Kind("IPv4 that hides in SNAP", "malformed", llc(w.victim_mac, w.mac, hidden))


def _sources(w: Who) -> Iterator[Kind]:
    group = ethernet(w.victim_mac, "03:00:00:00:00:02", frames.IPV4, _datagram(w))
    yield Kind("from a group", "bad-source", group)
    theirs = ethernet(w.victim_mac, STRANGER_MAC, frames.IPV4, _datagram(w))
    yield Kind("from another MAC", "spoofed-mac", theirs)
    for what, source in (
        ("the victim's", w.victim_ip),
        ("nobody's", STRANGER),
        ("127.0.0.1", "127.0.0.1"),
    ):
        yield Kind(
            f"from IPv4 {what}", "spoofed-ipv4", _to_victim(w, frames.IPV4, _datagram(w, source))
        )
    for what, source in (("the victim's", VICTIM_IP6), ("IPv4-mapped", f"::ffff:{w.victim_ip}")):
        packet = ipv6(source, VICTIM_IP6, frames.UDP, udp(9, 9, bytes(20)))
        yield Kind(f"from IPv6 {what}", "spoofed-ipv6", _to_victim(w, frames.IPV6, packet))


# --- playing ------------------------------------------------------------------------------

SCENE = Scene("single frames", (), untagged=True)


class Gated(Attacked):
    """A victim and a neighbour that declare addresses of all kinds."""

    def _identity(self, endpoint: Endpoint) -> dict[str, object]:
        six = {VICTIM: [VICTIM_LOCAL, VICTIM_IP6], ATTACKER: [OWN_IP6]}
        identity = super()._identity(endpoint)
        return {**identity, "ip": [self.topology.address(endpoint), *six.get(endpoint.name, [])]}

    def who(self) -> Who:
        """The addresses."""
        victim, own = (self.guests[name].address for name in (VICTIM, ATTACKER))
        return Who(self.mac(VICTIM), victim, self.mac(ATTACKER), own)


def play(lab: Lab) -> list[Verdict]:
    """Sends each frame, and looks what becomes of it."""
    switch = Gated(lab, SCENE)
    with switch.running():
        sender = _socket(switch, ATTACKER, ATTACKER)
        receivers = [_socket(switch, VICTIM, VICTIM), _socket(switch, ROUTER, UPLINK)]
        found = []
        before = switch.drops(ATTACKER)
        for number, kind in enumerate(kinds(switch.who())):
            frame = kind.marked(number)
            sender.send(frame)
            time.sleep(ARRIVES_S)
            passed = any([_has_mark(r, frame[-len(_MARK) - 2 :]) for r in receivers])
            after = switch.drops(ATTACKER)
            counted = [r for r, n in after.items() if n > before.get(r, 0)]
            before = after
            verdict = PASSES if passed else ", ".join(counted) or "lost"
            found.append(Verdict(kind.what, kind.expected, verdict))
        for sock in (sender, *receivers):
            sock.close()
    return found


def _socket(switch: Attacked, guest: str, device: str) -> socket.socket:
    with inside(switch.guests[guest].namespace.name):
        sock = packet_socket(device, _ALL)
    sock.setblocking(False)
    return sock


def _has_mark(receiver: socket.socket, mark: bytes) -> bool:
    """Whether one of the frames that have come has this mark; takes them all."""
    seen = False
    while True:
        try:
            seen |= receiver.recv(_MOST_BYTES).endswith(mark)
        except BlockingIOError:
            return seen


def claims(verdicts: Sequence[Verdict]) -> list[Claim]:
    """That each frame has its verdict; first, what must not pass does not."""
    forbidden = [v for v in verdicts if v.expected != PASSES]
    passed = sum(v.found == PASSES for v in forbidden)
    wrong = sum(not v.is_right for v in verdicts)
    return [
        at_most(f"{len(forbidden)} frames that must not pass: passed", passed, "frames", 0),
        at_most(f"all {len(verdicts)} frames: another verdict", wrong, "frames", 0),
    ]


def verdicts_table(verdicts: Sequence[Verdict]) -> str:
    """Each frame, what has to become of it, and what did."""
    rows = [[v.what, v.expected, v.found, "" if v.is_right else "WRONG"] for v in verdicts]
    return table(["frame", "has to be", "was", ""], rows)
