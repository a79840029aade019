"""Gatekeeper's figure 5 (Rodrigues et al., 2011) on live TCP and UDP: its testbed, its cells, and
how they are judged, for experiments that differ in who isolates.

Host H1 has an endpoint of tenant A and one of tenant B, H2 one of A, H3 one of B. H1's access
link is promised to A and B, 75 % and 25 %, in both directions.

    TX    H1's endpoints send to H2 and H3
    RX    H2 and H3 send to H1

A does nothing or has one TCP connection, against B's nothing, one TCP connection, ten of them, a
swarm of short ones, or a UDP flood. Each cell is played over several peers in turn, in two regimes:
1 Gbit/s with segmentation-offloaded frames, and a slower link with the endpoints' offloads off, so
that every frame is one of the wire's.

A switch is built once a repetition and regime and plays all cells, so that a cell's time
goes into measuring. Rates are what receivers' devices got, on the wire (`lab.wire`): one unit for
all peers, and that of guarantees.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import machine, plot, wire
from lab.cell import Cell, measure
from lab.net import Lab, missing_tools
from lab.programs import Missing, program
from lab.report import Claim, Report, at_least, at_most
from lab.stats import Mean, mean, table
from lab.switches import Switch
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import Flow, Swarm, TcpFlow, flood

MBIT = 1_000_000
#: What may be given up of an access link, and what of the rest is promised (published: 5 %, and
#: 75 and 25).
GIVEN_UP_PERCENT = 2
PROMISED_PERCENT = {"A": 75, "B": 25}

#: The flood's rate over the link's: it alone would fill the link and more.
FLOOD = 1.5
#: ethtool(8): an endpoint that neither hands over nor accepts more than the wire's frames.
OFFLOADS_OFF = ("tso", "off", "gso", "off", "gro", "off")


@dataclass(frozen=True)
class Regime:
    """An access link and the frames on it."""

    name: str
    title: str
    link_bps: int
    offload: bool


REGIMES = (
    Regime("1g", "1 Gbit/s, offloaded frames", 1000 * MBIT, offload=True),
    Regime("mtu", "250 Mbit/s, MTU frames", 250 * MBIT, offload=False),
)
#: What tenant A does, and B: connections, or the flood.
NONE, ONE, TEN, UDP, SWARM = "none", "1 TCP", "10 TCP", "UDP", "swarm"
CONNECTIONS = {ONE: 1, TEN: 10}
#: Who talks to whom: the endpoints on H1, and their peers.
ENDPOINTS = {"A": ("a1", "a2"), "B": ("b1", "b3")}

#: What A does, and what B.
Load = tuple[str, str]
#: The loads of each half, `tx` and `rx`.
Loads = Mapping[str, tuple[Load, ...]]

#: Most of a window that a worker may be late: the link idles meanwhile, and that is the machine's
#: doing. (Where 1 % counted, a tenant alone had 98.9 % of the link.)
LATE_LIMIT = 0.0075
#: How often a cell is played until it is valid, where its peer is judged, and elsewhere.
JUDGED_ATTEMPTS, OTHER_ATTEMPTS = 6, 2
#: How often, after all, what is judged and has no valid cell is played again: a machine that is
#: busy for minutes is so for all attempts in a row.
LATER_PASSES = 3

#: Least part of its guarantee that a tenant gets, and of the link one that is alone on it, in
#: percent.
KEPT_PERCENT = 99.0
LENT_PERCENT = 99.0


@dataclass(frozen=True)
class Plan:
    """How often and how long. Flows last `lead_s` + `window_s` + a little, in whole seconds."""

    repetitions: int
    lead_s: float
    window_s: float


# The first second is out: ten connections in slow start take that long to give way. Flows end 0.4 s
# after the window; with 0.2 s their own start took longer in one cell of eleven.
FULL = Plan(repetitions=3, lead_s=1.0, window_s=2.6)
QUICK = Plan(repetitions=1, lead_s=1.0, window_s=2.6)


@dataclass(frozen=True)
class Figure:
    """One playing of the figure."""

    name: str
    #: How each switch is made, by its name in tables and results.
    peers: Mapping[str, Callable[[Lab, Topology], Switch]]
    titles: Mapping[str, str]
    #: The peers that are to keep the promise, by half, and the one that breaks it.
    judged: Mapping[str, tuple[str, ...]]
    careless: str
    loads: Loads
    #: A quick run leaves out what the other cells imply.
    quick_loads: Loads
    #: Whether H2 and H3 do anything for their tenants.
    all_isolate: bool
    #: What result.json says of it besides.
    parameters: Mapping[str, Any] = field(default_factory=dict)


def play(figure: Figure, lab: Lab, quick: bool, out: Path) -> Report:
    """Plays all cells, peers in turn, and judges them."""
    program()  # before minutes are spent on the others
    if missing_tools(["ethtool"]):
        raise Missing(f"{figure.name} needs ethtool: apt install ethtool")
    plan, loads = (QUICK, figure.quick_loads) if quick else (FULL, figure.loads)
    report = Report(figure.name, quick, parameters=_parameters(figure, plan))
    report.machine = machine.describe(["iperf3", "ip", "tc", "ethtool", str(program())])
    cells: list[Cell] = []
    for repetition in range(plan.repetitions):
        rounds = [(regime, peer) for regime in REGIMES for peer in figure.peers]
        # There and back: what drifts with time falls on all alike.
        for regime, peer in rounds if repetition % 2 == 0 else reversed(rounds):
            labels = {"regime": regime.name, "peer": peer, "repetition": repetition}
            cells += _play(figure, lab, regime, peer, plan, loads, labels)
    for later in range(0 if quick else LATER_PASSES):
        for regime in REGIMES:
            for peer in figure.peers:
                if missing := _missing(figure, cells, regime, peer):
                    repetition = plan.repetitions + later
                    labels = {"regime": regime.name, "peer": peer, "repetition": repetition}
                    cells += _play(figure, lab, regime, peer, plan, missing, labels)
    report.cells = [cell.as_row() for cell in cells]
    halves = [(regime, half) for regime in REGIMES for half in figure.loads]
    report.tables = [rates_table(figure, cells, regime, half) for regime, half in halves]
    report.claims = claims(figure, cells)
    _draw(figure, cells, loads, out)
    return report


def _missing(figure: Figure, cells: Sequence[Cell], regime: Regime, peer: str) -> Loads:
    """The loads that were played and are judged, and of which there is no valid cell."""
    judged = [half for half in figure.loads if _is_judged(figure, half, peer)]
    played = {half: _loads(cells, regime, half, peer) for half in judged}
    missing = {
        half: tuple(load for load, valid in loads.items() if not valid)
        for half, loads in played.items()
    }
    return {half: loads for half, loads in missing.items() if loads}


def _is_judged(figure: Figure, half: str, peer: str) -> bool:
    return peer in (*figure.judged[half], figure.careless)


def _play(
    figure: Figure,
    lab: Lab,
    regime: Regime,
    peer: str,
    plan: Plan,
    loads: Loads,
    labels: dict[str, Any],
) -> list[Cell]:
    """All cells of one switch, which is built once. An invalid cell is played again."""
    cells = []
    switch = figure.peers[peer](lab, topology(figure, regime))
    with switch.running():
        switch.introduce()
        if not regime.offload:
            for guest in switch.guests.values():
                guest.namespace.run("ethtool", "-K", guest.name, *OFFLOADS_OFF)
        for half in loads:
            for load in loads[half]:
                is_judged = _is_judged(figure, half, peer)
                for attempt in range(JUDGED_ATTEMPTS if is_judged else OTHER_ATTEMPTS):
                    told = {**labels, "half": half, "A": load[0], "B": load[1], "attempt": attempt}
                    cell = measure(
                        switch,
                        flows(regime, half, load),
                        plan.window_s,
                        told,
                        plan.lead_s,
                        tail_s=0.0,
                        late_limit=LATE_LIMIT,
                    )
                    cells.append(cell)
                    print(f"  {_progress(cell)}", file=sys.stderr)
                    if cell.valid:
                        break
    return cells


def topology(figure: Figure, regime: Regime) -> Topology:
    """The published hosts. All access links have the regime's rate."""
    hosts = (
        Host("h1", regime.link_bps),
        Host("h2", regime.link_bps, isolates=figure.all_isolate),
        Host("h3", regime.link_bps, isolates=figure.all_isolate),
    )
    tenants = tuple(
        Tenant(name, guarantee_bps=round(guarantee_bps(regime, name))) for name in PROMISED_PERCENT
    )
    endpoints = (
        Endpoint("a1", "A", "h1"),
        Endpoint("b1", "B", "h1"),
        Endpoint("a2", "A", "h2"),
        Endpoint("b3", "B", "h3"),
    )
    return Topology(tenants, endpoints, hosts)


