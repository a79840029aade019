"""Sends prepared frames through packet sockets (packet(7)), many at a time, and counts them.

An offload header (PACKET_VNET_HDR) goes before each frame, and a batch of frames is one
sendmmsg(2), so that Python's cost is paid once a batch: some 600 000 frames a second. One process
sends by any number of devices, a batch by each in turn. What the kernel refuses, because a device's
ring is full, is counted and not tried again.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

#: Bounds: this is for measuring, not for leaving on.
LONGEST_S = 120.0
MOST_PER_S = 2_000_000
#: Messages a system call where nothing else is asked for.
BATCH = 32
#: What is printed to standard error once frames go out.
READY = "lab: sending"

_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
_PACKET_QDISC_BYPASS = 20
_SO_SNDBUFFORCE = 32
_SOCKET_BUFFER_BYTES = 4 << 20
#: Preamble, frame check sequence and gap of a frame (IEEE 802.3, clause 4).
_AROUND_FRAME_BYTES = 24
#: The shortest sleep that is worth its system call.
_NAP_S = 50e-6
#: What a line has not carried because a sleep took longer may go at once, for so long.
_LATE_S = 1e-3
_libc = ctypes.CDLL(None, use_errno=True)

# struct virtio_net_hdr (virtio 1.2, section 5.1.6): flags, segmentation, header length, segment
# size, start of the sum, and where it is stored from there.
_OFFLOAD_BYTES = 10
_NEEDS_CSUM = 1
GSO_TCPV4, GSO_UDP = 1, 5


@dataclass(frozen=True)
class Case:
    """Frames that should all come to the same end."""

    what: str
    #: The counter of their drops; None: allowed.
    reason: str | None
    frames: list[bytes]
    #: The offload header before each.
    offload: bytes = field(default=bytes(_OFFLOAD_BYTES))


def offload(start: int, offset: int, kind: int = 0, size: int = 0, headers: int = 0) -> bytes:
    """An offload header with a checksum to finish."""
    return struct.pack("=BBHHHH", _NEEDS_CSUM, kind, headers, size, start, offset)


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("len", ctypes.c_size_t))


class _Msghdr(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint32),
        ("iov", ctypes.POINTER(_Iovec)),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Mmsghdr(ctypes.Structure):
    _fields_ = (("hdr", _Msghdr), ("len", ctypes.c_uint))


class _Round:
    """Messages in memory that the kernel reads, laid out once, sent again and again in order. What
    comes several times in a round is there once."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        places: dict[bytes, int] = {}
        nbytes = 0
        for message in messages:
            if message not in places:
                places[message] = nbytes
                nbytes += len(message)
        self._memory = ctypes.create_string_buffer(b"".join(places))
        self._iovecs = (_Iovec * len(messages))()
        self.headers = (_Mmsghdr * len(messages))()
        start = ctypes.addressof(self._memory)
        for i, message in enumerate(messages):
            self._iovecs[i] = _Iovec(start + places[message], len(message))
            self.headers[i].hdr.iov = ctypes.pointer(self._iovecs[i])
            self.headers[i].hdr.iovlen = 1

    def at(self, index: int) -> object:
        """The headers from `index` on."""
        return ctypes.byref(self.headers, index * ctypes.sizeof(_Mmsghdr))


def taking_turns(cases: Sequence[Case]) -> list[tuple[bytes, Case]]:
    """The messages of one round: the cases take turns until each has sent all its frames."""
    longest = max(len(case.frames) for case in cases)
    return [
        (case.offload + case.frames[turn % len(case.frames)], case)
        for turn in range(longest)
        for case in cases
    ]


