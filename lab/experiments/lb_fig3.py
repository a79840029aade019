"""The published figure 3 of a load-balanced web service: 1 MB a connection, over a range of rates.

httperf asks one service address; two Apache servers answer. The client's link is what is short,
as it was in the published set-up, on a link scaled by a stated factor; connections and rates follow
the link. Each rate is below, at or above what the link carries. Policies change on the running
service between two runs. Peers stand behind the same switch and the same link: HAProxy with
`leastconn`, and nftables' `numgen`. The same service is also before an Open vSwitch, whose link
to the client has the same rate: `levada openflow` as published and with the switch choosing, and a
controller of the published kind for os-ken, in Python.

With equal transfers over one shared link no choice of a server can win anything: the table says
what the link's arithmetic makes inevitable. What a policy can do is lose, by refusing or by
leaving a server idle. A failed connection counts as httperf's time-out in the honest mean; httperf
itself leaves it out of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import machine
from lab.balance import (
    TIMEOUT_S,
    Calls,
    Loads,
    apache,
    capacity_per_s,
    haproxy,
    httperf,
    numgen,
    shared_mean_s,
    write_files,
)
from lab.machine import cpu_use, sample_cpu
from lab.net import Lab, missing_tools
from lab.net import run as run_command
from lab.programs import Missing, program
from lab.report import Claim, Report, at_least, at_most
from lab.stats import Mean, mean, table
from lab.switches import Levada
from lab.switches.levada import toml_table
from lab.switches.ovs_balanced import OvsBalanced
from lab.topology import Endpoint, Host, Tenant, Topology

SUMMARY = "the published figure 3: 1 MB a connection over two servers, by policy and rate"

MBIT = 1_000_000
#: The published link, and by what it is scaled here.
PUBLISHED_BPS = 1000 * MBIT
FACTOR = 0.1
LINK_BPS = round(PUBLISHED_BPS * FACTOR)
SIZE = 1_000_000
#: Published rates of 90, 110 and 500 a second are so much of what 1 Gbit/s carries.
LOADS = (0.76, 0.93, 4.2)
SERVICE = "10.1.0.100"
POLICIES = ("random", "round-robin", "loadavg", "p2c", "least-inflight")
#: Those of which something is promised.
OURS = ("p2c", "least-inflight")
HAPROXY, NUMGEN = "haproxy leastconn", "nftables numgen"
#: Over Open vSwitch: how the controller does it, and its policy.
OPENFLOW = {
    "openflow reactive": ("reactive", "p2c"),
    "openflow hash": ("hash", "maglev"),
    "os-ken": ("os-ken", "round-robin"),
}
#: All, in the order of the table.
WAYS = (*POLICIES, HAPROXY, NUMGEN, *OPENFLOW)
#: What the mean of ours may be at most, of round-robin's in the same run.
MOST_TIMES = 1.25


@dataclass(frozen=True)
class Plan:
    """How often, and how many connections a run."""

    runs: int
    connections: int


FULL = Plan(runs=10, connections=100)
QUICK = Plan(runs=1, connections=40)


@dataclass
class Cell:
    """One run of httperf."""

    labels: dict[str, Any]
    calls: Calls
    shares: list[int]
    idle: float
    strangers: float
    bound: str | None
    disturbed: str | None

    def as_row(self) -> dict[str, Any]:
        """For result.json."""
        # Where httperf itself ran out of descriptors, the run says nothing.
        row = {**asdict(self), "honest_mean_ms": self.calls.honest_mean_ms}
        return {**row, "valid": self.valid, "disturbed": self._ran_out() or self.disturbed}

    @property
    def valid(self) -> bool:
        """Whether its times count."""
        return self.disturbed is None and self.bound is None and self._ran_out() is None

    def _ran_out(self) -> str | None:
        """Where httperf itself ran out of descriptors, the run says nothing."""
        ran_out = self.calls.failures.get("fd-unavail")
        return "httperf ran out of descriptors" if ran_out else None


class Balanced(Levada):
    """Levada with a service before two web servers, and the client's link as narrow as the
    published one, scaled."""

    def configuration(self) -> str:
        service = toml_table("[switch.tenant.service]", name="web", address=f"{SERVICE}:80")
        backends = [
            toml_table("[switch.tenant.service.backend]", name=name) for name in ("web1", "web2")
        ]
        return "\n".join([super().configuration(), service, *backends])

    def services(self) -> dict[str, Any]:
        """`levada show services --json`: the one service."""
        line = (str(program()), "show", "services", "--json", "--name", self._name)
        shown: dict[str, Any] = json.loads(run_command(*line, env=self._environment))
        service: dict[str, Any] = shown["services"][0]
        return service

    def load(self, backend: str, load: float) -> None:
        """`levada load`: a server's load average."""
        line = (str(program()), "load", f"h0/red/web/{backend}", f"{load:.3f}")
        run_command(*line, "--name", self._name, env=self._environment)


