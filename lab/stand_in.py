"""A switch that only asks: it shows how fast a controller is where no switch is the limit.

Speaks as much OpenFlow 1.3 as a controller needs to believe in it, sends it a frame of another new
connection each, and counts the frames that come back. So many are on the way at a time.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from lab.setups import SetUps

HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY = 0, 1, 2, 3
FEATURES_REQUEST, FEATURES_REPLY, PACKET_IN, PACKET_OUT = 5, 6, 10, 13
MULTIPART_REQUEST, MULTIPART_REPLY, BARRIER_REQUEST, BARRIER_REPLY = 18, 19, 20, 21
ROLE_REQUEST, ROLE_REPLY, FLOW_MOD = 24, 25, 14
#: Multipart types that are answered, with the body of the answer (OpenFlow 1.3.5, 7.3.5).
_BODIES = {0: bytes(1056)}
WINDOW = 48
LOST_AFTER_S = 1.0
_HEADER = struct.Struct("!BBHI")


class StandIn:
    """A connection to a controller, as a switch."""

    def __init__(self, target: tuple[str, int] | Path) -> None:
        if isinstance(target, Path):
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(str(target))
        else:
            self._socket = socket.create_connection(target)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        #: The cookie of the flow that sends frames to the controller, as it was told.
        self._cookie = 0
        self._flows = 0
        self._send(HELLO, 1, struct.pack("!HHI", 1, 8, 1 << 4))

    def close(self) -> None:
        """Ends it."""
        self._socket.close()

    def _send(self, kind: int, xid: int, body: bytes = b"") -> None:
        self._socket.sendall(_HEADER.pack(4, kind, 8 + len(body), xid) + body)

    def settle(self, seconds: float) -> None:
        """Does as it is told for so long, which is time for the controller's first flows."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._take(left)

    def measure(self, syns: Iterator[bytes], seconds: float) -> SetUps:
        """Sends frames while others come back, for so long."""
        sent = done = lost = on_the_way = 0
        start = last = time.monotonic()
        while (now := time.monotonic()) < start + seconds:
            asked = [self._packet_in(next(syns)) for _ in range(WINDOW - on_the_way)]
            self._socket.sendall(b"".join(asked))
            sent, on_the_way = sent + len(asked), WINDOW
            came = self._take(LOST_AFTER_S)
            done, on_the_way = done + came, max(0, on_the_way - came)
            last = now if came else last
            if now - last > LOST_AFTER_S:
                lost, on_the_way, last = lost + on_the_way, 0, now
        return SetUps(sent, done, lost, time.monotonic() - start)

    def _packet_in(self, frame: bytes) -> bytes:
        # A match of the port that it came by: type, length, field, padding.
        match = struct.pack("!HHII4x", 1, 12, 0x80000004, 1)
        head = struct.pack("!IHBBQ", 0xFFFFFFFF, len(frame), 1, 0, self._cookie)
        body = head + match + bytes(2) + frame
        return _HEADER.pack(4, PACKET_IN, 8 + len(body), 0) + body

    def _take(self, patience: float) -> int:
        """Reads what has come and answers it; how many frames came back."""
        self._socket.settimeout(max(patience, 0.001))
        try:
            came = self._socket.recv(1 << 18)
        except TimeoutError:
            return 0
        if not came:
            raise ConnectionError("the controller closed the connection")
        self._rest += came
        at = frames = 0
        while len(self._rest) >= at + 8:
            _, kind, length, xid = _HEADER.unpack_from(self._rest, at)
            if len(self._rest) < at + length:
                break
            if kind == PACKET_OUT:
                frames += 1
            else:
                self._answer(kind, xid, self._rest[at + 8 : at + length])
            at += length
        self._rest = self._rest[at:]
        return frames

    def _answer(self, kind: int, xid: int, body: bytes) -> None:
        if kind == FEATURES_REQUEST:
            self._send(FEATURES_REPLY, xid, struct.pack("!QIBBxxII", 1, 0, 254, 0, 0, 0))
        elif kind == ECHO_REQUEST:
            self._send(ECHO_REPLY, xid, body)
        elif kind == BARRIER_REQUEST:
            self._send(BARRIER_REPLY, xid)
        elif kind == ROLE_REQUEST:
            role, generation = struct.unpack("!I4xQ", body)
            self._send(ROLE_REPLY, xid, struct.pack("!I4xQ", role or 1, generation))
        elif kind == MULTIPART_REQUEST:
            (asked,) = struct.unpack_from("!H", body)
            self._send(
                MULTIPART_REPLY, xid, struct.pack("!HH4x", asked, 0) + _BODIES.get(asked, b"")
            )
        elif kind == FLOW_MOD and not self._cookie:
            # Whose flows they are is in any cookie.
            (self._cookie,) = struct.unpack_from("!Q", body)
