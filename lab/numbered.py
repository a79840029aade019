"""Frames with numbers from one endpoint to another, of an EtherType that no kernel takes: which
ones came, and how often."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import Counter

from lab import frames
from lab.costly import LEAST_BYTES, LOCAL_ETHERTYPE
from lab.net import inside
from lab.sender import packet_socket

_HEADER_BYTES = 14


def outlet(space: str, device: str) -> socket.socket:
    """Sends and receives them by a device."""
    with inside(space):
        made = packet_socket(device, LOCAL_ETHERTYPE)
    made.setblocking(False)
    return made


def frame(to: str, source: str, number: int) -> bytes:
    """One of them, the shortest that there is."""
    payload = struct.pack("!I", number).ljust(LEAST_BYTES - _HEADER_BYTES, b"\0")
    return frames.ethernet(to, source, LOCAL_ETHERTYPE, payload)


def came(by: socket.socket) -> Counter[int]:
    """What has come since the last look: how often, by number."""
    numbers: Counter[int] = Counter()
    with contextlib.suppress(BlockingIOError):
        while True:
            received = by.recv(LEAST_BYTES)
            numbers[struct.unpack_from("!I", received, _HEADER_BYTES)[0]] += 1
    return numbers
