"""Reloading a large configuration under load: does anybody else lose a frame, and is the loop late?

Two hosts of one daemon, paced TCP connections and a stream of numbered datagrams between them over
a link. `levada apply` adds a thousand endpoints with devices of their own to one of the hosts, and
later removes them. Nobody else may lose a frame: no counter of drops grows, no device refuses one,
no datagram is missing. How late the loop was comes from the daemon's own histogram, over the time
of the command; beside it stands the same over as long a time in which nothing was changed,
which is what the machine itself does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import machine
from lab.cell import disturbance
from lab.machine import cpu_use, sample_cpu
from lab.net import Lab
from lab.net import run as run_command
from lab.programs import program
from lab.report import Claim, Report, at_most, middle
from lab.stats import bucket_counts, quantile, table
from lab.switches import Levada
from lab.switches.levada import toml_table
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, Stream, UdpFlow

SUMMARY = "a thousand endpoints come and go under load: frames that others lose, and the loop's lag"

MBIT = 1_000_000
LINK_BPS = 300 * MBIT
CONNECTIONS = 8
CONNECTION_BPS = 20 * MBIT
DATAGRAMS_BPS = 20 * MBIT

#: Endpoints that come and go.
MANY = 1000
#: The largest p99 of the loop's lag, in microseconds.
LAG_US = 1000
#: How often they come and go.
TIMES = {False: 3, True: 1}
#: At least so long is looked at, though the command may be done sooner.
WINDOW_S = 1.0
#: Nothing is changed for at most so long.
QUIET_S = 5.0
#: Senders and receivers end by themselves after this; a kernel may take 20 ms to move a new device
#: to its namespace, or to remove one (its RCU grace period), and so a minute for both.
TURN_S = 60


class Growing(Levada):
    """Levada whose second host gets `MANY` endpoints more."""

    def prepare(self) -> None:
        """Makes the namespace for their devices, and both configurations."""
        self._home = self.lab.namespace("many")
        few = self.configuration()
        (self.lab.dir / "few.toml").write_text(few)
        (self.lab.dir / "many.toml").write_text(few + self._many())

    def apply(self, file: str) -> None:
        """`levada apply`, which returns when all is done."""
        path = str(self.lab.dir / file)
        run_command(str(program()), "apply", "--name", self._name, path, env=self._environment)

    def _many(self) -> str:
        parts = [toml_table("[switch.tenant]", name="many", vlan=99)]
        parts += [
            toml_table(
                "[switch.tenant.endpoint]",
                name=f"e{n}",
                port=f"tap://e{n}",
                netns=self._home.name,
                guarantee="100 kbit/s",
            )
            for n in range(MANY)
        ]
        return "\n".join(["", *parts])


@dataclass(frozen=True)
class Turn:
    """One command, or none."""

    labels: dict[str, Any]
    took_s: float
    lag_p99_us: float
    lag_max_us: float
    lost: int
    endpoints: int
    idle: float
    strangers: float
    bound: str | None
    disturbed: str | None

    @property
    def valid(self) -> bool:
        return self.disturbed is None and self.bound is None


def topology() -> Topology:
    """Two hosts, an endpoint each."""
    ends = (Endpoint("a0", "a", "h0"), Endpoint("a1", "a", "h1"))
    return Topology((Tenant("a"),), ends, (Host("h0", LINK_BPS), Host("h1", LINK_BPS)))


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Endpoints come and go a number of times."""
    report = Report("reload", quick, parameters=_parameters(quick))
    report.machine = machine.describe(["ip", str(program())])
    turns: list[Turn] = []
    missing = 0
    switch = Growing(lab, topology())
    with switch.running():
        switch.prepare()
        src, dst = switch.guests["a0"], switch.guests["a1"]
        for number in range(TIMES[quick]):
            stream = Stream("load", "a0", "a1", CONNECTION_BPS, CONNECTIONS, row_ms=10)
            stream.begin(src, dst, FIRST_PORT, TURN_S)
            datagrams = UdpFlow("datagrams", "a0", "a1", DATAGRAMS_BPS)
            datagrams.begin(src, dst, FIRST_PORT + 1, TURN_S)
            time.sleep(2)
            added = _turn(switch, "added", number, "many.toml")
            quiet = _turn(switch, "nothing", number, None, min(QUIET_S, added.took_s))
            removed = _turn(switch, "removed", number, "few.toml")
            for turn in (added, quiet, removed):
                turns.append(turn)
                print(f"  {_progress(turn)}", file=sys.stderr)
            stream.end()
            missing += datagrams.end().detail["lost_packets"]
    report.cells = [asdict(t) | {"valid": t.valid} for t in turns]
    report.tables = [turns_table(turns)]
    report.claims = claims(turns, missing, TIMES[quick])
    return report


