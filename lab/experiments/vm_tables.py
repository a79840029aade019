"""FS-VDE's two tables with virtual machines: clients with weights 1:2, flows as published.

    egress    f1 = c1 v1->v2;  f2..f5 = c2 v1->v3, v1->v4, v2->v3, v2->v4
    ingress   f1 = c1 v1->v2;  f2 = c1 v1->v3;  f3 = c2 v1->v2

A part of `lab/run vm`. The machines are those of host 1, whose switch decides: the senders on
egress, the receivers on ingress; whoever is at the other end is in a namespace. Host 1's link is
scaled to a hundredth of the tables' (`lab/run fs-vde`), of which three emulated machines fill all.
A client's share is what its frames took on host 1's wire over its part by weight of what both took.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lab import fluid
from lab.guest import Image
from lab.machine import cpu_use, sample_cpu
from lab.net import Lab
from lab.report import Claim, Report, at_least
from lab.stats import table
from lab.switches.levada_vm import LevadaVm
from lab.topology import Endpoint, Host, Tenant, Topology

MBIT = 1_000_000
LINK_BPS = 20 * MBIT
#: How much faster than host 1's link the wire is, so that host 1 decides.
SPARE = 2
CLIENTS = (Tenant("c1", weight=1), Tenant("c2", weight=2))
#: Names of machines begin with vm.
FLOWS = {
    "egress": {
        "f1": ("vmc1v1", "c1v2"),
        "f2": ("vmc2v1", "c2v3"),
        "f3": ("vmc2v1", "c2v4"),
        "f4": ("vmc2v2", "c2v3"),
        "f5": ("vmc2v2", "c2v4"),
    },
    "ingress": {
        "f1": ("c1v1", "vmc1v2"),
        "f2": ("c1v1", "vmc1v3"),
        "f3": ("c2v1", "vmc2v2"),
    },
}
FIRST_PORT = 5300
#: Until all flows go, and for how long they are watched.
LEAD_S = 4.0
WINDOW_S = {False: 15.0, True: 8.0}
#: Least part of its ideal share that a client may get, in percent, as in `lab/run fs-vde`.
SHARE_PERCENT = 99.9


@dataclass(frozen=True)
class Cell:
    """All flows of a direction at once."""

    direction: str
    #: Wire bytes of each client at host 1.
    took: Mapping[str, int]
    window_s: float
    idle: float
    disturbed: str | None

    @property
    def valid(self) -> bool:
        """Whether nobody else's work may have decided."""
        return self.disturbed is None

    def shares_percent(self) -> dict[str, float]:
        """What each client took over its ideal part of what both took."""
        ideal = fluid.by_weight(sum(self.took.values()), [c.weight for c in CLIENTS])
        return {
            c.name: 100 * self.took[c.name] / due if due else 0.0
            for c, due in zip(CLIENTS, ideal, strict=True)
        }

    def link_percent(self) -> float:
        """What both took, of the link."""
        return 100 * sum(self.took.values()) * 8 / self.window_s / LINK_BPS


def client_of(endpoint: str) -> str:
    """Whose an endpoint is."""
    return endpoint.removeprefix("vm")[:2]


def topology(direction: str) -> Topology:
    """The machines on host 1, and the others on host 2."""
    names = sorted({name for ends in FLOWS[direction].values() for name in ends})
    if direction == "egress":
        hosts = Host("h1", LINK_BPS), Host("h2", SPARE * LINK_BPS)
    else:
        hosts = (
            Host("h1", SPARE * LINK_BPS, ingress_bps=LINK_BPS),
            Host("h2", SPARE * LINK_BPS, isolates=False),
        )
    ends = tuple(Endpoint(n, client_of(n), "h1" if n.startswith("vm") else "h2") for n in names)
    return Topology(CLIENTS, ends, hosts)


