"""A backend of a service fails while a client asks: how many requests fail, and until when.

Three servers behind a service, and a client that begins a hundred connections a second, a request
on each. In the middle one server fails, in one of two ways:

- *port closed*: it listens no more and goes on with what it has. Its kernel answers SYNs with
  resets.
- *silent*: nothing comes back from it any more. The route to the client and to the service's
  address becomes a black hole.

Each by policy, without and with `check`. A request is slow that takes more than 0.5 s: its SYN
was lost in a silent server. Counted are failed requests, and of those that began 1.2 s after
the failure or later the slow ones. What the silent server was working on is lost either way; so
are the few that were accepted just before.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import machine
from lab.lost_server import CLIENT, KILLED, PORT, SERVERS, SERVICE, SERVICE_PORT, TOPOLOGY, Shop
from lab.net import Lab, Process
from lab.programs import program
from lab.report import Claim, Report, at_least, at_most
from lab.sender import READY
from lab.stats import table
from lab.visitor import last_tick

SUMMARY = "a backend's port is closed, or it is silent: requests that fail, and until when"

PER_S = 100
WORK_MS = 5
#: When the server fails, and how long a phase is.
FAILS_S = 2.0
PHASE_S = 7.0
#: From then on no new connection is to be slow.
RECOVERED_S = 1.2
#: The slowest request: a SYN that is sent again after 1 s, and an answer.
MOST_S = 1.2
#: Requests that a silent server has accepted: those of two work times, and one more.
UNDER_WAY = 3
CLOSED, SILENT = "port closed", "silent"
POLICIES = ("p2c", "round-robin")
CHECKS = ("none", "tcp")


@dataclass(frozen=True)
class Way:
    """What is played."""

    kind: str
    policy: str
    check: str


@dataclass
class Cell:
    """What was seen."""

    way: Way
    asked: int
    failed: int
    slow: int
    #: Slow or failed ones that began `RECOVERED_S` after the failure or later.
    late: int
    slowest_s: float
    state: str
    redirected: int

    def as_row(self) -> dict[str, Any]:
        """For result.json."""
        return {"labels": asdict(self.way), "valid": True, **asdict(self)}


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """All ways; once each, or `RUNS` times."""
    report = Report("lb-failover", quick)
    report.machine = machine.describe(["ip", str(program())])
    runs = 1 if quick else 5
    report.parameters = {"runs": runs, "per_s": PER_S, "fails_s": FAILS_S, "phase_s": PHASE_S}
    ways = [Way(k, p, c) for k in (CLOSED, SILENT) for p in POLICIES for c in CHECKS]
    cells = []
    for way in ways:
        for _ in range(runs):
            cells.append(play(lab, way))
            print(f"{way.kind}, {way.policy}, check {way.check}: {cells[-1]}", file=sys.stderr)
    report.cells = [cell.as_row() for cell in cells]
    report.tables = [shown(cells)]
    report.claims = claims(cells)
    return report


def play(lab: Lab, way: Way) -> Cell:
    """One phase, on a switch of its own."""
    shop = Shop(lab, TOPOLOGY)
    with shop.running():
        shop.introduce()
        path = f"{TOPOLOGY.hosts[0].name}/{TOPOLOGY.tenants[0].name}/web"
        shop.set("service", path, f"policy={way.policy}")
        servers = {name: _serve(shop, name) for name in SERVERS}
        if way.check != "none":
            shop.set("service", path, f"check={way.check}")
            time.sleep(1)
        visitor = _visit(shop)
        start = time.monotonic()
        time.sleep(FAILS_S)
        _fail(shop, servers[KILLED], way.kind)
        at = time.monotonic() - start
        out, _ = visitor.popen.communicate(timeout=PHASE_S + 10)
        told = last_tick(f"so far: {out.strip()}") or {}
        service = shop.service()
    slow = told["slow_at_s"]
    failed = sum(told["failed"].values())
    killed = next(b for b in service["backends"] if b["name"] == KILLED)
    return Cell(
        way=way,
        asked=failed + sum(told["answered"].values()),
        failed=failed,
        slow=len(slow),
        late=sum(began >= at + RECOVERED_S for began in slow),
        slowest_s=told["slowest_s"],
        state=killed["state"],
        redirected=service["redirected"],
    )


def _fail(shop: Shop, server: Process, kind: str) -> None:
    if kind == CLOSED:
        server.popen.send_signal(signal.SIGUSR1)
        return
    space = shop.guests[KILLED].namespace
    for address in (shop.guests[CLIENT].address, SERVICE):
        space.ip(f"route add blackhole {address}/32")


def _serve(shop: Shop, name: str) -> Process:
    guest = shop.guests[name]
    who = ("--address", guest.address, "--port", str(PORT), "--name", name)
    command = (sys.executable, "-m", "lab.visitor", "serve", *who, "--work-ms", str(WORK_MS))
    # `ip netns exec` becomes the server, so a signal reaches it.
    process = guest.namespace.spawn(name, *command, stdout=subprocess.DEVNULL)
    process.wait_for(lambda: READY in process.output(), "a listening socket")
    return process


def _visit(shop: Shop) -> Process:
    how = ("--per-s", str(PER_S), "--seconds", str(PHASE_S))
    command = (sys.executable, "-m", "lab.visitor", "visit", "--to", f"{SERVICE}:{SERVICE_PORT}")
    space = shop.guests[CLIENT].namespace
    process = space.spawn("visitor", *command, *how, stdout=subprocess.PIPE)
    process.wait_for(lambda: READY in process.output(), "its first request")
    return process


def shown(cells: list[Cell]) -> str:
    """A row a run."""
    head = ["server", "policy", "check", "asked", "failed", "slow", f"after {RECOVERED_S:g} s"]
    head += ["slowest, s", "then it is", "redirected"]
    rows = [
        [
            *_labels(cell.way),
            *map(str, (cell.asked, cell.failed, cell.slow, cell.late)),
            f"{cell.slowest_s:.2f}",
            cell.state,
            str(cell.redirected),
        ]
        for cell in cells
    ]
    return table(head, rows)


def _labels(way: Way) -> list[str]:
    """The labels of a row."""
    return [way.kind, way.policy, way.check]


def claims(cells: list[Cell]) -> list[Claim]:
    """Counts over all policies, with and without checks; and that the server failed in each run:
    a client was sent on from the closed port, or waited for the silent server."""

    def counts(kind: str, of: str, checks: tuple[str, ...] = CHECKS) -> list[int]:
        chosen = [c for c in cells if c.way.kind == kind and c.way.check in checks]
        return [getattr(cell, of) for cell in chosen]

    def worst(kind: str, of: str, checks: tuple[str, ...] = CHECKS) -> float | None:
        return max(counts(kind, of, checks), default=None)

    sent_on = min(counts(CLOSED, "redirected"), default=None)
    waited = min(counts(SILENT, "slow", ("none",)), default=None)
    return [
        at_least("lb-failover: port closed, sent on", sent_on, "requests", 1),
        at_least("lb-failover: silent, without check: slow", waited, "requests", 1),
        at_most("lb-failover: port closed, failed", worst(CLOSED, "failed"), "requests", 0),
        at_most("lb-failover: port closed, slow", worst(CLOSED, "slow"), "requests", 0),
        at_most("lb-failover: silent, failed", worst(SILENT, "failed"), "requests", UNDER_WAY),
        at_most(
            f"lb-failover: silent, with check: slow of those that begin {RECOVERED_S:g} s later",
            worst(SILENT, "late", ("tcp",)),
            "requests",
            0,
        ),
        at_most("lb-failover: silent, slowest", worst(SILENT, "slowest_s"), "s", MOST_S),
    ]