def topology() -> Topology:
    """One host: client, two servers, and a proxy for the peers."""
    ends = (
        Endpoint("client", "red", "h0", limit_bps=LINK_BPS),
        Endpoint("web1", "red", "h0"),
        Endpoint("web2", "red", "h0"),
        Endpoint("proxy", "red", "h0"),
    )
    return Topology((Tenant("red"),), ends, (Host("h0", PUBLISHED_BPS),))


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """All rates, and at each all policies and peers one after the other."""
    tools = ["httperf", "apache2", "haproxy", "nft", "ss", "ovs-vswitchd", "osken-manager"]
    missing = missing_tools(tools)
    if missing:
        raise Missing(f"lb-fig3 needs {', '.join(missing)}: tools/setup balance")
    plan = QUICK if quick else FULL
    report = Report("lb-fig3", quick)
    report.machine = machine.describe(["ip", "apache2", "haproxy", "nft", str(program())])
    capacity = capacity_per_s(LINK_BPS, SIZE)
    report.parameters = {
        **asdict(plan),
        "link_bps": LINK_BPS,
        "factor": FACTOR,
        "size_bytes": SIZE,
        "timeout_s": TIMEOUT_S,
        "capacity_per_s": capacity,
    }
    switch = Balanced(lab, topology())
    cells: list[Cell] = []
    with switch.running():
        files = lab.dir / "files"
        write_files(files, SIZE)
        spaces = {name: guest.namespace for name, guest in switch.guests.items()}
        servers = {name: apache(lab, spaces[name], name, files) for name in ("web1", "web2")}
        addresses = [switch.guests[name].address for name in servers]
        haproxy(lab, spaces["proxy"], addresses, "leastconn")
        with Loads(servers, switch.load).told():
            for load in LOADS:
                for number in range(plan.runs):
                    for way in (*POLICIES, HAPROXY, NUMGEN):
                        with _prepared(switch, way, addresses) as address:
                            rate = load * capacity
                            cells.append(_play(switch, way, address, plan, rate, load, number))
                        _say(cells[-1])
    for way in OPENFLOW:
        cells += _over_ovs(lab, way, plan, capacity)
    report.cells = [cell.as_row() for cell in cells]
    report.tables = [shown(cells, plan, capacity)]
    report.claims = claims(cells)
    return report


def _over_ovs(lab: Lab, way: str, plan: Plan, capacity: float) -> list[Cell]:
    """All runs of one way over a switch of its own."""
    cells = []
    mode, policy = OPENFLOW[way]
    switch = OvsBalanced(lab, topology(), ("web1", "web2"), mode, policy)
    with switch.running():
        files = lab.dir / "files"
        for name in ("web1", "web2"):
            apache(lab, switch.guests[name].namespace, name, files)
        for load in LOADS:
            for number in range(plan.runs):
                rate = load * capacity
                cells.append(_play(switch, way, SERVICE, plan, rate, load, number))
                _say(cells[-1])
    return cells


@contextmanager
def _prepared(switch: Balanced, way: str, servers: list[str]) -> Iterator[str]:
    """The address to ask, while connections are balanced that way."""
    client = switch.guests["client"].namespace
    if way == HAPROXY:
        yield switch.guests["proxy"].address
    elif way == NUMGEN:
        # The address is nobody's; the client's own kernel translates it.
        remove = numgen(client, "10.1.0.200", servers)
        client.ip("route replace 10.1.0.200/32 dev client")
        try:
            yield "10.1.0.200"
        finally:
            remove()
    else:
        switch.set("service", "h0/red/web", f"policy={way}")
        yield SERVICE


def _play(
    switch: Balanced | OvsBalanced,
    way: str,
    address: str,
    plan: Plan,
    rate: float,
    load: float,
    number: int,
) -> Cell:
    before, start = _shares(switch), sample_cpu(switch.processes)
    calls = httperf(switch.guests["client"].namespace, address, plan.connections, rate)
    use = cpu_use(start, sample_cpu(switch.processes))
    # Open vSwitch is asked for its counters once a second.
    time.sleep(1.5 if way == "openflow hash" else 0.2)
    shares = [after - had for after, had in zip(_shares(switch), before, strict=True)]
    labels = {"way": way, "load": load, "run": number}
    return Cell(labels, calls, shares, use.idle, use.strangers, use.bound(), use.disturbed())


