"""Clients of a Unix socket of a daemon, as users of their own: silent crowds, and such as plug
into a VDE directory."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

#: For each call of a socket; a VDE client may take as long to ask (docs/reference/ports/vde.md).
PATIENCE_S = 2
#: Bytes of a `struct sockaddr_un` (unix(7)): a VDE directory's answer.
ADDRESS_BYTES = 110
#: The control socket of a VDE directory.
CTL = "ctl"


@contextlib.contextmanager
def acting_as(user: int, group: int) -> Iterator[None]:
    """This process, which has one thread and is root, is another user meanwhile."""
    os.setegid(group)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def connected(path: Path) -> socket.socket:
    """A connection to a Unix socket, each call of which has its time. Where many wait to be
    accepted it waits too, which it would not under a time of Python's own (unix(7): EAGAIN)."""
    made = socket.socket(socket.AF_UNIX)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        made.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", PATIENCE_S, 0))
    try:
        made.connect(str(path))
    except OSError:
        made.close()
        raise
    return made


class Crowd:
    """Connections of a user to a Unix socket, on which it sends nothing."""

    #: In the answer of a daemon that has no place.
    NO_PLACE = b" 503 "

    def __init__(self, path: Path, user: int, group: int) -> None:
        self._path, self._user, self._group = path, user, group
        self._all: list[tuple[float, socket.socket]] = []
        #: Those that were sent away: told that there is no place, or closed before their time.
        self.early = 0

    def come(self, count: int) -> None:
        """So many more."""
        with acting_as(self._user, self._group), contextlib.suppress(OSError):
            for _ in range(count):
                one = connected(self._path)
                one.setblocking(False)
                self._all.append((time.monotonic(), one))

    def look(self) -> None:
        """Takes what has come, and lets go of what was closed."""
        left = []
        for begun, one in self._all:
            try:
                told = one.recv(4096)
            except BlockingIOError:
                left.append((begun, one))
                continue
            except OSError:
                told = b""
            self.early += self.NO_PLACE in told or time.monotonic() - begun < PATIENCE_S
            one.close()
        self._all = left

    def close(self) -> None:
        """All of them go."""
        for _, one in self._all:
            one.close()


def plugs_in(client: socket.socket, directory: Path, description: str) -> bool:
    """A client of a VDE directory, who has connected, asks for a plug: whether it gets one. That is
    free again when the connection is closed."""
    path = directory / f".{description}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as data:
        data.bind(str(path))
        try:
            client.send(request(path, description))
            return len(client.recv(ADDRESS_BYTES)) == ADDRESS_BYTES
        except OSError:
            return False
        finally:
            path.unlink(missing_ok=True)


def request(path: Path, description: str) -> bytes:
    """For any plug, with the client's datagram socket (ports/src/vde/request.rs)."""
    head = struct.pack("=IIIH", 0xFEED_FACE, 3, 0, socket.AF_UNIX)
    return head + str(path).encode().ljust(ADDRESS_BYTES - 2, b"\0") + description.encode()
