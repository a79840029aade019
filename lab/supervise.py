"""Starts a program, and starts it again at once when it has ended, as a service manager would.

Each line of the program's standard error is passed on with the (monotonic) time when it came; so
are its starts and ends:

    python -m lab.supervise levada run -c FILE

    1234.567890 started 4711
    1234.601234 levada: demo ready
    1240.000000 ended -9

SIGTERM ends both. A program that ends `MOST_FAILURES` times within `FAILURE_S` of its start is
given up.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import FrameType

MOST_FAILURES = 5
FAILURE_S = 1.0


def say(text: str) -> None:
    """One line with the time."""
    print(f"{time.monotonic():.6f} {text}", file=sys.stderr, flush=True)


class Supervisor:
    """The program, and whether it is still wanted."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._wanted = True
        self._program: subprocess.Popen[str] | None = None
        signal.signal(signal.SIGTERM, self._stop)

    def run(self) -> int:
        """Until SIGTERM, or the program does not stay."""
        failures = 0
        while self._wanted and failures < MOST_FAILURES:
            started = time.monotonic()
            self._program = program = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
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


if __name__ == "__main__":
    sys.exit(Supervisor(sys.argv[1:]).run())
