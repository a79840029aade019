"""The demo's fifth act (but for `lab.slow_server`): three servers, one of which is killed; first
without a service in the switch, then with one.

A client asks a hundred times a second, a connection each. First it knows the servers by itself and
takes them in turn, as with several addresses of one name (round-robin DNS). When one server is
killed, each third request is refused. Then it asks a service's address: the switch chooses a
server, turns the dead one's reset back into the client's SYN for another, and after five of these
gives that server no more. A request that the dead server was working on is lost either way.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lab.bars import Bar, Bars
from lab.net import Failed, Lab, Process
from lab.report import Claim, at_least, at_most
from lab.sender import READY
from lab.stats import table
from lab.switches import Levada
from lab.switches.levada import toml_table
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.visitor import TICK_S, last_tick

SERVERS = ("web1", "web2", "web3")
CLIENT, KILLED = "client", "web2"
PORT, SERVICE_PORT = 8080, 80
SERVICE = "10.1.0.100"
PER_S = 100
#: What a server works on a request.
WORK_MS = 5
#: A phase, and when the server is killed.
PHASE_S = 3.5
KILLED_S = 1.0
#: A request that was under way fails: those of two work times, and whoever was just accepted.
UNDER_WAY = 3
#: Of a third of the requests after the kill, for there to be anything to show.
HARMED_PERCENT = 50.0

TOPOLOGY = Topology(
    tenants=(Tenant("shop"),),
    endpoints=tuple(Endpoint(name, "shop", "host") for name in (CLIENT, *SERVERS)),
    hosts=(Host("host", 1_000_000_000),),
)
TITLE = "A server is killed"
INTRODUCTION = f"""\
Three servers, and a client that asks {PER_S} times a second. After {KILLED_S:g} s one server is
killed. First the client takes the servers in turn; then it asks a service in the switch.
"""
DIRECT, SERVED = "servers in turn", "with a service"


class Shop(Levada):
    """One switch with the servers, and a service before them."""

    def configuration(self) -> str:
        """As TOML."""
        service = toml_table(
            "[switch.tenant.service]", name="web", address=f"{SERVICE}:{SERVICE_PORT}"
        )
        backends = [
            toml_table("[switch.tenant.service.backend]", name=name, port=PORT) for name in SERVERS
        ]
        return "\n".join([super().configuration(), service, *backends])


#: Of each server when it was, and how many requests a second it had answered.
Series = dict[str, tuple[list[float], list[float]]]


@dataclass
class Phase:
    """What was seen one way: what the visitor told, and the switch."""

    title: str
    told: dict[str, Any]
    service: dict[str, Any]
    series: Series

    def failed(self) -> int:
        """Requests without an answer."""
        return sum(self.told["failed"].values())

    def answered(self) -> int:
        """Requests with one."""
        return sum(self.told["answered"].values())


def play(lab: Lab, title: str, bars: Bars) -> Phase:
    """One phase, shown while it runs."""
    shop = Shop(lab, TOPOLOGY)
    with shop.running():
        shop.introduce()
        servers = {name: serve(shop, name, WORK_MS) for name in SERVERS}
        guests = [shop.guests[name].address for name in SERVERS]
        to = [f"{SERVICE}:{SERVICE_PORT}"]
        if title == DIRECT:
            to = [f"{address}:{PORT}" for address in guests]
        visitor = visit(shop, to, PHASE_S)
        series: Series = {name: ([], []) for name in SERVERS}
        is_killed = False
        for elapsed, now in ticks(visitor, PHASE_S, series):
            if elapsed >= KILLED_S and not is_killed:
                servers[KILLED].stop(signal.SIGKILL)
                is_killed = True
            if now is not None:
                _draw(bars, title, elapsed, latest(series), now, is_killed)
        bars.settle()
        return Phase(title, told(visitor), shop.service(), series)


def ticks(
    visitor: Process, seconds: float, series: Series
) -> Iterator[tuple[float, dict[str, Any] | None]]:
    """Four times a second, for so long: the time, and what a visitor has so far, where that is
    news. Then `series` has it too."""
    before: dict[str, Any] = {"answered": {}}
    start, elapsed = time.monotonic(), 0.0
    while elapsed < seconds:
        time.sleep(TICK_S)
        elapsed = time.monotonic() - start
        now = last_tick(visitor.output())
        now = None if now == before else now
        if now is not None:
            for name, (times, rates) in series.items():
                more = now["answered"].get(name, 0) - before["answered"].get(name, 0)
                times.append(elapsed)
                rates.append(more / TICK_S)
            before = now
        yield elapsed, now


def latest(series: Series) -> dict[str, float]:
    """How many requests a second each server has answered last."""
    return {name: rates[-1] for name, (_, rates) in series.items()}


def serve(shop: Shop, name: str, work_ms: float) -> Process:
    """Starts a server, which works so long on a request."""
    guest = shop.guests[name]
    who = ["--address", guest.address, "--port", str(PORT), "--name", name]
    process = guest.namespace.spawn(
        name, *_python("serve", *who, "--work-ms", str(work_ms)), stdout=subprocess.DEVNULL
    )
    process.wait_for(lambda: READY in process.output(), "a listening socket")
    return process


def visit(shop: Shop, to: Sequence[str], seconds: float) -> Process:
    """The client asks these addresses in turn, for so long."""
    targets = [word for one in to for word in ("--to", one)]
    how = [*targets, "--per-s", str(PER_S), "--seconds", str(seconds)]
    process = shop.guests[CLIENT].namespace.spawn(
        "visitor", *_python("visit", *how), stdout=subprocess.PIPE
    )
    process.wait_for(lambda: READY in process.output(), "its first request")
    return process


def _python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "lab.visitor", *arguments)


def told(visitor: Process) -> dict[str, Any]:
    """What a visitor tells at its end."""
    out, _ = visitor.popen.communicate(timeout=10)
    try:
        found: dict[str, Any] = json.loads(out)
    except json.JSONDecodeError as error:
        raise Failed(f"the visitor said {out!r}: {visitor.output()[-500:]}") from error
    return found


def _draw(
    bars: Bars,
    title: str,
    elapsed: float,
    rates: dict[str, float],
    now: dict[str, Any],
    is_killed: bool,
) -> None:
    # Who takes them in turn does not ask the others more often.
    takers = len(SERVERS) - (is_killed and title == SERVED)
    rows = []
    for name, rate in rates.items():
        is_up = not (is_killed and name == KILLED)
        rows.append(Bar(name, rate, PER_S / takers if is_up else 0, wants=is_up))
    failed = sum(now["failed"].values())
    state = f"{KILLED} killed" if is_killed else "all three up"
    bars.draw(f"{title}, {elapsed:4.1f} s: {state}, {failed} requests failed", rows)


def text(direct: Phase, served: Phase) -> str:
    """What became of the requests, as a table."""
    rows = []
    for phase in (direct, served):
        each = [str(phase.told["answered"].get(name, 0)) for name in SERVERS]
        rest = [str(phase.failed()), f"{1000 * phase.told['slowest_s']:.0f}"]
        rows.append([phase.title, *each, *rest])
    head = ["requests answered by", *SERVERS, "failed", "slowest, ms"]
    seen = served.service
    killed = next(b for b in seen["backends"] if b["name"] == KILLED)
    note = f"Of {seen['new']} connections {seen['redirected']} got another server than their first;"
    return f"{TITLE}\n{table(head, rows)}\n{note} {KILLED} is {killed['state']}."


def claims(direct: Phase, served: Phase) -> list[Claim]:
    """The service hides the dead server; who chooses alone meets it each third time."""
    third = PER_S * (PHASE_S - KILLED_S) / len(SERVERS)
    harmed = 100 * direct.failed() / third
    return [
        at_least(
            "lost-server: failed in turn, of a third after the kill", harmed, "%", HARMED_PERCENT
        ),
        at_most("lost-server: failed with a service", served.failed(), "requests", UNDER_WAY),
    ]


def cells(direct: Phase, served: Phase) -> list[dict[str, object]]:
    """The rows of the report."""
    return [
        {
            "labels": {"act": "lost-server", "phase": phase.title},
            "told": phase.told,
            "service": phase.service,
            "series": phase.series,
        }
        for phase in (direct, served)
    ]
