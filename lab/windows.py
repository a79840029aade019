"""Some seconds of the life of a paced connection and a ping, quiet or under attack, and pairs of
them.

What slowly changes on the machine is in both windows of a pair. A window is judged as a cell is
(`lab.cell`): who had no processor time to spare is `bound`, what others disturbed is `disturbed`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lab.cell import disturbance, worker_use
from lab.machine import cpu_use, sample_cpu
from lab.switches import OneHost
from lab.workload import Ping, Stream, trips_between


@dataclass
class Window:
    """Some seconds of the bystander's life. Its goodput and round trips are filled in when that has
    ended."""

    start_s: float
    end_s: float
    #: The same on the wall clock, which ping tells.
    wall_s: tuple[float, float]
    idle: float
    worker: dict[str, Any]
    bound: str | None
    disturbed: str | None
    goodput_bps: float = 0.0
    rtt_p99_ms: float = math.nan
    pings_lost: int = 0

    def fill(self, stream: Stream, ping: Ping) -> None:
        """What arrived and came back in it, now that both have ended."""
        self.goodput_bps = stream.goodput_bps(self.start_s, self.end_s)
        trips = trips_between(ping.text(), *self.wall_s)
        self.pings_lost = sum(math.isinf(t) for t in trips)
        self.rtt_p99_ms = p99(trips)


@dataclass
class Pair:
    """A quiet and a loaded window, and what the attacker says that it sent."""

    quiet: Window
    loaded: Window
    sent: dict[str, Any]

    @property
    def disturbed(self) -> str | None:
        return self.quiet.disturbed or self.loaded.disturbed

    @property
    def bound(self) -> str | None:
        return self.quiet.bound or self.loaded.bound

    @property
    def valid(self) -> bool:
        return self.disturbed is None and self.bound is None

    @property
    def kept_percent(self) -> float:
        return 100 * self.loaded.goodput_bps / self.quiet.goodput_bps

    @property
    def times_quiet(self) -> float:
        return self.loaded.rtt_p99_ms / self.quiet.rtt_p99_ms


def measured(switch: OneHost, window_s: float, slack_s: float) -> Window:
    """Waits for `window_s`. Where it took more than `slack_s` longer, the machine stood still."""
    shown, cpu = switch.sample(), sample_cpu(switch.processes)
    start, wall = time.monotonic(), time.time()
    time.sleep(window_s)
    end, wall_end = time.monotonic(), time.time()
    use, worker = cpu_use(cpu, sample_cpu(switch.processes)), worker_use(shown, switch.sample())
    return Window(
        *(start, end, (wall, wall_end), use.idle, asdict(worker)),
        bound=use.bound(worker.busy),
        disturbed=disturbance(use, end - start - window_s - slack_s),
    )


def p99(values: Sequence[float]) -> float:
    """The smallest value that 99 of 100 do not exceed; pings that were lost are infinite."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else math.nan