def play(lab: Lab, image: Image, quick: bool, report: Report) -> None:
    """Plays both tables, and adds what was found to a report."""
    cells = []
    for direction in FLOWS:
        switch = LevadaVm(lab, topology(direction), image)
        with switch.running():
            cells.append(_play(switch, direction, WINDOW_S[quick]))
        shares = ", ".join(f"{v:.2f}" for v in cells[-1].shares_percent().values())
        full = f"{cells[-1].link_percent():.1f} % of the link"
        print(f"  {direction} with machines: {shares} % of ideal, {full}", file=sys.stderr)
    report.parameters["tables"] = {"link_bps": LINK_BPS, "window_s": WINDOW_S[quick]}
    report.cells += [
        {"labels": {"table": c.direction}, "valid": c.valid, **asdict(c)} for c in cells
    ]
    report.tables.append(shares_table(cells))
    report.claims += claims(cells)


def _play(switch: LevadaVm, direction: str, window_s: float) -> Cell:
    flows = FLOWS[direction]
    seconds = round(LEAD_S + window_s + 3)
    ports = {flow: FIRST_PORT + n for n, flow in enumerate(flows)}
    servers = []
    for flow, (_, to) in flows.items():
        listen = ["iperf3", "--server", "--port", str(ports[flow])]
        if to in switch.machines:
            switch.machines[to].run(" ".join([*listen, "--daemon"]))
        else:
            space = switch.guests[to].namespace
            servers.append(space.spawn(f"server-{flow}", *listen, stdout=subprocess.DEVNULL))
    time.sleep(1)
    commands: dict[str, list[list[str]]] = {}
    for flow, (source, to) in flows.items():
        end = next(e for e in switch.topology.endpoints if e.name == to)
        where = ["--client", switch.topology.address(end), "--port", str(ports[flow])]
        options = ["--congestion", "cubic", "--time", str(seconds), "--interval", "0"]
        commands.setdefault(source, []).append(["iperf3", *where, *options])
    clients = []
    for source, all_of in commands.items():
        if source in switch.machines:
            text = " & ".join(f"{' '.join(command)} >/dev/null" for command in all_of)
            switch.machines[source].begin(f"{text}; wait")
        else:
            space = switch.guests[source].namespace
            clients += [
                space.spawn(f"client-{source}-{n}", *command, stdout=subprocess.DEVNULL)
                for n, command in enumerate(all_of)
            ]
    time.sleep(LEAD_S)
    before, cpu = _took(switch, direction), sample_cpu(switch.processes)
    begun = time.monotonic()
    time.sleep(window_s)
    after, use = _took(switch, direction), cpu_use(cpu, sample_cpu(switch.processes))
    lasted = time.monotonic() - begun
    for source in commands:
        if source in switch.machines:
            switch.machines[source].end(seconds + 30)
    for process in clients:
        process.popen.wait(seconds + 30)
    for process in servers:
        process.popen.terminate()
    took = {name: after[name] - before[name] for name in after}
    return Cell(direction, took, lasted, use.idle, use.disturbed())


def _took(switch: LevadaVm, direction: str) -> dict[str, int]:
    """Wire bytes of each client at host 1 so far."""
    (first,) = (s for s in switch.sample()["switches"] if s["name"] == "h1")
    return {
        t["name"]: sum(int(e[direction]["wire_bytes"]) for e in t["endpoints"])
        for t in first["tenants"]
    }


def claims(cells: Sequence[Cell]) -> list[Claim]:
    """Each client has its share, and the link is full."""
    made = []
    for cell in cells:
        worst = min(cell.shares_percent().values()) if cell.valid else None
        full = cell.link_percent() if cell.valid else None
        name = f"{cell.direction} with machines"
        made.append(at_least(f"{name}: worst client's share", worst, "% of ideal", SHARE_PERCENT))
        made.append(at_least(f"{name}: of the link", full, "%", 95))
    return made


def shares_table(cells: Sequence[Cell]) -> str:
    """A row for each direction."""
    rows: list[list[Any]] = [
        [
            c.direction,
            *(f"{8 * c.took[t.name] / c.window_s / MBIT:.2f}" for t in CLIENTS),
            *(f"{v:.2f}" for v in c.shares_percent().values()),
            f"{c.idle:.0%}",
        ]
        for c in cells
    ]
    head = ["machines", "c1 Mbit/s", "c2 Mbit/s", "c1 % of ideal", "c2 % of ideal", "idle"]
    return table(head, rows)
