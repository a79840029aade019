"""Some seconds of the life of a paced connection and a ping, quiet or under attack, and pairs of
them.

What slowly changes on the machine is in both windows of a pair. A window is judged as a cell is
(`lab.cell`): who had no processor time to spare is `bound`, what others disturbed is `disturbed`.

The quiet window is no measure by itself: harm that stays after an attack is in the next one too. So
a pair counts only where its quiet window has the rate that it has to have, and its pings. One that
had both before the first attack, and lacks them after it, shows harm that lasts.
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

#: What a quiet window has at least of the rate that it has to have.
WHOLE_PERCENT = 98.0


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

    @property
    def told(self) -> bool:
        """Whether it says anything: undisturbed, with time to spare."""
        return self.disturbed is None and self.bound is None

    def percent(self, rate_bps: float) -> float:
        """What it had of a rate."""
        return 100 * self.goodput_bps / rate_bps

    def lacks(self, rate_bps: float) -> str | None:
        """What it has not of what a quiet one has to have, or None."""
        had = self.percent(rate_bps)
        if had < WHOLE_PERCENT:
            return f"{had:.1f} % of the rate without an attack"
        if not math.isfinite(self.rtt_p99_ms):
            return f"{self.pings_lost} pings lost without an attack"
        return None


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
        """Of a quiet window without data nobody keeps a part."""
        quiet_bps = self.quiet.goodput_bps
        return 100 * self.loaded.goodput_bps / quiet_bps if quiet_bps > 0 else math.nan

    @property
    def times_quiet(self) -> float:
        """How many times the quiet round trip; of one that is endless, no number."""
        quiet_ms = self.quiet.rtt_p99_ms
        return self.loaded.rtt_p99_ms / quiet_ms if 0 < quiet_ms < math.inf else math.nan


def lasting(pairs: Sequence[Pair], rate_bps: float) -> list[Window]:
    """Quiet windows after an attack that lack what an earlier one had: its harm lasts. Windows that
    were disturbed say nothing."""
    told = [pair.quiet for pair in pairs if pair.quiet.told]
    first = next((n for n, quiet in enumerate(told) if quiet.lacks(rate_bps) is None), len(told))
    return [quiet for quiet in told[first:] if quiet.lacks(rate_bps) is not None]


def with_lasting(
    kept: float | None, times: float | None, harmed: Sequence[Window], rate_bps: float
) -> tuple[float | None, float | None]:
    """What is judged of a rate kept, in percent, and of round trips: the medians over the pairs
    that count; where harm lasts, what the worst quiet window had."""
    had = [window.percent(rate_bps) for window in harmed]
    if had:
        kept = min(had if kept is None else [kept, *had])
    if not all(math.isfinite(window.rtt_p99_ms) for window in harmed):
        times = math.inf
    return kept, times


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