def guarantee_bps(regime: Regime, tenant: str) -> float:
    """A tenant's guarantee on H1's link in either direction: its part of what is delivered."""
    return regime.link_bps * (100 - GIVEN_UP_PERCENT) / 100 * PROMISED_PERCENT[tenant] / 100


def flows(regime: Regime, half: str, load: Load) -> list[Flow]:
    """The flows of a cell, named after their tenants."""
    made: list[Flow] = []
    for tenant, what in zip(ENDPOINTS, load, strict=True):
        near, far = ENDPOINTS[tenant]
        src, dst = (near, far) if half == "tx" else (far, near)
        if what in CONNECTIONS:
            made.append(TcpFlow(tenant, src, dst, CONNECTIONS[what]))
        elif what == SWARM:
            made.append(Swarm(tenant, src, dst))
        elif what == UDP:
            wire_bps = FLOOD * regime.link_bps
            made.append(flood(tenant, src, dst, wire_bps, offload=regime.offload))
    return made


# --- judging ------------------------------------------------------------------------------


def rate_bps(cell: Cell, tenant: str) -> float:
    """What a tenant's receiver got, in wire bits a second."""
    if cell.labels[tenant] == NONE:
        return 0.0
    near, far = ENDPOINTS[tenant]
    received = cell.received[far if cell.labels["half"] == "tx" else near]
    protocol = wire.UDP if cell.labels[tenant] == UDP else wire.TCP
    return wire.wire_bits(received, protocol) / cell.window_s


