"""The other half of the demo's fifth act (`lab.lost_server`): of three servers one works ten times
as long on a request as the others.

The client asks the service's address, a hundred times a second, a connection each. First the switch
takes the servers in turn, so each third request is slow. Then, by `levada set` on the running
service, it goes by what each has in flight (`p2c`, the default): nobody told it that a server is
slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lab.bars import Bar, Bars
from lab.lost_server import (
    PER_S,
    SERVERS,
    SERVICE,
    SERVICE_PORT,
    TOPOLOGY,
    WORK_MS,
    Series,
    Shop,
    latest,
    serve,
    ticks,
    told,
    visit,
)
from lab.net import Lab
from lab.report import Claim, at_most
from lab.stats import table

SLOW = "web3"
SLOW_WORK_MS = 10 * WORK_MS
#: In turn, and the default.
POLICIES = ("round-robin", "p2c")
#: With one policy.
PHASE_S = 2.0
#: By the default the mean is at most so many times that in turn: 12 and 22 ms where the rest of a
#: request takes 2 ms.
MOST_TIMES = 0.7

TITLE = "A server is slow"
INTRODUCTION = f"""\
Three servers behind a service, of which one works {SLOW_WORK_MS} ms on a request and the others
{WORK_MS}. The switch takes them in turn; then, by `levada set`, it goes by what each has in flight.
"""


@dataclass
class Phase:
    """What was seen with one policy."""

    policy: str
    told: dict[str, Any]
    series: Series

    def failed(self) -> int:
        """Requests without an answer."""
        return sum(self.told["failed"].values())

    def mean_ms(self) -> float | None:
        """Of the requests that were answered; None where none was."""
        return mean_ms(self.told)


def mean_ms(told: dict[str, Any]) -> float | None:
    """Of what a visitor has told."""
    answered = sum(told["answered"].values())
    return 1000 * told["total_s"] / answered if answered else None


def play(lab: Lab, bars: Bars) -> tuple[Phase, ...]:
    """Each policy, one after the other, on one running service."""
    shop = Shop(lab, TOPOLOGY)
    with shop.running():
        shop.introduce()
        for name in SERVERS:
            serve(shop, name, SLOW_WORK_MS if name == SLOW else WORK_MS)
        return tuple(_phase(shop, policy, bars) for policy in POLICIES)


def _phase(shop: Shop, policy: str, bars: Bars) -> Phase:
    service = f"{TOPOLOGY.hosts[0].name}/{TOPOLOGY.tenants[0].name}/web"
    shop.set("service", service, f"policy={policy}")
    visitor = visit(shop, [f"{SERVICE}:{SERVICE_PORT}"], PHASE_S)
    series: Series = {name: ([], []) for name in SERVERS}
    for elapsed, now in ticks(visitor, PHASE_S, series):
        mean = None if now is None else mean_ms(now)
        if mean is not None:
            each = PER_S / len(SERVERS)
            rows = [Bar(n, rate, each, wants=n != SLOW) for n, rate in latest(series).items()]
            bars.draw(f"{policy}, {elapsed:4.1f} s: {SLOW} is slow, mean {mean:.0f} ms", rows)
    bars.settle()
    return Phase(policy, told(visitor), series)


def text(phases: tuple[Phase, ...]) -> str:
    """What became of the requests, as a table."""
    rows = []
    for phase in phases:
        mean = phase.mean_ms()
        each = [str(phase.told["answered"].get(name, 0)) for name in SERVERS]
        shown = "" if mean is None else f"{mean:.1f}"
        rows.append([phase.policy, *each, str(phase.failed()), shown])
    head = ["requests answered by", *SERVERS, "failed", "mean, ms"]
    return f"{TITLE}: {SLOW}, {SLOW_WORK_MS} ms a request\n{table(head, rows)}"


def claims(phases: tuple[Phase, ...]) -> list[Claim]:
    """The default goes around the slow server, and nothing fails."""
    in_turn, default = (phase.mean_ms() for phase in phases)
    times = default / in_turn if default and in_turn else None
    failed = sum(phase.failed() for phase in phases)
    return [
        at_most(f"slow-server: mean by {POLICIES[1]}", times, f"x {POLICIES[0]}", MOST_TIMES),
        at_most("slow-server: failed", failed, "requests", 0),
    ]


def cells(phases: tuple[Phase, ...]) -> list[dict[str, object]]:
    """The rows of the report."""
    return [
        {
            "labels": {"act": "slow-server", "phase": phase.policy},
            "told": phase.told,
            "series": phase.series,
        }
        for phase in phases
    ]
