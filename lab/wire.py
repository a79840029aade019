"""What payload takes on the wire: one unit for what guests receive over any switch.

Guarantees count the wire: payload, headers, VLAN tag, FCS, preamble and gap. A guest's device
counts a segmentation-offloaded frame once, with one set of headers, so its counters alone
do not tell. But payload does: it left the sender in full frames of a known payload each, and is
scaled by what such a frame takes. That is exact for bulk traffic in one protocol per device; of a
short last frame it is not, which bulk traffic has few of.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.net import Received

MTU_BYTES = 1500
ETHERNET_BYTES = 14
#: Of a UDP datagram in a frame: Ethernet, IPv4 and UDP headers, and the FCS.
UDP_FRAME_BYTES = ETHERNET_BYTES + 20 + 8 + 4
#: 802.1Q tag, FCS, preamble and gap: what no guest sees.
UNSEEN_BYTES = 4 + 4 + 20
#: A full frame on the wire.
FULL_BYTES = MTU_BYTES + ETHERNET_BYTES + UNSEEN_BYTES


@dataclass(frozen=True)
class Protocol:
    """A transport over IPv4."""

    name: str
    #: Its header, and IPv4's.
    headers_bytes: int

    @property
    def payload_bytes(self) -> int:
        """Of a full frame."""
        return MTU_BYTES - self.headers_bytes


#: With timestamps, which Linux uses by default.
TCP = Protocol("TCP", 20 + 32)
UDP = Protocol("UDP", 20 + 8)


def wire_bits(received: Received, protocol: Protocol) -> float:
    """What bulk traffic that a device has received took on the wire."""
    seen_headers = received.frames * (ETHERNET_BYTES + protocol.headers_bytes)
    payload = max(0, received.nbytes - seen_headers)
    return 8 * payload * FULL_BYTES / protocol.payload_bytes
