"""Gatekeeper's figures 6 and 7 (Rodrigues et al., 2011) on live TCP and UDP: a shuffle job beside a
neighbour that takes what it can get. The testbed, the cells, and how they are judged.

26 hosts have two endpoints each, one of tenant `job` and one of tenant `net`. The job's endpoints
play a MapReduce job (`lab.shuffle`), generated from a seed or, where $SHUFFLE_TRACE names one, from
a trace of MRemu. Those of `net` form 13 pairs: the first 13 hosts' send to the others', TCP (figure
6) or UDP at more than the link's rate (figure 7). Each host promises the job 25, 50 or 75 % of its
access link, in both directions, and `net` the rest.

The published links had 1 Gbit/s, which a small machine does not carry 26 times. Links and the
job's bytes are scaled by one factor, which leaves the job's times as they are; then the whole job,
bytes and times, is made smaller by another, which leaves rates as they are. Every frame is one of
the wire's: endpoints hand over no offloaded ones.

A cell is one playing of the job, which is given up after a bounded time. Peers: best effort (a
Linux bridge), rigid limits at the guarantees, HTB that lends (bridge, IFB for ingress), and Levada.
The job is also played with nobody beside it, at the link's rate and `at the rate` of each
guarantee: over best effort on links of that rate.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab import machine, plot, wire
from lab.cell import ATTEMPTS, Worker, disturbance, worker_use
from lab.machine import cpu_use, sample_cpu
from lab.net import Failed, Lab, missing_tools
from lab.peers import TITLES
from lab.programs import Missing, program
from lab.report import Claim, Report, at_least, at_most
from lab.shuffle import mremu
from lab.shuffle.generate import Shape, generate
from lab.shuffle.job import Job, floor
from lab.shuffle.mremu import BadFile
from lab.stats import Mean, mean, table
from lab.switches import Bridge, Htb, Levada, Rigid, Switch
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, Flow, TcpFlow, flood

MBIT = 1_000_000
HOSTS = 26
PAIRS = HOSTS // 2
#: What 52 endpoints' links can have on two cores, every frame one of the wire's.
LINK_BPS = 30 * MBIT
#: What the job's bytes are multiplied by for links of that rate instead of the published.
LINK_FACTOR = LINK_BPS / (1000 * MBIT)
#: What the whole job, bytes and times, is made smaller by.
JOB_FACTOR = 0.25
#: What a port of the network between holds: 17 ms at that rate. A queue scaled like the link
#: would hold five frames.
FABRIC_QUEUE_BYTES = 64 << 10
SEED = 6
#: A trace to play instead of the job of that seed.
TRACE_VARIABLE = "SHUFFLE_TRACE"
#: A job is given up after so many times its floor at the least guarantee: who keeps that
#: guarantee needs half of it.
PATIENCE = 3
#: Neighbours have so long to fill the links before the job begins.
LEAD_S = 2.0
#: Neighbours would stop by themselves so long after the job was given up.
TAIL_S = 30

#: What may be given up of an access link; what of the rest is promised to the job (as published).
GIVEN_UP_PERCENT = 2
GUARANTEES_PERCENT = (25, 50, 75)
#: What Levada and HTB hold back on ingress while tenants contend.
HEADROOM_PERCENT = 1.5
#: The flood's rate over the link's: it alone would fill the link and more.
FLOOD = 1.5
CONNECTIONS = 10
#: ethtool(8): an endpoint that neither hands over nor accepts more than the wire's frames.
OFFLOADS_OFF = ("tso", "off", "gso", "off", "gro", "off")

#: Most that the job may take beside its neighbour, over what it takes alone at that rate.
OVER_ALONE = 1.05
#: Most over what it takes under rigid limits: "never worse", and the last per cent is the
#: difference that two means of the same thing have.
OVER_RIGID = 1.01
#: Least that best effort makes it longer, or nothing was tested (published: 1.7 or 1.8).
HARM = 1.3


@dataclass(frozen=True)
class Figure:
    """One of the two figures."""

    name: str
    title: str
    #: What each pair of `net` does.
    neighbour: Callable[[str, str, str], Flow]
    protocol: wire.Protocol
    #: The guarantee at which the job is compared with itself alone, in percent; None: not.
    alone_percent: int | None


def connections(name: str, src: str, dst: str) -> Flow:
    """Ten TCP connections."""
    return TcpFlow(name, src, dst, CONNECTIONS)


def udp(name: str, src: str, dst: str) -> Flow:
    """A flood that alone fills more than the link."""
    return flood(name, src, dst, FLOOD * LINK_BPS, offload=False)


#: How each switch is made, by its name in tables and results.
PEERS: Mapping[str, Callable[[Lab, Topology], Switch]] = {
    "bridge": Bridge,
    "rigid": lambda lab, shape: Rigid(lab, shape, headroom=HEADROOM_PERCENT / 100),
    "htb": lambda lab, shape: Htb(lab, shape, headroom=HEADROOM_PERCENT / 100),
    "apart": lambda lab, shape: _levada(lab, shape, None),
    "gatekeeper": lambda lab, shape: _levada(lab, shape, "gatekeeper"),
    "rate": lambda lab, shape: _levada(lab, shape, "rate"),
}
#: Those that share the link by guarantees: a cell for each guarantee.
BY_GUARANTEE = ("rigid", "htb", "apart", "gatekeeper", "rate")
#: Those that need the congestion agents of switches of one daemon (`[cluster]` without `listen`).
NEED_AGENTS = ("gatekeeper", "rate")
#: The peer that is to keep the promise.
JUDGED = "rate"
#: The job with nobody beside it: `alone` at the link's rate and, by guarantee, at that rate.
ALONE, AT_RATE = "alone", "alone at the rate"


def _levada(lab: Lab, shape: Topology, controller: str | None) -> Switch:
    return Levada(lab, shape, headroom_percent=HEADROOM_PERCENT, controller=controller)


@dataclass(frozen=True)
class Cell:
    """One playing of the job. `labels`: peer, guarantee in percent (None where none matters),
    repetition, attempt."""

    labels: dict[str, Any]
    #: What `lab.shuffle` told.
    job: dict[str, Any]
    #: How long the job took; where it was given up, how long it was played.
    job_s: float
    finished: bool
    #: What each pair of `net` got meanwhile, in bits a second on the wire.
    pairs_bps: list[float]
    window_s: float
    idle: float
    cores: dict[str, float]
    strangers: float
    worker: Worker | None
    #: Why the CPU was the bottleneck, or None.
    bound: str | None
    #: Why nothing about it can be compared, or None.
    disturbed: str | None
    valid: bool = field(default=True)

    @property
    def net_bps(self) -> float:
        """What a pair of `net` got on average."""
        return sum(self.pairs_bps) / len(self.pairs_bps) if self.pairs_bps else 0.0


@dataclass(frozen=True)
class Plan:
    """How often, and at which guarantees."""

    repetitions: int
    guarantees: tuple[int, ...]


FULL = Plan(3, GUARANTEES_PERCENT)
QUICK = Plan(1, (75,))


@dataclass(frozen=True)
class Work:
    """The job as all cells play it: `options` of `lab.shuffle`, and when it is given up."""

    job: Job
    options: tuple[str, ...]
    bound_s: float


def work(plan: Plan) -> Work:
    """The job of the seed, or of the trace that the environment names."""
    trace = os.environ.get(TRACE_VARIABLE)
    nbytes = LINK_FACTOR * JOB_FACTOR
    source = ["--trace", trace] if trace else ["--generate", str(SEED), "--hosts", str(HOSTS)]
    try:
        job = mremu.read(Path(trace)) if trace else generate(SEED, Shape(hosts=HOSTS))
    except BadFile as error:
        raise Failed(f"${TRACE_VARIABLE}: {error}") from error
    job = job.scaled(nbytes, JOB_FACTOR)
    least = floor(job, guarantee_bps(min(plan.guarantees)))
    if least is None:
        raise Failed(f"job {job.name} copies nothing between hosts")
    factors = ["--bytes-factor", repr(nbytes), "--time-factor", repr(JOB_FACTOR)]
    return Work(job, (*source, *factors), PATIENCE * least.job_s)


def play(figure: Figure, lab: Lab, quick: bool, out: Path) -> Report:
    """Plays all cells, peers in turn, and judges them."""
    program()  # before minutes are spent on the others
    if missing_tools(["ethtool"]):
        raise Missing(f"{figure.name} needs ethtool: apt install ethtool")
    plan = QUICK if quick else FULL
    played = work(plan)
    report = Report(figure.name, quick)
    report.machine = machine.describe(["iperf3", "ip", "tc", "ethtool", str(program())])
    cells: list[Cell] = []
    for repetition in range(plan.repetitions):
        rounds = list(_rounds(plan))
        # There and back: what drifts with time falls on all alike.
        for peer, guarantee in rounds if repetition % 2 == 0 else reversed(rounds):
            labels = {"peer": peer, "guarantee": guarantee, "repetition": repetition}
            for cell in _play(figure, played, lab, labels):
                cells.append(cell)
                print(f"  {_progress(cell)}", file=sys.stderr)
    report.parameters = _parameters(figure, plan, played)
    report.cells = [asdict(cell) for cell in cells]
    report.tables = [jobs_table(figure, cells, plan.guarantees)]
    report.tables.append(pairs_table(cells, plan.guarantees))
    report.claims = claims(figure, cells, plan.guarantees)
    _draw(figure, cells, plan.guarantees, out)
    return report


def _rounds(plan: Plan) -> Iterator[tuple[str, int | None]]:
    """The cells of a repetition: peer and guarantee."""
    yield ALONE, None
    yield "bridge", None
    for guarantee in plan.guarantees:
        yield AT_RATE, guarantee
        for peer in BY_GUARANTEE:
            yield peer, guarantee


def _play(figure: Figure, played: Work, lab: Lab, labels: dict[str, Any]) -> Iterator[Cell]:
    """A cell, again until it is valid, at most `ATTEMPTS` times."""
    peer, guarantee = labels["peer"], labels["guarantee"]
    if peer in (ALONE, AT_RATE):
        rate = LINK_BPS if guarantee is None else guarantee_bps(guarantee)
        switch: Switch = Bridge(lab, topology(guarantee or 0, rate))
    else:
        switch = PEERS[peer](lab, topology(guarantee or 0))
    with switch.running():
        _prepare(lab, switch)
        for attempt in range(ATTEMPTS):
            with lab.stage():
                flows = [] if peer in (ALONE, AT_RATE) else neighbours(figure)
                told = {**labels, "attempt": attempt}
                cell = measure(lab, switch, figure.protocol, played, flows, told)
            yield cell
            if cell.valid:
                return


def _prepare(lab: Lab, switch: Switch) -> None:
    """Offloads off; and everybody knows everybody's address, as is usual where switches answer ARP
    for endpoints, so that no cell hangs on a question lost in a flood."""
    for tenant in switch.topology.tenants:
        members = [e for e in switch.topology.endpoints if e.tenant == tenant.name]
        for one in members:
            lines = [
                f"neigh replace {switch.topology.address(e)} lladdr {switch.topology.mac(e)}"
                f" dev {one.name} nud permanent\n"
                for e in members
                if e is not one
            ]
            batch = lab.dir / "neighbours"
            batch.write_text("".join(lines))
            space = switch.guests[one.name].namespace
            space.ip(f"-batch {batch}")
            space.run("ethtool", "-K", one.name, *OFFLOADS_OFF)


def topology(guarantee_percent: int, link_bps: int = LINK_BPS) -> Topology:
    """The published hosts. Without a guarantee (0), for who shares without any."""
    hosts = tuple(Host(f"h{n}", link_bps) for n in range(1, HOSTS + 1))
    job = guarantee_bps(guarantee_percent) if guarantee_percent else None
    net = guarantee_bps(100 - guarantee_percent) if guarantee_percent else None
    tenants = (Tenant("job", guarantee_bps=job), Tenant("net", guarantee_bps=net))
    endpoints = tuple(
        Endpoint(f"{tenant.name}{n}", tenant.name, f"h{n}")
        for tenant in tenants
        for n in range(1, HOSTS + 1)
    )
    return Topology(tenants, endpoints, hosts, fabric_queue_bytes=FABRIC_QUEUE_BYTES)


def guarantee_bps(percent: int) -> int:
    """A guarantee on a host's link in either direction: its part of what is delivered."""
    return LINK_BPS * (100 - GIVEN_UP_PERCENT) * percent // 10_000