def packet_socket(device: str, ethertype: int = 0) -> socket.socket:
    """A socket that sends whole frames by a device, and receives those of an ethertype if one is
    named."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ethertype))
    sock.bind((device, ethertype))
    return sock


class Until:
    """A time from now on that is over after `seconds`, or at SIGTERM."""

    def __init__(self, seconds: float) -> None:
        self._start = time.monotonic()
        self._end = self._start + seconds
        signal.signal(signal.SIGTERM, self._tell)

    def _tell(self, *_: object) -> None:
        self._end = min(self._end, time.monotonic())

    @property
    def over_s(self) -> float:
        """Since when it is over; negative before."""
        return time.monotonic() - self._end

    @property
    def elapsed_s(self) -> float:
        """For how long it has lasted."""
        return time.monotonic() - self._start

    @property
    def lasts_s(self) -> float:
        """How long it is, as far as is known."""
        return self._end - self._start


class Outlet:
    """A device, and what goes out by it in turn."""

    def __init__(self, device: str, cases: Sequence[Case], batch: int = BATCH) -> None:
        self.turns = taking_turns(cases)
        # Whole batches, so that a round need not be cut.
        self.turns *= -(-batch // len(self.turns))
        self._batch = batch
        self.mean_bits = mean_bits([message for message, _ in self.turns])
        self._messages = _Round([message for message, _ in self.turns])
        self.sent = [0] * len(self.turns)
        self.refused: dict[str, int] = {}
        self._at = 0
        self._socket = sock = packet_socket(device)
        sock.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        sock.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SOCKET_BUFFER_BYTES)

    @property
    def due(self) -> int:
        """How many frames the next batch has."""
        return min(self._batch, len(self.turns) - self._at)

    def push(self) -> int:
        """Sends the next batch; how many frames the kernel took or refused."""
        at = self._at
        done: int = _libc.sendmmsg(self._socket.fileno(), self._messages.at(at), self.due, 0)
        if done < 0:
            number = ctypes.get_errno()
            if number not in (errno.ENOBUFS, errno.EAGAIN, errno.EINVAL, errno.EMSGSIZE):
                raise OSError(number, os.strerror(number))
            what = f"{self.turns[at][1].what}: {errno.errorcode[number]}"
            self.refused[what] = self.refused.get(what, 0) + 1
            done = 1
        else:
            for i in range(at, at + done):
                self.sent[i] += 1
        self._at = (at + done) % len(self.turns)
        return done

    def close(self) -> None:
        """Its socket is no longer needed."""
        self._socket.close()


def mean_bits(messages: Sequence[bytes]) -> float:
    """What the frame of one of them, which is behind its offload header, takes of a line."""
    nbytes = sum(len(message) for message in messages) / len(messages)
    return 8 * (nbytes - _OFFLOAD_BYTES + _AROUND_FRAME_BYTES)


def send(
    outlets: Sequence[Outlet], per_s: float, seconds: float, line_bps: float = math.inf
) -> dict[str, object]:
    """Sends for `seconds`, or until SIGTERM, by all outlets together at `per_s`; what was sent.
    What was late is made up for, as fast as the line behind the senders carries it."""
    total, turn = 0, 0
    free_s = 0.0  # when the line has carried all
    until = Until(seconds)
    print(READY, file=sys.stderr, flush=True)
    while until.over_s < 0:
        outlet = outlets[turn]
        behind = until.elapsed_s * per_s - total
        if behind < outlet.due:
            time.sleep(max(_NAP_S, (outlet.due - behind) / per_s))
            continue
        if free_s > until.elapsed_s:
            time.sleep(max(_NAP_S, free_s - until.elapsed_s))
            continue
        done = outlet.push()
        free_s = max(free_s, until.elapsed_s - _LATE_S) + done * outlet.mean_bits / line_bps
        total += done
        turn = (turn + 1) % len(outlets)
    return _report(outlets, until.elapsed_s)


def _report(outlets: Sequence[Outlet], took: float) -> dict[str, object]:
    by_reason: dict[str, int] = {}
    refused: dict[str, int] = {}
    for outlet in outlets:
        for (_, case), count in zip(outlet.turns, outlet.sent, strict=True):
            key = case.reason or "allowed"
            by_reason[key] = by_reason.get(key, 0) + count
        for what, count in outlet.refused.items():
            refused[what] = refused.get(what, 0) + count
    frames_sent = sum(by_reason.values())
    return {
        "frames": frames_sent,
        "seconds": took,
        "per_s": frames_sent / took,
        "by_reason": by_reason,
        "refused": refused,
    }
