"""Connections of a service while backends come and go and the daemon is replaced or killed, live.

Four servers behind a service, a fifth that comes and goes, and a client that begins connections
evenly, a request on each, and keeps others open on which it asks once a second. Those that are kept
are open at each event; of the others nearly all begin and end between two. Meanwhile, again and
again:

- *add, drain*: a server of the four is drained and gets its weight again; the fifth is added,
  drained, and removed when it has no connection any more.
- *planned restart*: the next daemon takes over (`levada run --takeover`).
- *kill -9*: the daemon is killed, and a supervisor starts it again at once.

A connection is *broken* that is refused or reset, or whose request is not answered within
`PATIENCE_S`. One that the policy had placed off its candidates may be lost with a killed daemon's
table: those are counted by the switch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from lab.experiments.restart import Supervised, TakenOver
from lab.net import Failed, Lab, Process
from lab.net import run as run_command
from lab.programs import program
from lab.report import Claim, at_least, at_most
from lab.sender import READY
from lab.stats import table
from lab.switches import Levada
from lab.switches.levada import toml_table
from lab.topology import Endpoint, Host, Tenant, Topology

CLIENT, SPARE = "client", "web5"
SERVERS = ("web1", "web2", "web3", "web4")
PORT, SERVICE_PORT = 8080, 80
SERVICE = "10.1.0.100"
TOPOLOGY = Topology(
    tenants=(Tenant("shop"),),
    endpoints=tuple(Endpoint(name, "shop", "host") for name in (CLIENT, *SERVERS, SPARE)),
    hosts=(Host("host", 1_000_000_000),),
)
PATH = "host/shop/web"

PER_S, KEPT, KEPT_EVERY_S = 200, 600, 1.0
#: Longer than a daemon is away, and what its clients wait for after that: a SYN is sent again
#: after 1, 3 and 7 s.
PATIENCE_S = 10.0
#: Between two events, and until the first.
EVERY_S = 2.5
#: How long a phase is; five of them make the connections of a whole run.
PHASE_S = {False: 105.0, True: 15.0}
#: So many are begun in a whole run, and so many were open at an event, each counted at each event.
CONNECTIONS = 100_000
#: How a daemon's line ends that says that it forwards.
READY_LINE = " ready\n"
CHANGED, REPLACED, KILLED = "add, drain", "planned restart", "kill -9"


class Store(Levada):
    """One switch with the servers, and a service before four of them."""

    policy = "p2c"

    def configuration(self) -> str:
        """As TOML."""
        address = f"{SERVICE}:{SERVICE_PORT}"
        head = "[switch.tenant.service]"
        service = toml_table(head, name="web", address=address, policy=self.policy)
        backends = [
            toml_table("[switch.tenant.service.backend]", name=name, port=PORT) for name in SERVERS
        ]
        return "\n".join([super().configuration(), service, *backends])

    def change(self, *words: str) -> None:
        """`levada WORDS`: a change of what is at the first path."""
        run_command(str(program()), *words, "--name", self._name, env=self._environment)


class Steady(Store, TakenOver):
    """One that is changed, or taken over from."""


class Mortal(Store, Supervised):
    """One that is killed. What its daemons counted ends with them: it is added up here."""

    off_candidates = 0
    recovered = 0

    def count(self) -> None:
        """To be called before each end."""
        service = self.service()
        self.off_candidates += service["off_candidates"]
        self.recovered += service["recovered"]


@dataclass(frozen=True)
class Way:
    """What is played."""

    kind: str
    policy: str


WAYS = (
    Way(CHANGED, "p2c"),
    Way(REPLACED, "p2c"),
    Way(REPLACED, "least-inflight"),
    Way(KILLED, "p2c"),
    Way(KILLED, "maglev"),
)


@dataclass
class Cell:
    """What was seen."""

    way: Way
    events: int
    connections: int
    #: By what its client was told.
    broken: dict[str, int]
    kept_broken: int
    #: See the module; and those that were found again after a kill.
    off_candidates: int
    recovered: int
    slowest_s: float

    @property
    def all_broken(self) -> int:
        """New ones and kept ones."""
        return sum(self.broken.values()) + self.kept_broken

    @property
    def met(self) -> int:
        """Kept ones that were open at an event, at least: one that broke is open at none."""
        return self.events * (KEPT - self.kept_broken)

    def as_row(self) -> dict[str, Any]:
        """For result.json."""
        return {"labels": asdict(self.way), "valid": True, **asdict(self), "met": self.met}


def play(lab: Lab, way: Way, quick: bool) -> Cell:
    """One phase, on a switch of its own."""
    kind = Mortal if way.kind == KILLED else Steady
    store = kind(lab, TOPOLOGY, persistent=True)
    store.policy = way.policy
    seconds = PHASE_S[quick]
    with store.running():
        store.introduce()
        for name in (*SERVERS, SPARE):
            _serve(store, name)
        visitor = _visit(store, seconds)
        start = time.monotonic()
        with _told(visitor, seconds) as told:
            happens = _events(store, way.kind)
            events = 0
            while time.monotonic() - start < seconds - EVERY_S:
                time.sleep(EVERY_S)
                happens(events)
                events += 1
                print(f"  {way.kind}, {way.policy}: {events} events", file=sys.stderr, flush=True)
        service = store.service()
        if isinstance(store, Mortal):
            store.count()
            service |= {"off_candidates": store.off_candidates, "recovered": store.recovered}
    failed, kept_failed = told["failed"], told["kept_failed"]
    return Cell(
        way=way,
        events=events,
        connections=sum(told["answered"].values()) + sum(failed.values()) + KEPT,
        broken=failed,
        kept_broken=kept_failed,
        off_candidates=service["off_candidates"],
        recovered=service["recovered"],
        slowest_s=told["slowest_s"],
    )


def _events(store: Steady | Mortal, kind: str) -> Callable[[int], None]:
    """What happens the next time."""
    if isinstance(store, Mortal):
        mortal = store

        def killed(_: int) -> None:
            mortal.count()
            times = mortal.daemon.output().count(READY_LINE)
            os.kill(mortal.pid(), signal.SIGKILL)
            mortal.daemon.wait_for(
                lambda: mortal.daemon.output().count(READY_LINE) > times, "the next daemon"
            )

        return killed
    steady = store

    def replaced(_: int) -> None:
        steady.take_over()

    def changed(number: int) -> None:
        one, spare = f"{PATH}/{SERVERS[number // 4 % len(SERVERS)]}", f"{PATH}/{SPARE}"
        match number % 4:
            case 0:
                steady.change("set", "backend", one, "weight=0")
                steady.change("add", "backend", spare, f"port={PORT}")
            case 1:
                steady.change("set", "backend", one, "weight=1")
            case 2:
                steady.change("set", "backend", spare, "weight=0")
                steady.daemon.wait_for(lambda: _is_empty(steady), f"nothing at {SPARE}", PATIENCE_S)
                steady.change("del", "backend", spare)
            case _:
                steady.change("set", "service", PATH, "policy=round-robin")
                steady.change("set", "service", PATH, "policy=p2c")

    return replaced if kind == REPLACED else changed


def _is_empty(store: Store) -> bool:
    spare = next(b for b in store.service()["backends"] if b["name"] == SPARE)
    return int(spare["busy"]) + int(spare["idle"]) == 0


def _serve(store: Store, name: str) -> Process:
    guest = store.guests[name]
    who = ("--address", guest.address, "--port", str(PORT), "--name", name)
    command = (sys.executable, "-m", "lab.visitor", "serve", *who)
    process = guest.namespace.spawn(name, *command, stdout=subprocess.DEVNULL)
    process.wait_for(lambda: READY in process.output(), "a listening socket")
    return process


def _visit(store: Store, seconds: float) -> Process:
    kept = ("--keep", str(KEPT), "--keep-every", str(KEPT_EVERY_S))
    how = ("--per-s", str(PER_S), "--seconds", str(seconds), *kept)
    what = ("--to", f"{SERVICE}:{SERVICE_PORT}", "--patience", str(PATIENCE_S))
    command = (sys.executable, "-m", "lab.visitor", "visit", *what, *how)
    process = store.guests[CLIENT].namespace.spawn("visitor", *command, stdout=subprocess.PIPE)
    process.wait_for(lambda: READY in process.output(), "its first request")
    return process


@contextmanager
def _told(visitor: Process, seconds: float) -> Iterator[dict[str, Any]]:
    """What the visitor says at its end, once that has come."""
    told: dict[str, Any] = {}
    yield told
    out, _ = visitor.popen.communicate(timeout=seconds + 2 * PATIENCE_S)
    try:
        told.update(json.loads(out))
    except json.JSONDecodeError as error:
        raise Failed(f"the visitor said {out!r}: {visitor.output()[-500:]}") from error


def shown(cells: list[Cell]) -> str:
    """A row a phase."""
    head = ["live: what happens", "policy", "times", "connections", "open at them", "broken", "how"]
    head += ["off candidates", "found again", "slowest, s"]
    rows = [
        [
            cell.way.kind,
            cell.way.policy,
            *map(str, (cell.events, cell.connections, cell.met, cell.all_broken)),
            " ".join(f"{name} {count}" for name, count in cell.broken.items()) or "-",
            *map(str, (cell.off_candidates, cell.recovered)),
            f"{cell.slowest_s:.2f}",
        ]
        for cell in cells
    ]
    return table(head, rows)


def claims(cells: list[Cell], quick: bool) -> list[Claim]:
    """Nothing is broken; after kills no more than was off its candidates."""

    def worst(kind: str, of: Callable[[Cell], int]) -> int | None:
        return max((of(cell) for cell in cells if cell.way.kind == kind), default=None)

    made = [
        at_most(f"lb-churn live: {kind}, broken", worst(kind, of), "connections", 0)
        for kind, of in (
            (CHANGED, lambda cell: cell.all_broken),
            (REPLACED, lambda cell: cell.all_broken),
            (KILLED, lambda cell: max(0, cell.all_broken - cell.off_candidates)),
        )
    ]
    if not quick:
        for name, played in (
            ("connections", sum(cell.connections for cell in cells)),
            ("open at an event", sum(cell.met for cell in cells)),
        ):
            made.append(at_least(f"lb-churn live: {name}", played, "", CONNECTIONS))
    return made
