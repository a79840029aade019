"""The published figures of a load-balanced web service: equal answers over a range of rates.

httperf asks one service address; two Apache servers answer. The client's link is what is short,
as it was in the published set-up, on a link scaled by a stated factor; connections and rates follow
the link. Each rate is below, at or above what the link carries. Policies change on the running
service between two runs. Peers stand behind the same switch and the same link: HAProxy with
`leastconn` and with `random(2)`, nginx's stream proxy with `least_conn`, and nftables' `numgen`.
The same service is also before an Open vSwitch, whose link to the client has the same rate:
`levada openflow` as published and with the switch choosing, and a controller of the published kind
for os-ken, in Python.

With equal transfers over one shared link no choice of a server can win anything: the table says
what the link's arithmetic makes inevitable. What a policy can do is lose, by refusing or by
leaving a server idle. A failed connection counts as httperf's time-out in the honest mean; httperf
itself leaves it out of its own.

`--only switch` plays what is over Levada's own switch, `--only openflow` what is over Open vSwitch.

A full run keeps its cells in `cells.jsonl` beside the report: one that was interrupted goes on
where it was, and plays cells that do not count again, three times in all. What is compared may then
be of several starts, which the report says. A quick run, one after a run that ended, and one after
an edit of the lab (`lab.kept`) begin anew. A full run takes 20 to 60 minutes (`Figure.cell_s`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lab import machine, plot
from lab.balance import (
    TIMEOUT_S,
    Calls,
    Loads,
    apache,
    capacity_per_s,
    haproxy,
    httperf,
    nginx,
    numgen,
    shared_times_s,
    write_files,
)
from lab.kept import Kept, Key, digest_with_lab
from lab.machine import cpu_use, sample_cpu
from lab.net import Lab, Namespace, missing_tools
from lab.net import run as run_command
from lab.programs import Builds, Missing, program
from lab.report import Claim, Report, at_least, at_most, middle
from lab.stats import Mean, mean, quantile, table
from lab.switches import Levada
from lab.switches.levada import toml_table
from lab.switches.ovs_balanced import OSKEN, OvsBalanced
from lab.topology import Endpoint, Host, Tenant, Topology

#: What is started beside the program.
TOOLS = (
    *("ip", "tc", "ss", "sysctl", "ps", "ethtool", "nft"),
    *("httperf", "apache2", "haproxy", "nginx"),
    *("ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl", OSKEN),
)

MBIT = 1_000_000
#: The published link.
PUBLISHED_BPS = 1000 * MBIT
SERVICE = "10.1.0.100"
POLICIES = ("random", "round-robin", "loadavg", "p2c", "least-inflight")
#: Those of which something is promised.
OURS = ("p2c", "least-inflight")
HAPROXY, NUMGEN = "haproxy leastconn", "nftables numgen"
#: Proxies, each an endpoint beside the servers: how each is started there.
PROXIES: dict[str, Callable[[Lab, Namespace, list[str]], object]] = {
    HAPROXY: lambda lab, host, servers: haproxy(lab, host, servers, "leastconn"),
    "haproxy random(2)": lambda lab, host, servers: haproxy(lab, host, servers, "random(2)"),
    "nginx least_conn": nginx,
}
#: Over Open vSwitch: how the controller does it, and its policy.
OPENFLOW = {
    "openflow reactive": ("reactive", "p2c"),
    "openflow hash": ("hash", "maglev"),
    "os-ken": ("os-ken", "round-robin"),
}
#: Over Levada's own switch.
BESIDE = (*POLICIES, *PROXIES, NUMGEN)
#: The parts of a figure, by the switch that carries them, and the ways of each.
PARTS: dict[str, tuple[str, ...]] = {"switch": BESIDE, "openflow": tuple(OPENFLOW)}
#: All, in the order of the table.
WAYS = tuple(way for ways in PARTS.values() for way in ways)
#: Those that a plot has room for.
PLOTTED = (*POLICIES, HAPROXY, "os-ken")
#: What the mean of ours may be at most, of round-robin's: the upper end of its interval over the
#: runs; and of one quick run of each, which has none.
MOST_TIMES, MOST_TIMES_ONCE = 1.02, 1.25
#: How far round-robin's mean may be from that of the model of a shared link, in percent: other
#: cells are simulated by that model.
MODEL_WITHIN = 5.0
#: A load up to this, as part of what the link carries, is one that it carries.
CARRIED = 0.95
#: What a cell takes beside httperf: counters and settings.
BESIDE_S = 0.5


@dataclass(frozen=True)
class Plan:
    """How often, how many connections a cell, and at which published rates, a second."""

    runs: int
    connections: int
    rates: tuple[int, ...]


@dataclass(frozen=True)
class Figure:
    """One published figure, and how it is made smaller."""

    name: str
    #: Bytes of a published answer, and how many a connection asks for, one after the other.
    size: int
    calls: int
    full: Plan
    quick: Plan
    #: Parts of the published link, and of the published answer.
    link_factor: float = 0.1
    size_factor: float = 1.0

    def plan(self, quick: bool) -> Plan:
        """What is played."""
        return self.quick if quick else self.full

    @property
    def link_bps(self) -> int:
        """The client's link here."""
        return round(PUBLISHED_BPS * self.link_factor)

    @property
    def bytes(self) -> int:
        """An answer here."""
        return round(self.size * self.size_factor)

    @property
    def capacity(self) -> float:
        """Connections a second that the link carries here."""
        return capacity_per_s(self.link_bps, self.bytes, self.calls)

    def load(self, rate: int) -> float:
        """A published rate as part of what the published link carries: the load here as well."""
        return rate / capacity_per_s(PUBLISHED_BPS, self.size, self.calls)

    def carried(self, quick: bool) -> list[int]:
        """The published rates below what the link carries."""
        return [rate for rate in self.plan(quick).rates if self.load(rate) < CARRIED]

    def cell_s(self, plan: Plan, rate: int) -> float:
        """How long a cell takes at a published rate, in seconds, where the link is all that is
        short."""
        return BESIDE_S + plan.connections / self.capacity * max(1.0, 1 / self.load(rate))

    def inevitable_ms(self, plan: Plan, rate: int) -> list[float]:
        """The times of a run's connections, in their order, where the link is all that is short."""
        there = self.load(rate) * self.capacity
        return [1000 * t for t in shared_times_s(plan.connections, there, self.capacity)]

    def topology(self) -> Topology:
        """One host: client, two servers, and the proxies of the peers."""
        ends = (
            Endpoint("client", "red", "h0", limit_bps=self.link_bps),
            Endpoint("web1", "red", "h0"),
            Endpoint("web2", "red", "h0"),
            *(Endpoint(_proxy(way), "red", "h0") for way in PROXIES),
        )
        return Topology((Tenant("red"),), ends, (Host("h0", PUBLISHED_BPS),))