def claims(figure: Figure, cells: Sequence[Cell]) -> list[Claim]:
    """What is promised, regime by regime and half by half; over means of the repetitions."""
    made = []
    for regime in REGIMES:
        for half in figure.loads:
            for peer in figure.judged[half]:
                made += _claims_of(figure, cells, regime, half, peer)
            theirs = _worst_kept(_loads(cells, regime, half, figure.careless), regime)
            name = f"{regime.name} {half}: {figure.titles[figure.careless]} breaks the promise"
            made.append(at_most(f"{name}, at worst", theirs, "%", 90))
    return made


def _claims_of(
    figure: Figure, cells: Sequence[Cell], regime: Regime, half: str, peer: str
) -> list[Claim]:
    name = f"{regime.name} {half}"
    if len(figure.judged[half]) > 1:
        name += f", {figure.titles[peer]}"
    ours = _loads(cells, regime, half, peer)
    kept = _worst_kept(ours, regime)
    alone = _least_total(ours, regime, alone=True)
    total = _least_total(ours, regime, alone=False)
    given_up = None if total is None else 100 - total
    most = GIVEN_UP_PERCENT if half == "rx" else 100 - LENT_PERCENT
    return [
        at_least(f"{name}: worst tenant's part of its guarantee", kept, "%", KEPT_PERCENT),
        at_least(f"{name}: a tenant alone, of the link", alone, "%", LENT_PERCENT),
        at_most(f"{name}: of the link given up", given_up, "%", most),
    ]


def _worst_kept(loads: dict[Load, list[Cell]], regime: Regime) -> float | None:
    """The least part of its guarantee, in percent, that any tenant with traffic got in any
    load. All traffic here wants more than the guarantees, but for swarms, whose demand nobody
    knows. None where a load has no valid cell."""
    if not all(loads.values()):
        return None
    parts = [
        100 * mean([rate_bps(c, tenant) for c in chosen]).value / guarantee_bps(regime, tenant)
        for load, chosen in loads.items()
        for tenant, what in zip(ENDPOINTS, load, strict=True)
        if what not in (NONE, SWARM)
    ]
    return min(parts, default=None)


