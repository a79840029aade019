"""`make demo`: what isolation is, in half a minute.

Two tenants on one host share its 1 Gbit/s uplink. The victim has one TCP connection; after three
seconds the aggressor's two VMs begin, one with ten TCP connections, one with a UDP flood
that alone would fill the link. First without isolation, over a Linux bridge with the same link
(best effort, as a host has it by default), then over Levada, where each tenant has a guarantee.

Hosts, links and workloads are those of the experiments (`lab.switches`, `lab.workload`). Live
figures and the report's are what reached the receivers' devices, on the wire (`lab.wire`), which
is what guarantees count. Works without root where the system allows user namespaces: `lab/demo`
starts this by `lab.rootless`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import machine, plot, wire
from lab.bars import Bar, Bars
from lab.cell import worker_use
from lab.machine import CpuUse, cpu_use, sample_cpu
from lab.net import Failed, Lab, Received, require_root
from lab.programs import Missing, program
from lab.report import Claim, Report, at_least, at_most
from lab.rootless import rootless
from lab.stats import table
from lab.switches import Bridge, Levada, Switch
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, Flow, FlowResult, TcpFlow, flood

MBIT = 1_000_000
LINK_BPS = 1000 * MBIT
GUARANTEES_BPS = {"victim": 600 * MBIT, "aggressor": 300 * MBIT}
#: On h1 each tenant's VMs, on h2 those they send to, which has a faster link so as to be no
#: bottleneck.
TOPOLOGY = Topology(
    tenants=tuple(Tenant(name, guarantee_bps=bps) for name, bps in GUARANTEES_BPS.items()),
    endpoints=(
        Endpoint("victim1", "victim", "h1"),
        Endpoint("tcp1", "aggressor", "h1"),
        Endpoint("udp1", "aggressor", "h1"),
        Endpoint("victim2", "victim", "h2"),
        Endpoint("tcp2", "aggressor", "h2"),
        Endpoint("udp2", "aggressor", "h2"),
    ),
    hosts=(Host("h1", LINK_BPS), Host("h2", 2 * LINK_BPS, isolates=False)),
)

#: A phase, when in it the aggressor begins, and what then is left out: slow start.
PHASE_S = 12
JOIN_S = 3
SETTLE_S = 2.0
#: Left out at the end, where flows wind up.
TAIL_S = 0.5
#: How often counters are read and bars drawn, and over how many ticks a bar is a mean.
TICK_S = 0.2
SMOOTHED_TICKS = 4

#: The receivers, and what they receive.
RECEIVERS = {"victim2": wire.TCP, "tcp2": wire.TCP, "udp2": wire.UDP}
LOAD = {"victim": "victim, 1 TCP", "aggressor": "aggressor, 10 TCP + UDP flood"}
#: The flood's rate: alone it would fill the link.
FLOOD_BPS = 1.5 * LINK_BPS

#: Least part of its guarantee that each tenant gets with isolation.
KEPT_PERCENT = 99.0
#: Most that the victim gets of it without, for there to be anything to isolate.
BROKEN_PERCENT = 50.0

INTRODUCTION = f"""\
One host, one uplink of {LINK_BPS // MBIT} Mbit/s, two tenants. The victim sends over one TCP
connection. After {JOIN_S} s the aggressor joins: one VM with ten connections, one with a UDP flood.
First over a Linux bridge, which shares the link as it happens; then over Levada, with guarantees.
"""


@dataclass(frozen=True)
class Sample:
    """What the receivers' devices have received at one moment."""

    at_s: float
    received: Mapping[str, Received]


@dataclass
class Phase:
    """What was seen over one switch."""

    title: str
    start_s: float
    samples: list[Sample]
    #: The last sample before the aggressor's traffic had settled, from which means count.
    settled: Sample
    flows: dict[str, FlowResult]
    cpu: CpuUse
    #: Why the processor was the bottleneck and not the link, or None.
    bound: str | None

    def got_bps(self) -> dict[str, float]:
        """Each tenant's mean rate beside the other, in wire bits a second."""
        return rates(self.settled, self.samples[-1])

    def series(self) -> dict[str, tuple[list[float], list[float]]]:
        """Each tenant's rate over time, in seconds and Mbit/s."""
        pairs = list(itertools.pairwise(self.samples))
        times = [last.at_s - self.start_s for _, last in pairs]
        over_time = [rates(first, last) for first, last in pairs]
        return {name: (times, [r[name] / MBIT for r in over_time]) for name in GUARANTEES_BPS}


def play(switch: Switch, title: str, bars: Bars) -> Phase:
    """One phase, shown while it runs."""
    with switch.running():
        flows: list[Flow] = []
        _begin(switch, flows, TcpFlow("victim", "victim1", "victim2"), PHASE_S)
        start = time.monotonic()
        samples = [read(switch)]
        settled = cpu_first = shown_first = None
        while (elapsed := time.monotonic() - start) < PHASE_S - TAIL_S:
            if elapsed >= JOIN_S and len(flows) == 1:
                _begin(switch, flows, TcpFlow("ten", "tcp1", "tcp2", 10), PHASE_S - JOIN_S)
                udp = flood("flood", "udp1", "udp2", FLOOD_BPS, offload=True)
                _begin(switch, flows, udp, PHASE_S - JOIN_S)
            if elapsed >= JOIN_S + SETTLE_S and settled is None:
                settled = samples[-1]
                cpu_first, shown_first = sample_cpu(switch.processes), switch.sample()
            time.sleep(TICK_S)
            samples.append(read(switch))
            _draw(bars, title, elapsed, samples, aggressor=len(flows) > 1)
        cpu_last, shown_last = sample_cpu(switch.processes), switch.sample()
        bars.settle()
        assert settled is not None
        assert cpu_first is not None
        use = cpu_use(cpu_first, cpu_last)
        worker = worker_use(shown_first, shown_last) if shown_first and shown_last else None
        bound = use.bound(worker.busy if worker else None)
        results = {flow.name: flow.end() for flow in flows}
        return Phase(title, start, samples, settled, results, use, bound)


def _begin(switch: Switch, flows: list[Flow], flow: Flow, seconds: int) -> None:
    src, dst = switch.guests[flow.src], switch.guests[flow.dst]
    flow.begin(src, dst, FIRST_PORT + len(flows), seconds)
    flows.append(flow)


def read(switch: Switch) -> Sample:
    """The receivers' counters now."""
    received = {name: switch.guests[name].namespace.received(name) for name in RECEIVERS}
    return Sample(time.monotonic(), received)


def rates(first: Sample, last: Sample) -> dict[str, float]:
    """What each tenant's receivers got between two samples, in wire bits a second."""
    got = dict.fromkeys(GUARANTEES_BPS, 0.0)
    for endpoint in TOPOLOGY.endpoints:
        if endpoint.name in RECEIVERS:
            received = last.received[endpoint.name].since(first.received[endpoint.name])
            bits = wire.wire_bits(received, RECEIVERS[endpoint.name])
            got[endpoint.tenant] += bits / (last.at_s - first.at_s)
    return got


def _draw(
    bars: Bars, title: str, elapsed: float, samples: Sequence[Sample], *, aggressor: bool
) -> None:
    # Over the last few ticks, so that figures can be read.
    got = rates(samples[max(0, len(samples) - 1 - SMOOTHED_TICKS)], samples[-1])
    wants = {"victim": True, "aggressor": aggressor}
    rows = [
        Bar(name, got[name] / MBIT, due / MBIT, wants[name]) for name, due in GUARANTEES_BPS.items()
    ]
    doing = "10 TCP + UDP flood" if aggressor else "silent"
    bars.draw(f"{title}, {elapsed:4.1f} s: victim 1 TCP, aggressor {doing}", rows)


# --- the report ---------------------------------------------------------------------------


def report_of(without: Phase, isolated: Phase) -> Report:
    """Promised against got, in both phases."""
    report = Report("demo", quick=False)
    report.machine = machine.describe(["iperf3", "ip", "tc", str(program())])
    report.parameters = {
        "link_bps": LINK_BPS,
        "guarantees_bps": GUARANTEES_BPS,
        "flood_bps": FLOOD_BPS,
        "window_s": PHASE_S - JOIN_S - SETTLE_S - TAIL_S,
    }
    phases = (without, isolated)
    report.cells = [_row(phase) for phase in phases]
    got = [phase.got_bps() for phase in phases]
    report.tables = [
        table(
            ["Mbit/s on the wire", "promised", *(phase.title for phase in phases)],
            [
                [LOAD[name], *(f"{bps / MBIT:.0f}" for bps in (due, *(g[name] for g in got)))]
                for name, due in GUARANTEES_BPS.items()
            ],
        )
    ]
    for phase in phases:
        if why := phase.bound or phase.cpu.disturbed():
            report.tables.append(
                f"Note: {phase.title}, {why}. Figures taken on a busy machine say little"
                " about the link: close other programs and run it again."
            )
    report.claims = claims(*phases)
    return report


def claims(without: Phase, isolated: Phase) -> list[Claim]:
    """The promise is kept with isolation, and it is isolation that keeps it. A phase bound by
    the CPU shows nothing."""
    made = []
    for tenant in GUARANTEES_BPS:
        kept = None if isolated.bound else _kept_percent(isolated, tenant)
        name = f"{tenant}'s part of its guarantee with isolation"
        made.append(at_least(name, kept, "%", KEPT_PERCENT))
    broken = None if without.bound else _kept_percent(without, "victim")
    name = "victim's part of it without isolation"
    made.append(at_most(name, broken, "%", BROKEN_PERCENT))
    total = None if isolated.bound else 100 * sum(isolated.got_bps().values()) / LINK_BPS
    made.append(at_least("of the link used with isolation", total, "%", KEPT_PERCENT))
    return made


def _kept_percent(phase: Phase, tenant: str) -> float:
    return 100 * phase.got_bps()[tenant] / GUARANTEES_BPS[tenant]


def _row(phase: Phase) -> dict[str, object]:
    return {
        "labels": {"phase": phase.title},
        "got_bps": phase.got_bps(),
        "series": phase.series(),
        "flows": {name: asdict(result) for name, result in phase.flows.items()},
        "cpu": asdict(phase.cpu),
        "bound": phase.bound,
        "disturbed": phase.cpu.disturbed(),
        "valid": phase.bound is None,
    }


def main() -> int:
    """Plays both phases, prints and writes the report. Exit status as of `lab.runner`."""
    parser = argparse.ArgumentParser(prog="lab/demo", description="Isolation, in half a minute.")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder of the report")
    out: Path = parser.parse_args().out
    require_root()
    try:
        return _show(out)
    except (Failed, Missing) as error:
        print(f"lab/demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nlab/demo: interrupted; everything was removed", file=sys.stderr)
        return 130


def _show(out: Path) -> int:
    program()
    print(INTRODUCTION, flush=True)
    bars = Bars(LINK_BPS / MBIT, "Mbit/s")
    # Root of a user namespace may not touch what is the machine's.
    with Lab(machine_settings=not rootless()) as lab:
        without = play(Bridge(lab, TOPOLOGY), "without isolation", bars)
        isolated = play(Levada(lab, TOPOLOGY), "with Levada", bars)
    report = report_of(without, isolated)
    path = report.write(out)
    plot.timelines(
        out / "demo",
        "Two tenants on one host, a link of 1 Gbit/s",
        "Mbit/s on the wire",
        {phase.title: phase.series() for phase in (without, isolated)},
        {name: due / MBIT for name, due in GUARANTEES_BPS.items()},
    )
    _give_to_caller(out)
    print(report.text())
    print(f"\nraw rows: {path}; plot: {out / 'demo.svg'} and .png")
    return 0 if report.holds() else 1


def _give_to_caller(out: Path) -> None:
    """What sudo let us write belongs to who called it."""
    if "SUDO_UID" in os.environ and not rootless():
        uid, gid = int(os.environ["SUDO_UID"]), int(os.environ.get("SUDO_GID", "-1"))
        for path in (out, *out.iterdir()):
            os.chown(path, uid, gid)


if __name__ == "__main__":
    sys.exit(main())
