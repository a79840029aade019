"""Restarting the daemon under load: does every connection survive, and for how long is nothing
delivered?

Two hosts of one daemon with persistent endpoints, several paced TCP connections over the link
between them. The daemon is killed (SIGKILL), and a supervisor (`lab.supervise`) starts it again as
soon as it has ended, with or without a store of descriptors like systemd's; or it is replaced as an
operator would (`planned`), by one that takes over from it: a number of times, seconds apart.

The receiver notes the arrival of data to the millisecond; the gap of a restart is the longest time,
over all connections, in which one of them got nothing. What the machine itself does is shown beside
it: the longest gap before the restart.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import machine
from lab.cell import ATTEMPTS, disturbance
from lab.machine import cpu_use, sample_cpu
from lab.net import Failed, Lab
from lab.programs import program
from lab.report import Claim, Report, at_most, middle
from lab.stats import table
from lab.switches import Levada
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, Stream

SUMMARY = "TCP over kill -9 and over planned restart: no connection lost, and the gap"

MBIT = 1_000_000
LINK_BPS = 300 * MBIT
#: Two thirds of the link: what fills the gap afterwards finds room.
CONNECTIONS = 8
CONNECTION_BPS = 25 * MBIT

#: Before a restart all is quiet for so long, and it must be over after `AFTER_S`.
BEFORE_S = 1.0
AFTER_S = 3.0
#: A machine that takes longer for these than they are, by this much, stood still meanwhile.
LATE_S = 0.2
#: Receivers and senders end by themselves after this, whatever happens to the lab.
LONGEST_S = 600


class Supervised(Levada):
    """Levada whose daemon is started again when it ends."""

    options: tuple[str, ...] = ()

    def _command(self, config: str) -> list[str]:
        root = Path(__file__).resolve().parents[2]
        return [
            "env",
            f"PYTHONPATH={root}",
            sys.executable,
            "-m",
            "lab.supervise",
            *self.options,
            *super()._command(config),
        ]

    def pid(self) -> int:
        """Of the daemon that runs."""
        return int(re.findall(r"started (\d+)", self.daemon.output())[-1])


class Stored(Supervised):
    """The same; the supervisor holds the devices, too, as systemd does."""

    options = ("--store",)


class TakenOver(Levada):
    """Levada whose next daemon takes over from the one that runs."""

    def take_over(self) -> tuple[float, float]:
        """When the old daemon ended, and the new one was ready."""
        old, self.daemon = self.daemon, self._begin("--takeover")
        ready = time.monotonic()
        old.popen.wait(AFTER_S)
        return time.monotonic(), ready


#: Begins a restart; gives what tells, afterwards, when the old daemon ended and the new one was
#: ready.
Restarting = Callable[[Any], Callable[[], tuple[float, float]]]


def kill(switch: Supervised) -> Callable[[], tuple[float, float]]:
    """The daemon's sudden death; its supervisor starts it again."""
    old = switch.pid()
    os.kill(old, signal.SIGKILL)
    return lambda: supervisor_times(switch.daemon.output(), old)


def planned(switch: TakenOver) -> Callable[[], tuple[float, float]]:
    """An operator's restart (docs/howto/operating.md): a new daemon takes over."""
    times = switch.take_over()
    return lambda: times


@dataclass(frozen=True)
class Way:
    """A way to restart, the switch that it is done to, and the gap that is allowed."""

    name: str
    switch: type[Levada]
    restart: Restarting
    most_ms: float
    #: Whether devices outlive their last descriptor.
    persistent: bool = True


WAYS = (
    Way("kill -9", Supervised, kill, 200),
    Way("kill -9, stored", Stored, kill, 100, persistent=False),
    Way("planned", TakenOver, planned, 20),
)
#: Restarts of each way that count.
RESTARTS = {False: 7, True: 3}


@dataclass(frozen=True)
class Restart:
    """One restart."""

    labels: dict[str, Any]
    at_s: float
    #: From its beginning to the old daemon's end, and until the new one is ready.
    ended_ms: float
    ready_ms: float
    idle: float
    strangers: float
    bound: str | None
    disturbed: str | None
    #: Longest without data: of any connection, of the median one, and of any in the second before.
    gap_ms: float = 0.0
    median_gap_ms: float = 0.0
    quiet_gap_ms: float = 0.0

    @property
    def valid(self) -> bool:
        return self.disturbed is None and self.bound is None