def _proxy(way: str) -> str:
    """The endpoint where a proxy runs."""
    return f"proxy{list(PROXIES).index(way)}"


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

    @classmethod
    def of(cls, row: dict[str, Any]) -> Cell:
        """Of what `asdict` has made of one, after JSON."""
        times = [(time, count) for time, count in row["calls"]["times"]]
        return cls(**{**row, "calls": Calls(**{**row["calls"], "times": times})})

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

    def load(self, backend: str, load: float) -> None:
        """`levada load`: a server's load average."""
        line = (str(program()), "load", f"h0/red/web/{backend}", f"{load:.3f}")
        run_command(*line, "--name", self._name, env=self._environment)


def run(figure: Figure, lab: Lab, quick: bool, out: Path, only: str | None = None) -> Report:
    """All rates, and at each all policies and peers one after the other; or those of one part."""
    missing = missing_tools(TOOLS)
    if missing:
        raise Missing(f"{figure.name} needs {', '.join(missing)}: tools/setup balance")
    plan = figure.plan(quick)
    report = Report(figure.name, quick)
    report.machine = machine.describe([*TOOLS, str(program())])
    report.parameters = {
        **asdict(figure),
        "timeout_s": TIMEOUT_S,
        "link_bps": figure.link_bps,
        "bytes": figure.bytes,
        "capacity_per_s": figure.capacity,
    }
    builds = Builds.all()
    made_of = digest_with_lab(program(), report.machine, report.parameters)
    path = None if quick else out / "cells.jsonl"
    kept = Kept(path, made_of, Cell.of, lambda cell: not cell.valid, builds)
    write_files(_files(lab), figure.bytes)
    services = {BESIDE: partial(_over_levada, lab, figure, plan)}
    services |= {(way,): partial(_over_ovs, lab, figure, plan, way) for way in OPENFLOW}
    played = WAYS if only is None else PARTS[only]
    services = {ways: running for ways, running in services.items() if ways[0] in played}
    cells = measure(figure, plan, services, kept)
    report.parameters |= kept.resumed()
    report.cells = [cell.as_row() for cell in cells]
    report.tables = [shown(figure, plan, cells, played)]
    report.claims = claims(figure, quick, cells, played)
    draw(figure, plan, cells, out, played)
    report.on_disk.append(kept.end)
    return report


