"""The front end of a machine's port (vhost-user) for whose guest's calls many wait: each call makes
the kernel tell all of them, in the time of who calls, the switch.

The machine has memory and a driver that offers buffers and gives them back, and nothing else: what
comes is thrown away. Who waits is an epoll instance with the eventfd of its calls, which costs
whoever writes there and needs nobody awake. Stops by itself, or at SIGTERM; each `LOOK_S` it says
how often it was called.

    python -m lab.waited_for --socket /tmp/x/guest.sock --waiters 200 --seconds 5

QEMU, `docs/interop/vhost-user.rst`; virtio 1.2, section 2.7 (split virtqueues).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import mmap
import os
import re
import select
import socket
import struct
import sys
import time
from pathlib import Path

from lab.sender import LONGEST_S, READY

#: Where the memory is for the guest, and for the front end.
GUEST, USER = 0x10_0000, 0x7F00_0000_0000
#: Bytes of a ring, and where in it what is available and what was used begin.
RING_BYTES, AVAILABLE, USED = 0x1_0000, 0x8000, 0xA000
ENTRIES, BUFFER_BYTES, RINGS = 1024, 2048, 2
MEMORY_BYTES = RINGS * RING_BYTES + ENTRIES * BUFFER_BYTES
#: VHOST_USER_F_PROTOCOL_FEATURES; of its protocol the least that is offered, several queues.
FEATURES, PROTOCOL_FEATURES = 1 << 30, 1
_VERSION = 1
_HEADER = struct.Struct("=III")
_WRITABLE = 2
#: Messages by their numbers.
GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE = 1, 2, 3, 5
SET_NUM, SET_ADDR, SET_BASE, SET_KICK, SET_CALL = 8, 9, 10, 12, 13
GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM, SET_ENABLE = 15, 16, 17, 18
#: How often buffers are given back, and how often it says how often it was called.
TURN_S, LOOK_S = 0.0005, 0.1
CALLED = "called: "


class Machine:
    """Memory with two rings, of which the first is for what the guest receives."""

    def __init__(self) -> None:
        self.file = os.memfd_create("levada-lab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.file, MEMORY_BYTES)
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._memory = mmap.mmap(self.file, MEMORY_BYTES)
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        self.kicks = [os.eventfd(0, flags) for _ in range(RINGS)]
        self.calls = [os.eventfd(0, flags) for _ in range(RINGS)]
        self.called = 0
        buffers = RINGS * RING_BYTES
        for n in range(ENTRIES):
            where = GUEST + buffers + n * BUFFER_BYTES
            struct.pack_into("<QIHH", self._memory, 16 * n, where, BUFFER_BYTES, _WRITABLE, 0)
            struct.pack_into("<H", self._memory, AVAILABLE + 4 + 2 * n, n)
        self.give_back()

    def give_back(self) -> None:
        """Offers all buffers. They are used in order, so each place of the ring has its own."""
        (used,) = struct.unpack_from("<H", self._memory, USED + 2)
        struct.pack_into("<H", self._memory, AVAILABLE + 2, (used + ENTRIES) & 0xFFFF)

    def look(self) -> int:
        """How often it was called so far."""
        with contextlib.suppress(BlockingIOError):
            self.called += os.eventfd_read(self.calls[0])
        return self.called

    def opening(self) -> list[tuple[int, bytes, list[int]]]:
        """What is said to begin: number, payload and descriptors of each message."""
        region = struct.pack("=QQQQ", GUEST, MEMORY_BYTES, USER, 0)
        said: list[tuple[int, bytes, list[int]]] = [
            (GET_FEATURES, b"", []),
            (GET_PROTOCOL_FEATURES, b"", []),
            (SET_PROTOCOL_FEATURES, struct.pack("=Q", PROTOCOL_FEATURES), []),
            (SET_OWNER, b"", []),
            (SET_FEATURES, struct.pack("=Q", FEATURES), []),
            (SET_MEM_TABLE, struct.pack("=II", 1, 0) + region, [self.file]),
        ]
        for ring in range(RINGS):
            at = USER + ring * RING_BYTES
            said += [
                (SET_NUM, struct.pack("=II", ring, ENTRIES), []),
                (SET_BASE, struct.pack("=II", ring, 0), []),
                (SET_ADDR, struct.pack("=IIQQQQ", ring, 0, at, at + USED, at + AVAILABLE, 0), []),
                (SET_KICK, struct.pack("=Q", ring), [self.kicks[ring]]),
                (SET_CALL, struct.pack("=Q", ring), [self.calls[ring]]),
                (SET_ENABLE, struct.pack("=II", ring, 1), []),
            ]
        return [*said, (GET_QUEUE_NUM, b"", [])]

    def speak(self, stream: socket.socket) -> None:
        """Says all of that, and returns when it was understood."""
        for number, payload, descriptors in self.opening():
            message = _HEADER.pack(number, _VERSION, len(payload)) + payload
            socket.send_fds(stream, [message], descriptors)
            if number in (GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM):
                answer = stream.recv(_HEADER.size + 8, socket.MSG_WAITALL)
                if len(answer) < _HEADER.size + 8:
                    raise ConnectionResetError("the switch has ended the session")


def wait_for(eventfd: int, count: int) -> list[select.epoll]:
    """So many who wait for a descriptor, each for itself."""
    waiters = [select.epoll() for _ in range(count)]
    for waiter in waiters:
        waiter.register(eventfd, select.EPOLLIN | select.EPOLLET)
    return waiters


def last_told(log: str) -> int:
    """How often it was called when it last said so."""
    told = re.findall(rf"^{CALLED}(\d+)$", log, re.MULTILINE)
    return int(told[-1]) if told else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.waited_for", description=__doc__.split("\n")[0])
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--waiters", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=LONGEST_S)
    args = parser.parse_args()
    if not 0 < args.seconds <= LONGEST_S or not 0 <= args.waiters <= 900:
        parser.error(f"at most {LONGEST_S:g} s and 900 who wait")
    machine = Machine()
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(str(args.socket))
        machine.speak(stream)
        waiters = wait_for(machine.calls[0], args.waiters)
        print(READY, file=sys.stderr, flush=True)
        end, told_s = time.monotonic() + args.seconds, 0.0
        while (now := time.monotonic()) < end:
            machine.give_back()
            if now >= told_s:
                print(f"{CALLED}{machine.look()}", file=sys.stderr, flush=True)
                told_s = now + LOOK_S
            time.sleep(TURN_S)
    for waiter in waiters:
        waiter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