def neighbours(figure: Figure) -> list[Flow]:
    """What the pairs of `net` do."""
    return [figure.neighbour(f"pair{n}", f"net{n}", f"net{n + PAIRS}") for n in range(1, PAIRS + 1)]


def measure(
    lab: Lab,
    switch: Switch,
    protocol: wire.Protocol,
    played: Work,
    flows: Sequence[Flow],
    labels: dict[str, Any],
) -> Cell:
    """Plays the job beside `flows`, and ends them."""
    seconds = int(LEAD_S + played.bound_s) + TAIL_S
    begun = time.monotonic()
    for port, flow in enumerate(flows, start=FIRST_PORT):
        flow.begin(switch.guests[flow.src], switch.guests[flow.dst], port, seconds)
    if flows:
        time.sleep(LEAD_S)
    shown_first, cpu_first = switch.sample(), sample_cpu(switch.processes)
    first = {f.dst: switch.guests[f.dst].namespace.received(f.dst) for f in flows}
    start = time.monotonic()
    job = _play_job(lab, switch, played)
    window_s = time.monotonic() - start
    last = {f.dst: switch.guests[f.dst].namespace.received(f.dst) for f in flows}
    shown_last, cpu_last = switch.sample(), sample_cpu(switch.processes)
    for flow in flows:
        flow.abort()
    worker = worker_use(shown_first, shown_last) if shown_first and shown_last else None
    use = cpu_use(cpu_first, cpu_last)
    bound = use.bound(worker.busy if worker else None)
    disturbed = disturbance(use, time.monotonic() - begun - seconds if flows else -1)
    return Cell(
        labels=labels,
        job=job,
        job_s=job["completion_s"] if job["finished"] else job["played_s"],
        finished=job["finished"],
        pairs_bps=[
            wire.wire_bits(last[f.dst].since(first[f.dst]), protocol) / window_s for f in flows
        ],
        window_s=window_s,
        idle=use.idle,
        cores=use.cores,
        strangers=use.strangers,
        worker=worker,
        bound=bound,
        disturbed=disturbed,
        valid=bound is None and disturbed is None,
    )