def topology() -> Topology:
    """Two hosts, an endpoint each."""
    ends = (Endpoint("a0", "a", "h0"), Endpoint("a1", "a", "h1"))
    return Topology((Tenant("a"),), ends, (Host("h0", LINK_BPS), Host("h1", LINK_BPS)))


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Restarts the daemon in each way and judges."""
    report = Report("restart", quick, parameters=_parameters(quick))
    report.machine = machine.describe(["ip", str(program())])
    played: dict[str, list[Restart]] = {}
    lost: dict[str, int] = {}
    for way in WAYS:
        played[way.name], lost[way.name] = _play(lab, way, RESTARTS[quick])
    report.cells = [asdict(r) | {"valid": r.valid} for rows in played.values() for r in rows]
    report.tables = [restarts_table(played)]
    report.claims = [
        claim
        for way in WAYS
        for claim in claims(way, played[way.name], lost[way.name], RESTARTS[quick])
    ]
    return report


def _play(lab: Lab, way: Way, wanted: int) -> tuple[list[Restart], int]:
    """Restarts until `wanted` of them count, and how many connections were lost by all of them."""
    switch = way.switch(lab, topology(), persistent=way.persistent)
    with switch.running():
        src, dst = switch.guests["a0"], switch.guests["a1"]
        stream = Stream("load", "a0", "a1", CONNECTION_BPS, CONNECTIONS, row_ms=1)
        stream.begin(src, dst, FIRST_PORT, LONGEST_S)
        time.sleep(2 * BEFORE_S)
        restarts = []
        for number in range(wanted * ATTEMPTS):
            restarts.append(_restart(switch, way, number))
            print(f"  {_progress(restarts[-1])}", file=sys.stderr)
            if sum(r.valid for r in restarts) == wanted:
                break
        detail = stream.end().detail
    lost = CONNECTIONS - detail["accepted"] + len(detail["broken"]) + detail["ended_early"]
    return [with_gaps(r, stream.arrivals) for r in restarts], lost


def _restart(switch: Levada, way: Way, number: int) -> Restart:
    begun = time.monotonic()
    time.sleep(BEFORE_S)
    cpu, at = sample_cpu(switch.processes), time.monotonic()
    times = way.restart(switch)
    time.sleep(max(0.0, at + AFTER_S - time.monotonic()))
    late_s = time.monotonic() - begun - BEFORE_S - AFTER_S - LATE_S
    use = cpu_use(cpu, sample_cpu(switch.processes))
    ended, ready = times()
    return Restart(
        labels={"way": way.name, "number": number},
        at_s=at,
        ended_ms=1000 * (ended - at),
        ready_ms=1000 * (ready - at),
        idle=use.idle,
        strangers=use.strangers,
        bound=use.bound(0.0),
        disturbed=disturbance(use, late_s),
    )


def supervisor_times(log: str, old: int) -> tuple[float, float]:
    """When the daemon `old` ended, and its successor was ready."""
    lines = log.split("\n")
    begun = next(i for i, line in enumerate(lines) if line.endswith(f" started {old}"))
    ended = ready = None
    for line in lines[begun:]:
        at, _, text = line.partition(" ")
        if ended is None and text.startswith("ended"):
            ended = float(at)
        elif ended is not None and text.endswith(" ready"):
            ready = float(at)
            break
    if ended is None or ready is None:
        raise Failed(f"the daemon was not ready again in {AFTER_S} s:\n{log[-2000:]}")
    return ended, ready


def with_gaps(restart: Restart, arrivals: Sequence[Sequence[tuple[float, int]]]) -> Restart:
    """The restart with what its connections noticed."""
    after = [1000 * longest_gap(c, restart.at_s, restart.at_s + AFTER_S) for c in arrivals]
    before = [1000 * longest_gap(c, restart.at_s - BEFORE_S / 2, restart.at_s) for c in arrivals]
    gaps = {"gap_ms": max(after), "median_gap_ms": statistics.median(after)}
    return Restart(**{**asdict(restart), **gaps, "quiet_gap_ms": max(before)})


def longest_gap(rows: Sequence[tuple[float, int]], start_s: float, end_s: float) -> float:
    """The longest time between two arrivals that lies in a window, at least in part. A connection
    that gets nothing more has a gap to the window's end."""
    times = [t for t, _ in rows if t < end_s]
    gaps = [b - a for a, b in itertools.pairwise([*times, end_s]) if b > start_s]
    return max(gaps, default=end_s - start_s)


def claims(way: Way, restarts: Sequence[Restart], lost: int, planned: int) -> list[Claim]:
    """No connection lost over all restarts; the median gap of those that count."""
    gap = middle([r.gap_ms for r in restarts if r.valid], planned)
    return [
        at_most(f"{way.name}: connections lost", lost, "", 0),
        at_most(f"{way.name}: gap", gap, "ms", way.most_ms),
    ]


def restarts_table(played: dict[str, list[Restart]]) -> str:
    """Each way's medians, and the range of its gaps."""
    rows = []
    for name, restarts in played.items():
        for kind, chosen in (
            ("valid", [r for r in restarts if r.valid]),
            ("all", list(restarts)),
        ):
            if not chosen:
                rows.append([f"{name}, {kind}", "0", *["-"] * 6])
                continue
            gaps = sorted(r.gap_ms for r in chosen)
            columns = ("ended_ms", "ready_ms", "gap_ms", "median_gap_ms", "quiet_gap_ms")
            medians = [f"{statistics.median([getattr(r, c) for r in chosen]):.1f}" for c in columns]
            spread = f"{gaps[0]:.0f} .. {gaps[-1]:.0f}"
            rows.append([f"{name}, {kind}", str(len(chosen)), *medians, spread])
    head = [
        "restart",
        "times",
        "ended ms",
        "ready",
        "gap, worst of 8",
        "median of 8",
        "before",
        "range",
    ]
    return table(head, rows)


def _progress(r: Restart) -> str:
    why = r.disturbed or r.bound
    times = f"ended in {r.ended_ms:.0f} ms, ready in {r.ready_ms:.0f} ms"
    text = f"{r.labels['way']} {r.labels['number']}: {times}"
    return f"{text}; {why}" if why else text


def _parameters(quick: bool) -> dict[str, Any]:
    return {
        "restarts": RESTARTS[quick],
        "connections": CONNECTIONS,
        "connection_bps": CONNECTION_BPS,
        "link_bps": LINK_BPS,
        "most_ms": {way.name: way.most_ms for way in WAYS},
    }
