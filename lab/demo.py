"""`make demo`: what isolation is, an old guest among new ones, two links, and servers of which one
is slow, or is killed, in a minute and a half.

Five acts, each played twice, the fifth in two parts. In the first two a victim has one TCP
connection, and after two seconds an aggressor joins, whose traffic alone would fill the link.

    from the same host   the two share their host's uplink. First over a Linux bridge (best
                         effort, as a host has it by default), then over Levada.
    from another host    the two receive on one host, and a UDP flood that does not react to
                         drops comes from a third. Levada isolates on all hosts: first each alone,
                         so that the network in between drops what the receiver's host would
                         have kept, then with their congestion agents.
    an old guest         beside ECN traffic on a network that marks: as it is, and with the switch
                         speaking ECN for it (`lab.old_guest`).
    two links            one connection over both, and a cable pulled: plain round robin, and with
                         numbers (`lab.two_links`).
    three servers        one is slow: behind a service that takes them in turn, and that goes by
                         what each has in flight (`lab.slow_server`); one is killed: for a client
                         that takes them in turn, and behind a service (`lab.lost_server`).

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import lost_server, machine, old_guest, plot, slow_server, two_links, wire
from lab.bars import Bar, Bars
from lab.cell import worker_use
from lab.machine import CpuUse, cpu_use, sample_cpu
from lab.net import Failed, Lab, Received, require_root
from lab.programs import Missing, program, require_fresh
from lab.report import Claim, Report, at_least, at_most
from lab.rootless import rootless
from lab.stats import table
from lab.switches import Bridge, Levada, Switch
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, Flow, FlowResult, TcpFlow, flood

MBIT = 1_000_000
LINK_BPS = 1000 * MBIT
GUARANTEES_BPS = {"victim": 600 * MBIT, "aggressor": 300 * MBIT}
TENANTS = tuple(Tenant(name, guarantee_bps=bps) for name, bps in GUARANTEES_BPS.items())
#: The flood's rate: alone it would fill the link.
FLOOD_BPS = 1.5 * LINK_BPS

#: A phase, when in it the aggressor begins, and what then is left out: slow start.
PHASE_S = 9
JOIN_S = 2
SETTLE_S = 2.0
#: Left out at the end, where flows wind up.
TAIL_S = 0.5
#: How often counters are read and bars drawn, and over how many ticks a bar is a mean.
TICK_S = 0.2
SMOOTHED_TICKS = 4


@dataclass(frozen=True)
class Way:
    """What an act is played over."""

    title: str
    switch: Callable[[Lab, Topology], Switch]


@dataclass(frozen=True)
class Act:
    """Who does what to whom, played first so that it harms and then so that it does not."""

    #: Of its plot's file.
    name: str
    title: str
    introduction: str
    topology: Topology
    #: The receivers, and what they receive.
    receivers: Mapping[str, wire.Protocol]
    #: What each tenant does, in words.
    does: Mapping[str, str]
    #: The victim's sender and receiver.
    victim: tuple[str, str]
    #: The aggressor's flows: name, sender, receiver, and connections; 0 is the flood.
    aggression: tuple[tuple[str, str, str, int], ...]
    harmed: Way
    kept: Way
    #: Least part of its guarantee that each tenant gets in the second phase, and least part of the
    #: link that is used.
    kept_percent: float
    #: Most that the victim gets of it in the first, for there to be anything to show.
    harmed_percent: float


#: On h1 each tenant's VMs, on h2 those they send to, which has a faster link so as to be no
#: bottleneck.
SAME_HOST = Act(
    name="same-host",
    title="A flood from the same host",
    introduction=f"""\