def _play_job(lab: Lab, switch: Switch, played: Work) -> dict[str, Any]:
    """`lab.shuffle` among the job's endpoints; what it told."""
    places = [
        {"name": guest.name, "netns": guest.namespace.name, "address": guest.address}
        for guest in (switch.guests[f"job{n}"] for n in range(1, HOSTS + 1))
    ]
    path = lab.dir / "places.json"
    path.write_text(json.dumps(places))
    root = Path(__file__).resolve().parents[1]
    process = lab.spawn(
        "shuffle",
        *("env", f"PYTHONPATH={root}", sys.executable, "-m", "lab.shuffle", *played.options),
        *("--places", str(path), "--timeout", str(played.bound_s)),
        *("--link-rate", str(switch.topology.hosts[0].link_bps)),
        stdout=subprocess.PIPE,
    )
    text, _ = process.popen.communicate(timeout=2 * played.bound_s + TAIL_S)
    if process.popen.returncode not in (0, 1) or not text:
        raise Failed(f"the job was not played:\n{process.output()[-2000:]}")
    told: dict[str, Any] = json.loads(text)
    return told


# --- judging ------------------------------------------------------------------------------


def claims(figure: Figure, cells: Sequence[Cell], guarantees: Sequence[int]) -> list[Claim]:
    """What is promised, guarantee by guarantee; over means of the repetitions."""
    made = []
    for percent in guarantees:
        name = f"guarantee {percent} %: the job"
        over = _times(cells, (JUDGED, percent), ("rigid", percent))
        made.append(at_most(f"{name} over rigid limits", over, "x", OVER_RIGID))
        if percent == figure.alone_percent:
            over = _times(cells, (JUDGED, percent), (AT_RATE, percent))
            made.append(at_most(f"{name} over itself alone at that rate", over, "x", OVER_ALONE))
        got = _ratio(_net_bps(cells, JUDGED, percent), _net_bps(cells, "rigid", percent))
        made.append(
            at_least(f"guarantee {percent} %: its neighbour over rigid limits", got, "x", 1.0)
        )
    # Of one that was given up over best effort it is that at least.
    alone = _job_s(cells, ALONE, None) if _all_finished(cells, ALONE, None) else None
    harm = _ratio(_job_s(cells, "bridge", None), alone)
    made.append(at_least("best effort makes the job longer", harm, "x", HARM))
    return made


