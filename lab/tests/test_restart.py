"""How gaps are found, and that the supervisor does start its program again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.experiments.restart import (
    AFTER_S,
    WAYS,
    Restart,
    claims,
    longest_gap,
    supervisor_times,
    with_gaps,
)
from lab.net import Failed

LOG = """\
1.000000 started 10
1.020000 levada: x ready
5.000000 ended -9
5.001000 started 11
5.025000 levada: x ready
"""


def restart(gap_ms: float, disturbed: str | None = None) -> Restart:
    return Restart({"way": "x"}, 100.0, 1.0, 2.0, 0.5, 0.0, None, disturbed, gap_ms)


def test_times_of_the_supervisor() -> None:
    assert supervisor_times(LOG, 10) == (5.0, 5.025)
    with pytest.raises(Failed, match="not ready again"):
        supervisor_times(LOG, 11)


def test_the_longest_gap_of_a_window() -> None:
    rows = [(t / 10, t) for t in range(10)] + [(1.5, 10), (1.6, 11)]
    assert longest_gap(rows, 1.0, 1.7) == pytest.approx(0.6)
    assert longest_gap(rows, 0.0, 0.9) == pytest.approx(0.1)
    # Nothing came any more.
    assert longest_gap(rows, 1.55, 9.6) == pytest.approx(8.0)
    assert longest_gap([], 3.0, 5.0) == 2.0


def test_a_restart_has_the_gap_of_its_worst_connection() -> None:
    steady = [(98 + n / 100, n) for n in range(100 * int(3 + AFTER_S))]
    broken = [row for row in steady if not 100.001 < row[0] < 100.2]
    told = with_gaps(restart(0), [steady, steady, broken])
    assert told.gap_ms == pytest.approx(200, abs=1)
    assert told.median_gap_ms == pytest.approx(10, abs=1)
    assert told.quiet_gap_ms == pytest.approx(10, abs=1)


def test_claims_take_the_median_of_what_counts() -> None:
    restarts = [restart(30), restart(900, disturbed="others"), restart(250), restart(100)]
    lost, gap = claims(WAYS[0], restarts, 0, 3)
    assert lost.holds
    assert gap.value == 100
    assert gap.holds
    assert claims(WAYS[0], restarts, 0, 5)[1].value is None, "three of five are too few"
    lost, gap = claims(WAYS[1], [restart(900, disturbed="others")], 1, 1)
    assert not lost.holds
    assert gap.value is None
    assert not gap.holds


def supervise(*command: str) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [sys.executable, "-m", "lab.supervise", *command],
        cwd=root,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_program_is_started_again_and_both_end_on_request() -> None:
    supervisor = supervise("sh", "-c", "echo ready >&2; exec sleep 60")
    assert supervisor.stderr is not None
    started = []
    for line in supervisor.stderr:
        at, what, *more = line.split()
        assert abs(float(at) - time.monotonic()) < 10
        if what == "started":
            started.append(int(more[0]))
        elif what == "ready" and len(started) == 1:
            os.kill(started[0], signal.SIGKILL)
        elif what == "ready":
            supervisor.terminate()
    assert supervisor.wait(60) == 0
    assert len(started) == 2
    with pytest.raises(ProcessLookupError):
        os.kill(started[1], 0)


#: Leaves a pipe with what is in it to the next, and a second one that it takes back.
_STORING = """
import os, socket, sys, time
say = lambda *words: print(*words, file=sys.stderr, flush=True)
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.connect(os.environ["NOTIFY_SOCKET"])
send = lambda text, *fds: socket.send_fds(manager, [text.encode()], fds)
assert int(os.environ["LISTEN_PID"]) == os.getpid()
names = os.environ["LISTEN_FDNAMES"].split(":") if os.environ["LISTEN_FDS"] != "0" else []
if not names:
    pipes = [os.pipe() for _ in range(2)]
    os.write(pipes[0][1], b"left")
    for name, (read, end) in zip(("one", "two"), pipes):
        send("FDSTORE=1\\nFDNAME=" + name, read)
        send("FDSTORE=1\\nFDNAME=" + name + "-end", end)
    send("FDSTOREREMOVE=1\\nFDNAME=two")
    read, write = os.pipe()
    send("BARRIER=1", write)
    os.close(write)
    os.read(read, 1)
    say("stored")
else:
    say("found", *names, os.read(3, 9).decode())
time.sleep(60)
"""


def test_what_a_program_stores_is_given_to_the_next() -> None:
    supervisor = supervise("--store", sys.executable, "-c", _STORING)
    assert supervisor.stderr is not None
    found, pid = "", 0
    for line in supervisor.stderr:
        _, what, *more = line.split()
        if what == "started":
            pid = int(more[0])
        elif what == "stored":
            os.kill(pid, signal.SIGKILL)
        elif what == "found":
            found = " ".join(more)
            supervisor.terminate()
    assert supervisor.wait(60) == 0
    # The end of a pipe that nobody reads any more has ended.
    assert found == "one one-end left"


def test_a_program_that_does_not_stay_is_given_up() -> None:
    supervisor = supervise("false")
    _, log = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 1
    assert log.count("ended 1") == 5
