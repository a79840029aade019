"""Connections a second that an Open vSwitch sets up under a controller.

One bridge (userspace datapath), one service, two servers; SYNs of connections that are all
different. `levada openflow` as published (`reactive`) and with the switch choosing (`hash`), beside
a controller of the same kind written for os-ken in Python, one after the other in one run. Each
gets a switch of its own, started anew. Then a stand-in for a switch asks the same controllers,
which shows what they could do were the switch not the limit. In the same runs with Open vSwitch,
the processor time of switch and controller is counted: what the switch takes for a set-up bounds
its rate under any controller, and what a controller takes depends on no other program.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import machine
from lab.machine import cpu_use, sample_cpu
from lab.net import Lab, Process, missing_tools
from lab.programs import Missing, program
from lab.report import Claim, Report, at_least, at_most
from lab.setups import End, SetUps, measure, syns
from lab.stats import mean, table
from lab.switches.ovs_balanced import OSKEN, PORT, SERVICE, SERVICE_MAC, OvsBalanced
from lab.topology import Endpoint, Host, Tenant, Topology

SUMMARY = "flow set-ups a second over OpenFlow, beside a Python controller"

WAYS = ("reactive", "os-ken", "hash")
SERVERS = ("web1", "web2")
#: Between what is told to the controller and what is measured.
WARM_S = 1.0
#: How many times the Python controller's rate.
LEAST_TIMES = 10
MICRO = 1_000_000
GBIT = 1_000_000_000


@dataclass(frozen=True)
class Plan:
    """How often, and how long a run."""

    runs: int
    seconds: float


FULL = Plan(runs=10, seconds=5.0)
QUICK = Plan(runs=3, seconds=3.0)


@dataclass
class Cell:
    """One run."""

    way: str
    run: int
    made: SetUps
    #: With a stand-in for the switch; none where the switch alone decides.
    alone: SetUps | None
    #: Frames that came to the controller, and connections that it set up; of ours only.
    packet_ins: int | None
    set_up: int | None
    #: Processor time a set-up, in microseconds.
    switch_us: float
    controller_us: float
    strangers: float
    #: Said, not judged: the ways of a round are disturbed alike.
    disturbed: str | None

    def as_row(self) -> dict[str, Any]:
        """For result.json."""
        labels = {"way": self.way, "run": self.run}
        row = {**asdict(self), "labels": labels, "per_s": self.made.per_s}
        return {**row, "valid": True, "bound": None}


def topology() -> Topology:
    """One host: a client and two servers."""
    ends = tuple(Endpoint(name, "red", "h0") for name in ("client", *SERVERS))
    return Topology((Tenant("red"),), ends, (Host("h0", GBIT),))


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """All ways, one after the other, several times."""
    missing = missing_tools(["ovs-vswitchd", "osken-manager"])
    if missing:
        raise Missing(f"openflow-rate needs {', '.join(missing)}: tools/setup balance")
    plan = QUICK if quick else FULL
    report = Report("openflow-rate", quick)
    report.machine = machine.describe(["ip", "ovs-vswitchd", OSKEN, str(program())])
    report.parameters = asdict(plan)
    cells = []
    for number in range(plan.runs):
        for way in WAYS:
            cells.append(_play(lab, way, number, plan.seconds))
            _say(cells[-1])
    report.cells = [cell.as_row() for cell in cells]
    report.tables = [shown(cells)]
    report.claims = claims(cells)
    return report


def _play(lab: Lab, way: str, number: int, seconds: float) -> Cell:
    switch = OvsBalanced(lab, topology(), SERVERS, way)
    with switch.running():
        ends = [End(switch.guests[name].namespace.name, name) for name in ("client", *SERVERS)]
        for name in SERVERS:
            # Nobody is to answer, and nobody to be asked.
            switch.guests[name].namespace.ip(f"addr flush dev {name}")
        client = switch.topology.endpoints[0]
        all_syns = syns(switch.topology.mac(client), SERVICE_MAC, SERVICE, PORT, "10.1.1")
        measure(ends[0], ends[1:], all_syns, WARM_S)
        before = _counts(switch)
        start = sample_cpu(switch.processes)
        made = measure(ends[0], ends[1:], all_syns, seconds)
        use = cpu_use(start, sample_cpu(switch.processes))
        took = [_cost(use.cores, one, made) for one in (switch.processes[0], switch.controller)]
        after = _counts(switch)
        alone = None if way == "hash" else _alone(switch, seconds)
    came = [None if a is None or b is None else a - b for a, b in zip(after, before, strict=True)]
    return Cell(
        way=way,
        run=number,
        made=made,
        alone=alone,
        packet_ins=came[0],
        set_up=came[1],
        switch_us=took[0],
        controller_us=took[1],
        strangers=use.strangers,
        disturbed=use.disturbed(),
    )


def _cost(cores: dict[str, float], process: Process | None, made: SetUps) -> float:
    """Microseconds of a processor that a process took for each set-up."""
    used = cores[process.label] if process else 0.0
    return used * made.seconds * MICRO / max(1, made.done)


def _alone(switch: OvsBalanced, seconds: float) -> SetUps:
    client = switch.topology.mac(switch.topology.endpoints[0])
    all_syns = syns(client, SERVICE_MAC, SERVICE, PORT, "10.1.2")
    stand_in = switch.stand_in()
    try:
        stand_in.settle(WARM_S)
        return stand_in.measure(all_syns, seconds)
    finally:
        stand_in.close()


def _counts(switch: OvsBalanced) -> tuple[int | None, int | None]:
    if switch.mode == "os-ken":
        return None, None
    shown = switch.shown()["switches"][0]
    return shown["packet_ins"], shown["set_up"]


def claims(cells: list[Cell]) -> list[Claim]:
    """A round has each way once, one after the other, on a machine as it then is: the median of
    the rounds' ratios is judged."""

    def times(rate: Callable[[Cell], float]) -> float | None:
        by_round: dict[int, dict[str, float]] = {}
        for cell in cells:
            by_round.setdefault(cell.run, {})[cell.way] = rate(cell)
        rounds = by_round.values()
        ratios = [one["reactive"] / one["os-ken"] for one in rounds if one.get("os-ken")]
        return statistics.median(ratios) if ratios else None

    whole = times(lambda cell: cell.made.per_s)
    thrifty = times(lambda cell: 1 / cell.controller_us if cell.controller_us else 0.0)
    alone = times(lambda cell: cell.alone.per_s if cell.alone else 0.0)
    ours = [cell for cell in cells if cell.way == "hash"]
    asked = [cell.packet_ins for cell in ours if cell.packet_ins is not None]
    done = [cell for cell in ours if cell.made.done > 0]
    return [
        at_least("reactive: set-ups a second", whole, "x os-ken", LEAST_TIMES),
        at_least("reactive: controller alone", alone, "x os-ken", LEAST_TIMES),
        at_least("reactive: set-ups a second of its own", thrifty, "x os-ken", LEAST_TIMES),
        at_most("hash: frames to the controller", max(asked, default=None), "frames", 0),
        at_least("hash: runs that set up connections", len(done), "runs", len(ours)),
    ]