def _times(
    cells: Sequence[Cell], one: tuple[str, int | None], other: tuple[str, int | None]
) -> float | None:
    """How many times as long as over the other the job took. One that was given up took no time
    that is known: its own is endless, and the other's is no measure."""
    ratio = _ratio(_job_s(cells, *one), _job_s(cells, *other))
    if ratio is not None and not _all_finished(cells, *one):
        return math.inf
    return ratio if _all_finished(cells, *other) else None


def _all_finished(cells: Sequence[Cell], peer: str, guarantee: int | None) -> bool:
    return all(cell.finished for cell in _valid(cells, peer, guarantee))


def _job_s(cells: Sequence[Cell], peer: str, guarantee: int | None) -> Mean | None:
    """How long the job took; at least that, where cells were given up. None: no valid cell."""
    values = [c.job_s for c in _valid(cells, peer, guarantee)]
    return mean(values) if values else None


def _net_bps(cells: Sequence[Cell], peer: str, guarantee: int | None) -> Mean | None:
    """What a pair of `net` got. None: no valid cell."""
    values = [c.net_bps for c in _valid(cells, peer, guarantee)]
    return mean(values) if values else None


def _valid(cells: Sequence[Cell], peer: str, guarantee: int | None) -> list[Cell]:
    wanted = {"peer": peer, "guarantee": guarantee}
    return [c for c in cells if c.valid and all(c.labels[k] == v for k, v in wanted.items())]