def _shares(switch: Balanced | OvsBalanced) -> list[int]:
    """Connections that each server has had of the service; none where nobody counts them."""
    if isinstance(switch, OvsBalanced) and switch.mode == "os-ken":
        return [0, 0]
    return [backend["new"] for backend in switch.services()["backends"]]


# --- judging ------------------------------------------------------------------------------


def of(cells: list[Cell], way: str, load: float) -> list[Cell]:
    """The runs of one way at one load."""
    return [c for c in cells if (c.labels["way"], c.labels["load"]) == (way, load)]


def _mean(cells: list[Cell], value: Callable[[Calls], float]) -> Mean:
    return mean([value(c.calls) for c in cells])


def _times(cells: list[Cell], way: str, base: str, load: float) -> float | None:
    """How many times the honest mean of another way, of undisturbed runs."""
    means = []
    for one in (way, base):
        valid = [c for c in of(cells, one, load) if c.valid]
        if not valid:
            return None
        means.append(_mean(valid, lambda calls: calls.honest_mean_ms).value)
    return means[0] / means[1]


def claims(cells: list[Cell]) -> list[Claim]:
    """Nothing is refused below what the link carries; ours is never worse than round-robin, of
    which only undisturbed runs say anything; the published policies do what they are."""
    made: list[Claim] = []
    for way in (*OURS, "round-robin", "openflow reactive", "openflow hash"):
        below = [c for load in LOADS if load < 0.95 for c in of(cells, way, load)]
        failed = sum(c.calls.failed for c in below) if below else None
        made.append(at_most(f"{way}: failed below 95 % of the link", failed, "connections", 0))
    for load in LOADS:
        for way in OURS:
            name = f"{way}: mean at {100 * load:.0f} % of the link"
            times = _times(cells, way, "round-robin", load)
            made.append(at_most(name, times, "x round-robin", MOST_TIMES))
    for load in LOADS:
        name = f"openflow reactive: mean at {100 * load:.0f} % of the link"
        times = _times(cells, "openflow reactive", "os-ken", load)
        made.append(at_most(name, times, "x os-ken", MOST_TIMES))
    turns = [c for load in LOADS for c in of(cells, "round-robin", load)]
    uneven = max((abs(c.shares[0] - c.shares[1]) for c in turns), default=None)
    made.append(at_most("round-robin: servers differ by", uneven, "connections", 1))
    herd = [max(c.shares) / max(1, sum(c.shares)) for c in of(cells, "loadavg", LOADS[-1])]
    share = 100 * mean(herd).value if herd else None
    made.append(at_least("loadavg: to one server in a burst", share, "% of connections", 90))
    return made


def shown(cells: list[Cell], plan: Plan, capacity: float) -> str:
    """The figure as a table: httperf's own mean, the honest one, and what is inevitable."""
    rows = []
    for load in LOADS:
        rate = load * capacity
        least = 1000 * shared_mean_s(plan.connections, rate, capacity)
        for way in WAYS:
            group = of(cells, way, load)
            kinds: dict[str, int] = {}
            for cell in group:
                for name, count in cell.calls.failures.items():
                    kinds[name] = kinds.get(name, 0) + count
            counts = [sum(c.shares[n] for c in group) for n in (0, 1)]
            rows.append(
                [
                    way,
                    f"{100 * load:.0f} %",
                    f"{rate:.0f} ({rate / FACTOR:.0f})",
                    format(_mean(group, lambda calls: calls.mean_ms), ".0f"),
                    format(_mean(group, lambda calls: calls.honest_mean_ms), ".0f"),
                    f"{least:.0f}",
                    f"{max(c.calls.max_ms for c in group):.0f}",
                    ", ".join(f"{n} {c}" for n, c in kinds.items()) or "0",
                    "{}:{}".format(*counts) if sum(counts) else "-",
                ]
            )
    head = ["balanced by", "load", "conn/s (1 Gbit/s)", "mean ms", "honest", "inevitable", "max"]
    link = f"{plan.connections} connections of {SIZE} bytes, link {LINK_BPS / MBIT:.0f} Mbit/s"
    more = f"({FACTOR:g} x the published), {capacity:.1f} transfers/s"
    return f"{link} {more}\n{table([*head, 'failed', 'servers'], rows)}"


def _say(cell: Cell) -> None:
    calls, labels = cell.calls, cell.labels
    why = cell.disturbed or cell.bound
    text = f"  {labels['way']} at {100 * labels['load']:.0f} %: mean {calls.mean_ms:.0f} ms"
    text += f", {calls.failed} failed, servers {cell.shares}"
    print(f"{text}; {why}" if why else text, file=sys.stderr, flush=True)
