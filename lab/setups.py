"""Connections set up as fast as a switch does it: SYNs into it, and out of it at the servers.

One program with a packet socket at each end. So many are on the way at a time that the next one
always waits, and a controller's queue in the switch (100 frames) never overflows. The servers have
no address, so nothing answers, and only the way there is set up by frames.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from lab import frames
from lab.net import inside

ETH_P_ALL = 3
#: On the way at a time.
WINDOW = 48
#: What has not come for so long is lost.
LOST_AFTER_S = 0.5
#: Connections of one client's address; then comes the next address.
PORTS = 20_000
FIRST_PORT = 10_000
_SEEN = struct.Struct("!12xH")


@dataclass(frozen=True)
class End:
    """A device in a namespace."""

    namespace: str
    device: str


@dataclass(frozen=True)
class SetUps:
    """What came out."""

    sent: int
    done: int
    lost: int
    seconds: float

    @property
    def per_s(self) -> float:
        """Connections a second."""
        return self.done / self.seconds


def syns(mac: str, service_mac: str, service: str, port: int, clients: str) -> Iterator[bytes]:
    """A SYN of another connection each, from addresses that begin with `clients`."""
    for host in range(1, 250):
        client = f"{clients}.{host}"
        head = frames.tcp(0, port, b"", flags=frames.SYN)
        packet = frames.ipv4(client, service, frames.TCP, head)
        frame = bytearray(frames.ethernet(service_mac, mac, frames.IPV4, packet.ljust(46, b"\0")))
        # Connection tracking drops what has a wrong checksum: RFC 9293's, with its pseudo-header.
        words = struct.unpack("!14H", packet[12:40])
        rest = sum(words) + frames.TCP + len(head)
        for source in range(FIRST_PORT, FIRST_PORT + PORTS):
            total = rest + source
            total = (total & 0xFFFF) + (total >> 16)
            total = (total & 0xFFFF) + (total >> 16)
            struct.pack_into("!H", frame, 34, source)
            struct.pack_into("!H", frame, 50, total ^ 0xFFFF)
            yield bytes(frame)


def measure(client: End, servers: list[End], syns: Iterator[bytes], seconds: float) -> SetUps:
    """Sends while others come out, for so long."""
    out = _socket(client)
    ends = [_socket(server) for server in servers]
    poll = select.poll()
    by_number = {end.fileno(): end for end in ends}
    for end in ends:
        poll.register(end, select.POLLIN)
    sent = done = lost = on_the_way = 0
    start = last = time.monotonic()
    end_at = start + seconds
    try:
        while (now := time.monotonic()) < end_at:
            while on_the_way < WINDOW:
                out.send(next(syns))
                sent, on_the_way = sent + 1, on_the_way + 1
            for number, _ in poll.poll(1000 * LOST_AFTER_S):
                came = _drain(by_number[number])
                done, on_the_way = done + came, max(0, on_the_way - came)
                last = now if came else last
            if now - last > LOST_AFTER_S:
                lost, on_the_way, last = lost + on_the_way, 0, now
        return SetUps(sent, done, lost, time.monotonic() - start)
    finally:
        for end in (out, *ends):
            end.close()


def _socket(end: End) -> socket.socket:
    with inside(end.namespace):
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    made.bind((end.device, 0))
    made.setblocking(False)
    return made


def _drain(end: socket.socket) -> int:
    """How many SYNs have come out."""
    count = 0
    while True:
        try:
            frame = end.recv(2048)
        except BlockingIOError:
            return count
        is_tcp = len(frame) >= 54 and _SEEN.unpack_from(frame)[0] == frames.IPV4 and frame[23] == 6
        count += is_tcp and frame[47] & (frames.SYN | frames.ACK) == frames.SYN