def _ratio(one: Mean | None, other: Mean | None) -> float | None:
    return one.value / other.value if one and other and other.value else None


# --- showing ------------------------------------------------------------------------------


def jobs_table(figure: Figure, cells: Sequence[Cell], guarantees: Sequence[int]) -> str:
    """How long the job took over each peer, by guarantee. What matters not by guarantee is the
    same in all columns."""
    rows = [["alone", *[_seconds(cells, ALONE, None)] * len(guarantees)]]
    rows.append([ALONE_AT, *[_seconds(cells, AT_RATE, g) for g in guarantees]])
    rows.append([FLOOR, *[_floor_text(cells, g) for g in guarantees]])
    for peer in PEERS:
        by = guarantees if peer in BY_GUARANTEE else [None] * len(guarantees)
        rows.append([TITLES[peer], *[_seconds(cells, peer, g) for g in by]])
    columns = [f"{percent} %" for percent in guarantees]
    return table([f"{figure.title}: the job in s; guarantee", *columns], rows)


def pairs_table(cells: Sequence[Cell], guarantees: Sequence[int]) -> str:
    """What its neighbour got while it ran."""
    rows = []
    for peer in PEERS:
        by = guarantees if peer in BY_GUARANTEE else [None] * len(guarantees)
        means = [_net_bps(cells, peer, g) for g in by]
        told = ["no valid cell" if m is None else f"{m.over(MBIT):.1f}" for m in means]
        rows.append([TITLES[peer], *told])
    promised = [f"{guarantee_bps(100 - g) / MBIT:.1f}" for g in guarantees]
    rows.append(["promised", *promised])
    columns = [f"{percent} %" for percent in guarantees]
    return table(["its neighbour, Mbit/s a pair on the wire; the job's guarantee", *columns], rows)