def _files(lab: Lab) -> Path:
    """Where the servers' documents are."""
    return lab.dir / "files"


#: Plays a cell: by its way, published rate and number of the run.
Play = Callable[[str, int, int], Cell]
#: By the ways that one service plays, how it is started.
Services = Mapping[tuple[str, ...], Callable[[], AbstractContextManager[Play]]]


def measure(figure: Figure, plan: Plan, services: Services, kept: Kept) -> list[Cell]:
    """All cells, by service, rate, run and way. Those that are missing in `kept` are played, and
    kept; a service of which none is missing is not started."""
    keys = {
        ways: [(way, rate, n) for rate in plan.rates for n in range(plan.runs) for way in ways]
        for ways in services
    }
    left = [key for ways in services for key in kept.missing(keys[ways])]
    total = len(left)

    def play(service: Play, key: Key) -> dict[str, Any]:
        cell = service(*key)
        left.remove(key)
        left_s = sum(figure.cell_s(plan, rate) for _, rate, _ in left)
        _say(cell, f"{total - len(left)} of {total}, {left_s / 60:.0f} min left")
        return asdict(cell)

    return [
        cell for ways, running in services.items() for cell in kept.fill(keys[ways], running, play)
    ]


@contextmanager
def _over_levada(lab: Lab, figure: Figure, plan: Plan) -> Iterator[Play]:
    """The policies, and the peers that stand behind the same switch."""
    switch = Balanced(lab, figure.topology())
    with switch.running():
        spaces = {name: guest.namespace for name, guest in switch.guests.items()}
        servers = {name: apache(lab, spaces[name], name, _files(lab)) for name in ("web1", "web2")}
        addresses = [switch.guests[name].address for name in servers]
        for way, start in PROXIES.items():
            start(lab, spaces[_proxy(way)], addresses)

        def play(way: str, rate: int, number: int) -> Cell:
            with _prepared(switch, way, addresses) as address:
                return _play(switch, address, figure, plan, way, rate, number)

        with Loads(servers, switch.load).told():
            yield play


@contextmanager
def _over_ovs(lab: Lab, figure: Figure, plan: Plan, way: str) -> Iterator[Play]:
    """One way over a switch of its own."""
    mode, policy = OPENFLOW[way]
    switch = OvsBalanced(lab, figure.topology(), ("web1", "web2"), mode, policy)
    with switch.running():
        for name in ("web1", "web2"):
            apache(lab, switch.guests[name].namespace, name, _files(lab))
        yield partial(_play, switch, SERVICE, figure, plan)


@contextmanager
def _prepared(switch: Balanced, way: str, servers: list[str]) -> Iterator[str]:
    """The address to ask, while connections are balanced that way."""
    client = switch.guests["client"].namespace
    if way in PROXIES:
        yield switch.guests[_proxy(way)].address
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
    address: str,
    figure: Figure,
    plan: Plan,
    way: str,
    rate: int,
    number: int,
) -> Cell:
    before, start = _shares(switch), sample_cpu(switch.processes)
    calls = httperf(
        switch.guests["client"].namespace,
        address,
        plan.connections,
        figure.load(rate) * figure.capacity,
        figure.calls,
    )
    use = cpu_use(start, sample_cpu(switch.processes))
    # Open vSwitch is asked for its counters once a second.
    time.sleep(1.5 if way == "openflow hash" else 0.2)
    shares = [after - had for after, had in zip(_shares(switch), before, strict=True)]
    labels = {"way": way, "rate": rate, "run": number}
    return Cell(labels, calls, shares, use.idle, use.strangers, use.bound(), use.disturbed())