def _least_total(loads: dict[Load, list[Cell]], regime: Regime, *, alone: bool) -> float | None:
    """The least part of the link, in percent, that was used in any load with one tenant
    (`alone`) or with both; swarms do not always want all. None where a load has no valid cell."""
    if not all(loads.values()):
        return None
    parts = [
        100 * _total(chosen).value / regime.link_bps
        for load, chosen in loads.items()
        if (NONE in load) == alone and SWARM not in load
    ]
    return min(parts, default=None)


def _total(cells: Sequence[Cell]) -> Mean:
    return mean([sum(rate_bps(c, tenant) for tenant in ENDPOINTS) for c in cells])


def _loads(cells: Sequence[Cell], regime: Regime, half: str, peer: str) -> dict[Load, list[Cell]]:
    """The valid cells of a peer by load: of those that were played, maybe none."""
    wanted = {"regime": regime.name, "half": half, "peer": peer}
    chosen: dict[Load, list[Cell]] = {}
    for cell in cells:
        if all(cell.labels[k] == v for k, v in wanted.items()):
            of_load = chosen.setdefault((cell.labels["A"], cell.labels["B"]), [])
            if cell.valid:
                of_load.append(cell)
    return chosen


# --- showing ------------------------------------------------------------------------------


def rates_table(figure: Figure, cells: Sequence[Cell], regime: Regime, half: str) -> str:
    """What A and B got over each peer, load by load."""
    by_peer = {peer: _loads(cells, regime, half, peer) for peer in figure.peers}
    rows = []
    for load in figure.loads[half]:
        if not any(load in loads for loads in by_peer.values()):
            continue
        row = [f"{load[0]} | {load[1]}"]
        for loads in by_peer.values():
            means = _means(loads.get(load, []))
            row += ["invalid" if m is None else f"{m:.0f}" for m in means.values()]
        rows.append(row)
    promised = [f"{guarantee_bps(regime, tenant) / 1e6:.0f}" for tenant in ENDPOINTS]
    rows.append(["promised", *promised * len(figure.peers)])
    columns = [f"{figure.titles[peer]}: {tenant}" for peer in figure.peers for tenant in ENDPOINTS]
    return table([f"{regime.title}, {half.upper()}, Mbit/s; A | B", *columns], rows)


def _means(cells: Sequence[Cell]) -> dict[str, Mean | None]:
    """Each tenant's rate in Mbit/s; None where there is no valid cell."""
    return {
        tenant: mean([rate_bps(c, tenant) for c in cells]).over(MBIT) if cells else None
        for tenant in ENDPOINTS
    }


def _draw(figure: Figure, cells: Sequence[Cell], loads: Loads, out: Path) -> None:
    for regime in REGIMES:
        due = {tenant: guarantee_bps(regime, tenant) / 1e6 for tenant in ENDPOINTS}
        for half in loads:
            beside = {}
            for peer in figure.peers:
                chosen = _loads(cells, regime, half, peer)
                means = [_means(chosen.get(load, [])) for load in loads[half]]
                beside[figure.titles[peer]] = {t: [m[t] for m in means] for t in ENDPOINTS}
            plot.panels(
                out / f"{regime.name}-{half}",
                f"Two tenants on one host, {half.upper()}, {regime.title}",
                "Mbit/s on the wire",
                [f"A {a}\nB {b}" for a, b in loads[half]],
                beside,
                due,
            )


def _progress(cell: Cell) -> str:
    rates = ", ".join(f"{tenant} {rate_bps(cell, tenant) / 1e6:.0f}" for tenant in ENDPOINTS)
    labels = " ".join(str(v) for v in cell.labels.values())
    state = "".join(f"; {why}" for why in (cell.bound, cell.disturbed) if why)
    return f"{labels}: {rates} Mbit/s{state}{'' if cell.valid else '; invalid'}"


def _parameters(figure: Figure, plan: Plan) -> dict[str, Any]:
    return {
        "repetitions": plan.repetitions,
        "lead_s": plan.lead_s,
        "window_s": plan.window_s,
        "regimes": {r.name: {"link_bps": r.link_bps, "offload": r.offload} for r in REGIMES},
        "promised_percent": PROMISED_PERCENT,
        "given_up_percent": GIVEN_UP_PERCENT,
        "flood_over_link": FLOOD,
        "congestion_control": "cubic",
        **figure.parameters,
    }