ALONE_AT = "alone at the guarantee's rate"
FLOOR = "floor of the busiest link at that rate"


def _seconds(cells: Sequence[Cell], peer: str, guarantee: int | None) -> str:
    took = _job_s(cells, peer, guarantee)
    if took is None:
        return "no valid cell"
    given_up = not _all_finished(cells, peer, guarantee)
    return f"{'> ' if given_up else ''}{took:.1f}"


def _floor_text(cells: Sequence[Cell], guarantee: int) -> str:
    floors = [c.job["floor"]["job_s"] for c in _valid(cells, AT_RATE, guarantee)]
    return f"{floors[0]:.1f}" if floors else "no valid cell"


def _draw(figure: Figure, cells: Sequence[Cell], guarantees: Sequence[int], out: Path) -> None:
    groups = [f"{percent} %" for percent in guarantees]

    def by_peer(
        of: Callable[[Sequence[Cell], str, int | None], Mean | None],
    ) -> dict[str, list[Mean | None]]:
        return {
            TITLES[peer]: [of(cells, peer, g if peer in BY_GUARANTEE else None) for g in guarantees]
            for peer in PEERS
        }

    jobs = {"alone": [_job_s(cells, ALONE, None)] * len(groups), **by_peer(_job_s)}
    at_rate = [_job_s(cells, AT_RATE, g) for g in guarantees]
    due = [None if m is None else m.value for m in at_rate]
    plot.bars(
        out / "job",
        f"{figure.title}: the job's time (line: alone at the guarantee's rate)",
        "seconds",
        groups,
        jobs,
        due,
    )
    pairs = {
        title: [None if m is None else m.over(MBIT) for m in means]
        for title, means in by_peer(_net_bps).items()
    }
    promised = [guarantee_bps(100 - g) / MBIT for g in guarantees]
    plot.bars(
        out / "neighbour",
        f"{figure.title}: what each pair got meanwhile (line: promised)",
        "Mbit/s on the wire",
        groups,
        pairs,
        promised,
    )


def _progress(cell: Cell) -> str:
    labels = " ".join(str(v) for v in cell.labels.values() if v is not None)
    took = f"{cell.job_s:.1f} s" if cell.finished else f"given up after {cell.job_s:.0f} s"
    state = "".join(f"; {why}" for why in (cell.bound, cell.disturbed) if why)
    idle = f"idle {cell.idle:.0%}"
    return f"{labels}: {took}, pairs {cell.net_bps / MBIT:.1f} Mbit/s, {idle}{state}"


def _parameters(figure: Figure, plan: Plan, played: Work) -> dict[str, Any]:
    least = floor(played.job, LINK_BPS)
    return {
        "repetitions": plan.repetitions,
        "hosts": HOSTS,
        "pairs": PAIRS,
        "link_bps": LINK_BPS,
        "link_and_bytes_factor": LINK_FACTOR,
        "job_factor": JOB_FACTOR,
        "job": {"name": played.job.name, "options": played.options},
        "floor": None if least is None else asdict(least),
        "fabric_queue_bytes": FABRIC_QUEUE_BYTES,
        "given_up_percent": GIVEN_UP_PERCENT,
        "headroom_percent": HEADROOM_PERCENT,
        "guarantees_percent": plan.guarantees,
        "neighbour": figure.title,
        "bound_s": played.bound_s,
        "congestion_control": "cubic",
    }