One host, one uplink of {LINK_BPS // MBIT} Mbit/s, two tenants. The victim sends over one TCP
connection. After {JOIN_S} s the aggressor joins: one VM with ten connections, one with a UDP flood.
First over a Linux bridge, which shares the link as it happens; then over Levada, with guarantees.
""",
    topology=Topology(
        tenants=TENANTS,
        endpoints=(
            Endpoint("victim1", "victim", "h1"),
            Endpoint("tcp1", "aggressor", "h1"),
            Endpoint("udp1", "aggressor", "h1"),
            Endpoint("victim2", "victim", "h2"),
            Endpoint("tcp2", "aggressor", "h2"),
            Endpoint("udp2", "aggressor", "h2"),
        ),
        hosts=(Host("h1", LINK_BPS), Host("h2", 2 * LINK_BPS, isolates=False)),
    ),
    receivers={"victim2": wire.TCP, "tcp2": wire.TCP, "udp2": wire.UDP},
    does={"victim": "1 TCP", "aggressor": "10 TCP + UDP flood"},
    victim=("victim1", "victim2"),
    aggression=(("ten", "tcp1", "tcp2", 10), ("flood", "udp1", "udp2", 0)),
    harmed=Way("without isolation", Bridge),
    kept=Way("with Levada", Levada),
    kept_percent=99.0,
    harmed_percent=50.0,
)

#: Both tenants receive on h1; the network is a switch whose port toward h1 drops what its queue
#: cannot hold. All hosts are switches of one daemon, and hosts of a cluster for their agents.
OTHER_HOST = Act(
    name="other-host",
    title="A blast from another host",
    introduction=f"""\
Three hosts, links of {LINK_BPS // MBIT} Mbit/s, Levada on all. The victim receives over one TCP
connection from the second host. After {JOIN_S} s a UDP flood from the third joins, toward the
victim's neighbour on the same host. First each host does what it can alone: the network drops
the victim's frames before its host sees them. Then with agents, which have the flood held at its
source.
""",
    topology=Topology(
        tenants=TENANTS,
        endpoints=(
            Endpoint("victim1", "victim", "h1"),
            Endpoint("flooded1", "aggressor", "h1"),
            Endpoint("victim2", "victim", "h2"),
            Endpoint("flood3", "aggressor", "h3"),
        ),
        hosts=tuple(Host(name, LINK_BPS) for name in ("h1", "h2", "h3")),
    ),
    receivers={"victim1": wire.TCP, "flooded1": wire.UDP},
    does={"victim": "1 TCP", "aggressor": "UDP flood"},
    victim=("victim2", "victim1"),
    aggression=(("flood", "flood3", "flooded1", 0),),
    harmed=Way("without agents", Levada),
    kept=Way("with agents", lambda lab, shape: Levada(lab, shape, controller="rate")),
    kept_percent=95.0,
    harmed_percent=50.0,
)
ACTS = (SAME_HOST, OTHER_HOST)


@dataclass(frozen=True)
class Sample:
    """What the receivers' devices have received at one moment."""

    at_s: float
    received: Mapping[str, Received]


@dataclass
class Phase:
    """What was seen of an act over one switch."""

    act: Act
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
        return rates(self.act, self.settled, self.samples[-1])

    def series(self) -> dict[str, tuple[list[float], list[float]]]:
        """Each tenant's rate over time, in seconds and Mbit/s."""
        pairs = list(itertools.pairwise(self.samples))
        times = [last.at_s - self.start_s for _, last in pairs]
        over_time = [rates(self.act, first, last) for first, last in pairs]
        return {name: (times, [r[name] / MBIT for r in over_time]) for name in GUARANTEES_BPS}


def play(lab: Lab, act: Act, way: Way, bars: Bars) -> Phase:
    """One phase, shown while it runs."""
    switch = way.switch(lab, act.topology)
    with switch.running():
        switch.introduce()
        flows: list[Flow] = []
        _begin(switch, flows, TcpFlow("victim", *act.victim), PHASE_S)
        start = time.monotonic()
        samples = [read(switch, act)]
        settled = cpu_first = shown_first = None
        while (elapsed := time.monotonic() - start) < PHASE_S - TAIL_S:
            if elapsed >= JOIN_S and len(flows) == 1:
                for flow in _aggression(act):
                    _begin(switch, flows, flow, PHASE_S - JOIN_S)
            if elapsed >= JOIN_S + SETTLE_S and settled is None:
                settled = samples[-1]
                cpu_first, shown_first = sample_cpu(switch.processes), switch.sample()
            time.sleep(TICK_S)
            samples.append(read(switch, act))
            _draw(bars, act, way, elapsed, samples, aggressor=len(flows) > 1)
        cpu_last, shown_last = sample_cpu(switch.processes), switch.sample()
        bars.settle()
        assert settled is not None
        assert cpu_first is not None
        use = cpu_use(cpu_first, cpu_last)
        worker = worker_use(shown_first, shown_last) if shown_first and shown_last else None
        bound = use.bound(worker.busy if worker else None)
        results = {flow.name: flow.end() for flow in flows}
        return Phase(act, way.title, start, samples, settled, results, use, bound)


def _aggression(act: Act) -> list[Flow]:
    return [
        TcpFlow(name, src, dst, connections)
        if connections
        else flood(name, src, dst, FLOOD_BPS, offload=True)
        for name, src, dst, connections in act.aggression
    ]


def _begin(switch: Switch, flows: list[Flow], flow: Flow, seconds: int) -> None:
    src, dst = switch.guests[flow.src], switch.guests[flow.dst]
    flow.begin(src, dst, FIRST_PORT + len(flows), seconds)
    flows.append(flow)


def read(switch: Switch, act: Act) -> Sample:
    """The receivers' counters now."""
    received = {name: switch.guests[name].namespace.received(name) for name in act.receivers}
    return Sample(time.monotonic(), received)


def rates(act: Act, first: Sample, last: Sample) -> dict[str, float]:
    """What each tenant's receivers got between two samples, in wire bits a second."""
    got = dict.fromkeys(GUARANTEES_BPS, 0.0)
    for endpoint in act.topology.endpoints:
        if endpoint.name in act.receivers:
            received = last.received[endpoint.name].since(first.received[endpoint.name])
            bits = wire.wire_bits(received, act.receivers[endpoint.name])
            got[endpoint.tenant] += bits / (last.at_s - first.at_s)
    return got


def _draw(
    bars: Bars, act: Act, way: Way, elapsed: float, samples: Sequence[Sample], *, aggressor: bool
) -> None:
    # Over the last few ticks, so that figures can be read.
    got = rates(act, samples[max(0, len(samples) - 1 - SMOOTHED_TICKS)], samples[-1])
    wants = {"victim": True, "aggressor": aggressor}
    rows = [
        Bar(name, got[name] / MBIT, due / MBIT, wants[name]) for name, due in GUARANTEES_BPS.items()
    ]
    doing = act.does["aggressor"] if aggressor else "silent"
    victim = act.does["victim"]
    bars.draw(f"{way.title}, {elapsed:4.1f} s: victim {victim}, aggressor {doing}", rows)


# --- the report ---------------------------------------------------------------------------


#: The two phases of an act.
Played = tuple[Phase, Phase]


def report_of(acts: Sequence[Played]) -> Report:
    """Promised against got, in all phases."""
    report = Report("demo", quick=False)
    report.machine = machine.describe(["iperf3", "ip", "tc", str(program())])
    report.parameters = {
        "link_bps": LINK_BPS,
        "guarantees_bps": GUARANTEES_BPS,
        "flood_bps": FLOOD_BPS,
        "window_s": PHASE_S - JOIN_S - SETTLE_S - TAIL_S,
        "fabric_queue_bytes": OTHER_HOST.topology.fabric_queue_bytes,
    }
    for phases in acts:
        report.cells += [_row(phase) for phase in phases]
        report.tables.append(_table(phases))
        for phase in phases:
            if why := phase.bound or phase.cpu.disturbed():
                report.tables.append(
                    f"Note: {phase.title}, {why}. Figures taken on a busy machine say little"
                    " about the link: close other programs and run it again."
                )
        report.claims += claims(*phases)
    return report


def _table(phases: Played) -> str:
    act = phases[0].act
    got = [phase.got_bps() for phase in phases]
    rows = [
        [
            f"{name}, {act.does[name]}",
            *(f"{bps / MBIT:.0f}" for bps in (due, *(g[name] for g in got))),
        ]
        for name, due in GUARANTEES_BPS.items()
    ]
    head = ["Mbit/s on the wire", "promised", *(phase.title for phase in phases)]
    return f"{act.title}\n{table(head, rows)}"


def claims(harmed: Phase, kept: Phase) -> list[Claim]:
    """The promise is kept in the second phase, and it is what differs that keeps it. A phase bound
    by the CPU shows nothing."""
    act, made = kept.act, []
    for tenant in GUARANTEES_BPS:
        part = None if kept.bound else _part_percent(kept, tenant)
        name = f"{act.name}: {tenant}'s part of its guarantee {act.kept.title}"
        made.append(at_least(name, part, "%", act.kept_percent))
    part = None if harmed.bound else _part_percent(harmed, "victim")
    name = f"{act.name}: victim's part of it {act.harmed.title}"
    made.append(at_most(name, part, "%", act.harmed_percent))
    total = None if kept.bound else 100 * sum(kept.got_bps().values()) / LINK_BPS
    name = f"{act.name}: of the link used {act.kept.title}"
    made.append(at_least(name, total, "%", act.kept_percent))
    return made


def _part_percent(phase: Phase, tenant: str) -> float:
    return 100 * phase.got_bps()[tenant] / GUARANTEES_BPS[tenant]


def _row(phase: Phase) -> dict[str, object]:
    return {
        "labels": {"act": phase.act.name, "phase": phase.title},
        "got_bps": phase.got_bps(),
        "series": phase.series(),
        "flows": {name: asdict(result) for name, result in phase.flows.items()},
        "cpu": asdict(phase.cpu),
        "bound": phase.bound,
        "disturbed": phase.cpu.disturbed(),
        "valid": phase.bound is None,
    }


def main() -> int:
    """Plays all acts, prints and writes the report. Exit status as of `lab.runner`."""
    parser = argparse.ArgumentParser(
        prog="lab/demo",
        description="Isolation, an old guest, two links, a slow server and a killed one.",
    )
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
    require_fresh()
    bars = Bars(LINK_BPS / MBIT, "Mbit/s")
    played = []
    # Root of a user namespace may not touch what is the machine's.
    with Lab(machine_settings=not rootless()) as lab:
        for number, act in enumerate(ACTS, start=1):
            print(f"{number}. {act.title}\n{act.introduction}", flush=True)
            played.append((play(lab, act, act.harmed, bars), play(lab, act, act.kept, bars)))
        old = _play_old_guest(lab, len(ACTS) + 1)
        links = _play_two_links(lab, len(ACTS) + 2)
        slow = _play_slow_server(lab, len(ACTS) + 3)
        lost = _play_lost_server(lab)
    report = report_of(played)
    report.cells += [
        *old_guest.cells(*old),
        *two_links.cells(*links),
        *slow_server.cells(slow),
        *lost_server.cells(*lost),
    ]
    report.tables += [old_guest.text(*old), two_links.text(*links)]
    report.tables += [slow_server.text(slow), lost_server.text(*lost)]
    report.claims += [
        *old_guest.claims(*old),
        *two_links.claims(*links),
        *slow_server.claims(slow),
        *lost_server.claims(*lost),
    ]
    path = report.write(out)
    fair = {"old": old_guest.FAIR_PERCENT, "new": 100 - old_guest.FAIR_PERCENT}
    plot.timelines(
        out / "old-guest",
        f"{old_guest.TITLE}, a link of {old_guest.LINK_BPS // MBIT} Mbit/s",
        "Mbit/s on the wire",
        {f"vcc {phase.vcc}": phase.series() for phase in old},
        {name: percent * old_guest.LINK_BPS / 100 / MBIT for name, percent in fair.items()},
    )
    plot.timelines(
        out / "two-links",
        f"{two_links.TITLE} of {two_links.LINK_BPS // MBIT} Mbit/s, of which one is pulled",
        "Mbit/s on the wire",
        {two_links.WAYS[phase.order]: phase.series() for phase in links},
        {"connection": two_links.LINKS * two_links.LINK_BPS / MBIT},
    )
    plot.timelines(
        out / "slow-server",
        f"{slow_server.TITLE}, {lost_server.PER_S} requests a second",
        "requests answered a second",
        {phase.policy: phase.series for phase in slow},
        {name: lost_server.PER_S / len(lost_server.SERVERS) for name in lost_server.SERVERS},
    )
    plot.timelines(
        out / "lost-server",
        f"{lost_server.TITLE}, {lost_server.PER_S} requests a second",
        "requests answered a second",
        {phase.title: phase.series for phase in lost},
        {name: lost_server.PER_S / len(lost_server.SERVERS) for name in lost_server.SERVERS},
    )
    for phases in played:
        plot.timelines(
            out / phases[0].act.name,
            f"{phases[0].act.title}, a link of 1 Gbit/s",
            "Mbit/s on the wire",
            {phase.title: phase.series() for phase in phases},
            {name: due / MBIT for name, due in GUARANTEES_BPS.items()},
        )
    _give_to_caller(out)
    print(report.text())
    names = [*(act.name for act in ACTS), "old-guest", "two-links", "slow-server", "lost-server"]
    plots = ", ".join(f"{out / name}.svg and .png" for name in names)
    print(f"\nraw rows: {path}; plots: {plots}")
    return 0 if report.holds() else 1


def _play_old_guest(lab: Lab, number: int) -> tuple[old_guest.Phase, old_guest.Phase]:
    print(f"{number}. {old_guest.TITLE}\n{old_guest.INTRODUCTION}", flush=True)
    bars = Bars(old_guest.LINK_BPS / MBIT, "Mbit/s")
    return old_guest.play(lab, "off", bars), old_guest.play(lab, "echo", bars)


def _play_two_links(lab: Lab, number: int) -> tuple[two_links.Phase, two_links.Phase]:
    print(f"{number}. {two_links.TITLE}\n{two_links.INTRODUCTION}", flush=True)
    bars = Bars(two_links.LINKS * two_links.LINK_BPS / MBIT, "Mbit/s")
    return two_links.play(lab, "off", bars), two_links.play(lab, "auto", bars)


def _play_slow_server(lab: Lab, number: int) -> tuple[slow_server.Phase, ...]:
    print(f"{number}. {slow_server.TITLE}\n{slow_server.INTRODUCTION}", flush=True)
    return slow_server.play(lab, Bars(lost_server.PER_S, "requests/s"))


def _play_lost_server(lab: Lab) -> tuple[lost_server.Phase, lost_server.Phase]:
    """The second half of that act."""
    print(f"{lost_server.TITLE}\n{lost_server.INTRODUCTION}", flush=True)
    bars = Bars(lost_server.PER_S, "requests/s")
    ways = (lost_server.DIRECT, lost_server.SERVED)
    direct, served = (lost_server.play(lab, way, bars) for way in ways)
    return direct, served


def _give_to_caller(out: Path) -> None:
    """What sudo let us write belongs to who called it."""
    if "SUDO_UID" in os.environ and not rootless():
        uid, gid = int(os.environ["SUDO_UID"]), int(os.environ.get("SUDO_GID", "-1"))
        for path in (out, *out.iterdir()):
            os.chown(path, uid, gid)


if __name__ == "__main__":
    sys.exit(main())