def _shares(switch: Balanced | OvsBalanced) -> list[int]:
    """Connections that each server has had of the service; none where nobody counts them."""
    if isinstance(switch, OvsBalanced) and switch.mode == "os-ken":
        return [0, 0]
    return [backend["new"] for backend in switch.service()["backends"]]


# --- judging ------------------------------------------------------------------------------


def of(cells: list[Cell], way: str, rate: int) -> list[Cell]:
    """The runs of one way at one published rate."""
    return [c for c in cells if (c.labels["way"], c.labels["rate"]) == (way, rate)]


def _mean(cells: list[Cell], value: Callable[[Calls], float]) -> Mean:
    return mean([value(c.calls) for c in cells])


def times(cells: list[Cell], way: str, base: str, rate: int) -> Mean | None:
    """How many times the honest mean of another way, by the runs in which both were undisturbed;
    None where these are less than two thirds."""
    ours, theirs = (
        {c.labels["run"]: c.calls.honest_mean_ms for c in of(cells, one, rate) if c.valid}
        for one in (way, base)
    )
    ratios = [ours[run] / theirs[run] for run in ours if run in theirs]
    planned = len({c.labels["run"] for c in of(cells, way, rate)})
    return mean(ratios) if middle(ratios, planned) is not None else None


def most_times(cells: list[Cell], way: str, base: str, rate: int) -> Claim:
    """That it is no slower than another way: with 95 % confidence, where there are runs enough."""
    found = times(cells, way, base, rate)
    name = f"{way}: mean at {rate}/s"
    if len(of(cells, way, rate)) == 1:
        value = None if found is None else found.value
        return at_most(name, value, f"x {base}", MOST_TIMES_ONCE)
    upper = None if found is None or found.half_width is None else found.value + found.half_width
    return at_most(f"{name}, upper end of 95 %", upper, f"x {base}", MOST_TIMES)


def of_the_model(figure: Figure, quick: bool, cells: list[Cell], rate: int) -> Claim:
    """That round-robin's mean over the undisturbed runs is what the model of a shared link says."""
    runs = of(cells, "round-robin", rate)
    counted = [cell.calls.honest_mean_ms for cell in runs if cell.valid]
    model = mean(figure.inevitable_ms(figure.plan(quick), rate)).value
    found = None if middle(counted, len(runs)) is None else mean(counted).value
    off = None if found is None else 100 * abs(found / model - 1)
    return at_most(f"round-robin: mean at {rate}/s, off the model", off, "%", MODEL_WITHIN)


def claims(figure: Figure, quick: bool, cells: list[Cell], played: Sequence[str]) -> list[Claim]:
    """Nothing is refused below what the link carries; ours is never worse than round-robin, of
    which only undisturbed runs say anything; the published policies do what they are. Of the ways
    that were to be played."""
    made: list[Claim] = []
    rates, carried = figure.plan(quick).rates, figure.carried(quick)
    nothing_fails = (*OURS, "round-robin", "openflow reactive", "openflow hash")
    for way in [way for way in nothing_fails if way in played] if carried else ():
        below = [c for rate in carried for c in of(cells, way, rate)]
        failed = sum(c.calls.failed for c in below) if below else None
        name = f"{way}: failed below {100 * CARRIED:.0f} % of the link"
        made.append(at_most(name, failed, "connections", 0))
    pairs = [(way, "round-robin") for way in OURS] + [("openflow reactive", "os-ken")]
    for way, base in [pair for pair in pairs if pair[0] in played]:
        made += [most_times(cells, way, base, rate) for rate in rates]
    if "round-robin" not in played:
        return made
    made += [of_the_model(figure, quick, cells, rate) for rate in rates]
    turns = [c for rate in rates for c in of(cells, "round-robin", rate)]
    uneven = max((abs(c.shares[0] - c.shares[1]) for c in turns), default=None)
    made.append(at_most("round-robin: servers differ by", uneven, "connections", 1))
    herd = [max(c.shares) / max(1, sum(c.shares)) for c in of(cells, "loadavg", rates[-1])]
    share = 100 * mean(herd).value if herd else None
    made.append(at_least("loadavg: to one server in a burst", share, "% of connections", 90))
    return made


def _pooled(cells: list[Cell]) -> list[tuple[int, int]]:
    """The honest times of all runs' connections together, in ms, and how many had each."""
    return sorted(pair for cell in cells for pair in cell.calls.honest_times)


