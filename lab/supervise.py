"""Starts a program, and starts it again at once when it has ended, as a service manager would.

Each line of the program's standard error is passed on with the (monotonic) time when it came; so
are its starts and ends:

    python -m lab.supervise [--store] levada run -c FILE

    1234.567890 started 4711
    1234.601234 levada: demo ready
    1240.000000 ended -9

With `--store` it also holds descriptors for the program and gives them to the next one, as systemd
does (sd_notify(3): FDSTORE, FDSTOREREMOVE, BARRIER; sd_listen_fds(3)).

SIGTERM ends both. A program that ends `MOST_FAILURES` times within `FAILURE_S` of its start is
given up.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

MOST_FAILURES = 5
FAILURE_S = 1.0
#: Descriptors of a message at most, and its bytes (systemd's NOTIFY_FD_MAX and NOTIFY_BUFFER_MAX).
MOST_FDS, MOST_BYTES = 768, 4096
#: The first descriptor that a program is given (sd_listen_fds(3)).
FIRST_FD = 3


def say(text: str) -> None:
    """One line with the time."""
    print(f"{time.monotonic():.6f} {text}", file=sys.stderr, flush=True)


class Store:
    """Descriptors that outlive the program, and the socket that they come by."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "notify.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._lock = threading.Lock()
        self._held: list[tuple[str, int]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            message, fds, _, _ = socket.recv_fds(self._socket, MOST_BYTES, MOST_FDS)
            fields = dict(line.split("=", 1) for line in message.decode().splitlines())
            with self._lock:
                self._take(fields, fds)

    def _take(self, fields: dict[str, str], fds: list[int]) -> None:
        name = fields.get("FDNAME", "stored")
        if "FDSTOREREMOVE" in fields:
            self._drop(lambda held: held[0] == name)
        self._drop(lambda held: _has_ended(held[1]))
        if "FDSTORE" in fields and name not in (known for known, _ in self._held):
            self._held += [(name, fd) for fd in fds]
        else:
            # What is there already, and the end of a barrier: who waits for it may go on.
            _close(fds)

    def _drop(self, which: Callable[[tuple[str, int]], bool]) -> None:
        _close([fd for name, fd in self._held if which((name, fd))])
        self._held = [held for held in self._held if not which(held)]

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        """Starts the program with what is held for it."""
        with self._lock:
            held = [(name, fd) for name, fd in self._held if not _has_ended(fd)]
            # Above where they go, so that none is overwritten before it is copied.
            highest = FIRST_FD + len(held)
            copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, highest) for _, fd in held]
        moves = " ".join(f"{at}<&{fd} {fd}<&-" for at, fd in enumerate(copies, FIRST_FD))
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": str(self.path),
            "LISTEN_FDS": str(len(held)),
            "LISTEN_FDNAMES": ":".join(name for name, _ in held),
        }
        # The shell becomes the program, and knows the number of its process before.
        script = f'export LISTEN_PID=$$; exec "$@" {moves}'
        try:
            return _start(["bash", "-c", script, "bash", *command], copies, environment)
        finally:
            _close(copies)


def _start(
    command: list[str], fds: Sequence[int] = (), environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=fds,
        env=environment,
    )


def _has_ended(fd: int) -> bool:
    waits = select.poll()
    waits.register(fd, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in waits.poll(0))


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


class Supervisor:
    """The program, and whether it is still wanted."""

    def __init__(self, command: list[str], store: Store | None) -> None:
        self._command = command
        self._store = store
        self._wanted = True
        self._program: subprocess.Popen[str] | None = None
        signal.signal(signal.SIGTERM, self._stop)

    def run(self) -> int:
        """Until SIGTERM, or the program does not stay."""
        start = self._store.start if self._store else _start
        failures = 0
        while self._wanted and failures < MOST_FAILURES:
            started = time.monotonic()
            self._program = program = start(self._command)
            say(f"started {program.pid}")
            assert program.stderr is not None
            for line in program.stderr:
                say(line.rstrip())
            say(f"ended {program.wait()}")
            failures = failures + 1 if time.monotonic() - started < FAILURE_S else 0
        return 1 if self._wanted else 0

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._wanted = False
        if self._program is not None:
            self._program.terminate()


def main(arguments: list[str]) -> int:
    """Supervises what the arguments say."""
    if arguments[:1] != ["--store"]:
        return Supervisor(arguments, None).run()
    with tempfile.TemporaryDirectory() as directory:
        return Supervisor(arguments[1:], Store(Path(directory))).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