def _turn(
    switch: Growing, what: str, number: int, file: str | None, least_s: float = WINDOW_S
) -> Turn:
    cpu, first, begun = sample_cpu(switch.processes), switch.sample(), time.monotonic()
    refused = _refused(switch)
    if file is not None:
        switch.apply(file)
    took = time.monotonic() - begun
    time.sleep(max(0.0, least_s - took, WINDOW_S - took))
    last = switch.sample()
    use = cpu_use(cpu, sample_cpu(switch.processes))
    before, after = first["worker"]["loop_lag_buckets"], last["worker"]["loop_lag_buckets"]
    grown = bucket_counts(before, after)
    return Turn(
        labels={"what": what, "number": number},
        took_s=took if file is not None else time.monotonic() - begun,
        lag_p99_us=quantile(grown, 0.99) / 1000,
        lag_max_us=quantile(grown, 1.0) / 1000,
        lost=drops(last) - drops(first) + _refused(switch) - refused,
        endpoints=sum(len(t["endpoints"]) for s in last["switches"] for t in s["tenants"]),
        idle=use.idle,
        strangers=use.strangers,
        bound=use.bound(0.0),
        disturbed=disturbance(use, 0.0),
    )


def drops(shown: dict[str, Any]) -> int:
    """Frames that the endpoints of tenant `a` lost, for whatever reason, and the links lost."""
    own: list[int] = [
        sum(endpoint["drops"].values())
        for switch in shown["switches"]
        for tenant in switch["tenants"]
        if tenant["name"] == "a"
        for endpoint in tenant["endpoints"]
    ]
    links: list[int] = [link[end]["drops"] for link in shown["links"] for end in "ab"]
    return sum(own) + sum(links)


def _refused(switch: Levada) -> int:
    """Frames that the guests' devices could not pass on."""
    total = 0
    for name in ("a0", "a1"):
        statistics_dir = f"/sys/class/net/{name}/statistics"
        for counter in ("tx_dropped", "rx_dropped"):
            text = switch.guests[name].namespace.run("cat", f"{statistics_dir}/{counter}")
            total += int(text)
    return total


def claims(turns: Sequence[Turn], missing: int, planned: int) -> list[Claim]:
    """Nothing lost in any turn; the median p99 of those that count."""
    made = [
        at_most("frames that others lost", sum(t.lost for t in turns), "", 0),
        at_most("datagrams missing", missing, "", 0),
    ]
    for what in ("added", "removed"):
        lags = [t.lag_p99_us for t in turns if t.labels["what"] == what and t.valid]
        lag = middle(lags, planned)
        made.append(at_most(f"{MANY} endpoints {what}: p99 of the loop's lag", lag, "us", LAG_US))
    return made


def turns_table(turns: Sequence[Turn]) -> str:
    """All turns."""
    rows = [
        [
            f"{t.labels['what']} {t.labels['number']}",
            str(t.endpoints),
            f"{t.took_s:.2f}",
            f"{t.lag_p99_us:.0f}",
            f"{t.lag_max_us:.0f}",
            str(t.lost),
            t.disturbed or t.bound or "",
        ]
        for t in turns
    ]
    head = ["turn", "endpoints then", "took s", "lag p99 us", "max", "lost", ""]
    return table(head, rows)


def _progress(turn: Turn) -> str:
    what = f"{turn.labels['what']} {turn.labels['number']}"
    why = turn.disturbed or turn.bound
    text = f"{what}: {turn.took_s:.2f} s, lag p99 {turn.lag_p99_us:.0f} us, {turn.lost} lost"
    return f"{text}; {why}" if why else text


def _parameters(quick: bool) -> dict[str, Any]:
    return {
        "endpoints": MANY,
        "times": TIMES[quick],
        "connections": CONNECTIONS,
        "connection_bps": CONNECTION_BPS,
        "datagrams_bps": DATAGRAMS_BPS,
        "link_bps": LINK_BPS,
        "lag_us": LAG_US,
    }
