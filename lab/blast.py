"""A bounded UDP blaster and its sink, for small frames and segmentation-offloaded ones.

iperf3 makes one system call a datagram and reaches neither the rate nor the pacing that
floods of 64-byte frames need. Here sendmmsg(2) and recvmmsg(2) are called through ctypes on
arrays prepared once, so that Python's cost is paid once a batch. With `--segments` above one
each message is that many datagrams, handed to the kernel as one (UDP_SEGMENT, udp(7)), and
leaves the sender as one offloaded frame.

Both ends stop by themselves after `--seconds` and then write one JSON object to standard output:

    python -m lab.blast sink --port 7000 --seconds 5
    python -m lab.blast send --to 10.1.0.2 --port 7000 --frame-bytes 64 --per-s 80000 --seconds 5

Frame sizes are as on the wire: Ethernet header and FCS included, preamble and gap not.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import json
import os
import socket
import struct
import sys
import time

#: Ethernet, IPv4 and UDP headers and the FCS around a payload.
HEADERS_BYTES = 14 + 20 + 8 + 4
#: Messages a system call: its cost is spread thin, and a batch of small frames still takes
#: less than 100 us.
BATCH = 32
#: The longest message UDP over IPv4 carries.
MAX_MESSAGE_BYTES = 65_507
#: How often the sink notes what came, the resolution of a window over its rows.
ROW_S = 0.1

_SOL_UDP = 17
_UDP_SEGMENT = 103
_UDP_GRO = 104
_SO_RCVBUFFORCE = 33
_SO_SNDBUFFORCE = 32
_MSG_TRUNC = 0x20
_MSG_WAITFORONE = 0x10000
#: Room for what arrives while the sink is not scheduled: 20 ms of 100 000 small frames a
#: second, each of which the kernel charges about 1 KiB for.
_SOCKET_BUFFER_BYTES = 8 << 20
#: The sink counts, it does not look: longer datagrams are cut, MSG_TRUNC tells their length.
_SINK_BUFFER_BYTES = 64

_libc = ctypes.CDLL(None, use_errno=True)


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


class _Batch:
    """`BATCH` messages of `size` bytes each in memory that the kernel reads or fills."""

    def __init__(self, size: int) -> None:
        self._memory = ctypes.create_string_buffer(size * BATCH)
        self._iovecs = (_Iovec * BATCH)()
        self.headers = (_Mmsghdr * BATCH)()
        base = ctypes.addressof(self._memory)
        for i in range(BATCH):
            self._iovecs[i] = _Iovec(base + i * size, size)
            self.headers[i].hdr.iov = ctypes.pointer(self._iovecs[i])
            self.headers[i].hdr.iovlen = 1


def payload_bytes(frame_bytes: int) -> int:
    """The UDP payload of a frame of that size on the wire."""
    if frame_bytes < HEADERS_BYTES:
        raise ValueError(f"a UDP frame has at least {HEADERS_BYTES} bytes, not {frame_bytes}")
    return frame_bytes - HEADERS_BYTES


def send(
    to: str, port: int, frame_bytes: int, per_s: float, seconds: float, segments: int = 1
) -> dict[str, float]:
    """Sends frames for `seconds` at `per_s` (0: as fast as it goes); what was sent.

    A frame the kernel has no room for (ENOBUFS) is counted as refused, not retried."""
    payload = payload_bytes(frame_bytes)
    if payload * segments > MAX_MESSAGE_BYTES:
        raise ValueError(f"{segments} segments of {payload} bytes exceed {MAX_MESSAGE_BYTES}")
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    _set_buffer(sock, _SO_SNDBUFFORCE, socket.SO_SNDBUF)
    if segments > 1:
        sock.setsockopt(_SOL_UDP, _UDP_SEGMENT, payload)
    sock.connect((to, port))
    batch = _Batch(payload * segments)
    sent = refused = 0
    start = time.monotonic()
    end = start + seconds
    while (now := time.monotonic()) < end:
        due = BATCH if per_s == 0 else int((now - start) * per_s / segments) - sent - refused
        if due < BATCH and per_s:
            time.sleep(max(50e-6, (BATCH - due) * segments / per_s))
            continue
        done = _libc.sendmmsg(sock.fileno(), batch.headers, BATCH, 0)
        if done >= 0:
            sent += done
        elif ctypes.get_errno() in (errno.ENOBUFS, errno.EAGAIN, errno.ECONNREFUSED):
            refused += 1
        else:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    took = time.monotonic() - start
    frames = sent * segments
    return {"frames": frames, "refused": refused, "seconds": took, "per_s": frames / took}


def sink(port: int, seconds: float, payload: int) -> dict[str, object]:
    """Counts what comes to `port` for `seconds`; totals and rows of [time since start in
    s, frames so far]. Datagrams joined on the way (UDP_GRO) are counted one by one."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    _set_buffer(sock, _SO_RCVBUFFORCE, socket.SO_RCVBUF)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
    with contextlib.suppress(OSError):  # kernels before 5.0 never join, which is as well
        sock.setsockopt(_SOL_UDP, _UDP_GRO, 1)
    sock.bind(("", port))
    batch = _Batch(_SINK_BUFFER_BYTES)
    flags = _MSG_TRUNC | _MSG_WAITFORONE
    received = 0
    start = time.monotonic()
    rows: list[tuple[float, int]] = []
    next_row = start
    while (now := time.monotonic()) < start + seconds:
        if now >= next_row:
            rows.append((now - start, received // payload))
            next_row += ROW_S
        done = _libc.recvmmsg(sock.fileno(), batch.headers, BATCH, flags, None)
        for i in range(max(0, done)):
            received += batch.headers[i].len
    rows.append((time.monotonic() - start, received // payload))
    return {"frames": received // payload, "seconds": rows[-1][0], "rows": rows}


def _set_buffer(sock: socket.socket, forced: int, asked: int) -> None:
    """The buffer it needs, or as much of it as the machine allows those who are not root."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, forced, _SOCKET_BUFFER_BYTES)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, asked, _SOCKET_BUFFER_BYTES)


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.blast", description=__doc__.split("\n")[0])
    parser.add_argument("role", choices=["send", "sink"])
    parser.add_argument("--to", help="receiver's IPv4 address (send)")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--frame-bytes", type=int, default=64)
    parser.add_argument("--per-s", type=float, default=0, help="frames a second; 0 is unpaced")
    parser.add_argument("--segments", type=int, default=1, help="datagrams a message")
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    if args.role == "send":
        report: object = send(
            args.to, args.port, args.frame_bytes, args.per_s, args.seconds, args.segments
        )
    else:
        report = sink(args.port, args.seconds, payload_bytes(args.frame_bytes))
    print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