def shown(figure: Figure, plan: Plan, cells: list[Cell], played: Sequence[str]) -> str:
    """The figure as a table: httperf's own mean, the honest one, and what is inevitable."""
    rows = []
    for rate in plan.rates:
        load = figure.load(rate)
        least = figure.inevitable_ms(plan, rate)
        pooled = [(round(t), 1) for t in sorted(least)]
        quantiles = [f"{quantile(pooled, part):.0f}" for part in (0.5, 0.95)]
        at = [f"{100 * load:.0f} %", f"{load * figure.capacity:.3g} ({rate})"]
        best = f"{mean(least).value:.0f}"
        rows.append(["inevitable", *at, best, best, *quantiles, f"{max(least):.0f}", "", ""])
        for way in played:
            group = of(cells, way, rate)
            kinds: dict[str, int] = {}
            for cell in group:
                for name, count in cell.calls.failures.items():
                    kinds[name] = kinds.get(name, 0) + count
            counts = [sum(c.shares[n] for c in group) for n in (0, 1)]
            failed = sum(c.calls.failed for c in group)
            why = ", ".join(f"{n} {c}" for n, c in kinds.items())
            rows.append(
                [
                    way,
                    *at,
                    format(_mean(group, lambda calls: calls.mean_ms), ".0f"),
                    format(_mean(group, lambda calls: calls.honest_mean_ms), ".0f"),
                    *(f"{quantile(_pooled(group), part):.0f}" for part in (0.5, 0.95)),
                    f"{max(c.calls.max_ms for c in group):.0f}",
                    f"{failed} ({why})" if why else f"{failed}",
                    "{}:{}".format(*counts) if sum(counts) else "-",
                ]
            )
    head = ["balanced by", "load", "conn/s (1 Gbit/s)", "mean ms", "honest", "p50", "p95", "max"]
    what = f"{plan.connections} connections of {figure.calls} x {figure.bytes} bytes"
    size = f"({figure.size_factor:g} x the published)"
    link = f"link {figure.link_bps / MBIT:.0f} Mbit/s ({figure.link_factor:g} x)"
    title = f"{what} {size}, {link}, {figure.capacity:.3g} connections/s"
    return f"{title}\n{table([*head, 'failed', 'servers'], rows)}"


def draw(figure: Figure, plan: Plan, cells: list[Cell], out: Path, played: Sequence[str]) -> None:
    """As published: mean against rate; of one rate, the distribution of times."""
    title, series = f"{figure.name}, link {figure.link_factor:g} x", {}
    plotted = [way for way in PLOTTED if way in played]
    if len(plan.rates) > 1:
        rates = [float(rate) for rate in plan.rates]
        least = [mean(figure.inevitable_ms(plan, rate)).value for rate in plan.rates]
        series["inevitable"] = (rates, least)
        for way in plotted:
            means = [
                _mean(of(cells, way, rate), lambda calls: calls.honest_mean_ms).value
                for rate in plan.rates
            ]
            series[way] = (rates, means)
        plot.lines(out / "mean", title, "published connections/s", "mean time, ms", series)
        return
    (rate,) = plan.rates
    series["inevitable"] = cumulative([(round(t), 1) for t in figure.inevitable_ms(plan, rate)])
    for way in plotted:
        series[way] = cumulative(_pooled(of(cells, way, rate)))
    plot.lines(out / "times", title, "time of a connection, ms", "% of connections", series)


def cumulative(counts: list[tuple[int, int]]) -> tuple[list[float], list[float]]:
    """Values in order, and the percentage of all that are at most each."""
    total, seen = sum(count for _, count in counts), 0
    values, parts = [], []
    for value, count in sorted(counts):
        if not count:
            continue
        seen += count
        values.append(float(value))
        parts.append(100 * seen / total)
    return values, parts


def _say(cell: Cell, progress: str) -> None:
    calls, labels = cell.calls, cell.labels
    why = cell.disturbed or cell.bound
    text = f"  {progress}: {labels['way']} at {labels['rate']}/s: mean {calls.mean_ms:.0f} ms"
    text += f", {calls.failed} failed, servers {cell.shares}"
    print(f"{text}; {why}" if why else text, file=sys.stderr, flush=True)