def shown(cells: list[Cell]) -> str:
    """A line a way."""
    rows = []
    for way in WAYS:
        group = [cell for cell in cells if cell.way == way]
        rate = mean([cell.made.per_s for cell in group])
        alone = [cell.alone.per_s for cell in group if cell.alone]
        lost = sum(cell.made.lost for cell in group)
        asked = [cell.packet_ins for cell in group if cell.packet_ins is not None]
        done = sum(cell.made.done for cell in group)
        each = f"{sum(asked) / max(1, done):.2f}" if asked else "-"
        only = format(mean(alone), ".0f") if alone else "-"
        took = [
            "-" if not cost else f"{statistics.median(cost):.0f}"
            for cost in ([c.switch_us for c in group], [c.controller_us for c in group])
        ]
        rows.append([way, format(rate, ".0f"), only, *took, str(done), str(lost), each])
    head = ["controller", "set-ups/s", "controller alone", "switch us", "controller us"]
    return table([*head, "connections", "lost", "packet-ins each"], rows)


def _say(cell: Cell) -> None:
    text = f"  {cell.way} {cell.run}: {cell.made.per_s:.0f} set-ups/s, {cell.made.lost} lost"
    text += f", switch {cell.switch_us:.0f} us, controller {cell.controller_us:.0f} us each"
    text += f", alone {cell.alone.per_s:.0f}/s" if cell.alone else ""
    why = cell.disturbed
    print(f"{text}; {why}" if why else text, file=sys.stderr, flush=True)
