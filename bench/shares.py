"""Who gets what of a link that everybody wants: measured wire bytes against the fluid oracle.

Two switches of one daemon, joined by a link; each tenant has an endpoint on either side and
floods from the first to the second. In the egress cells the sending switch's uplink is the
bottleneck, in the ingress cells the receiving switch's. Frames are of all sizes, 64 bytes to
offloaded ones of 63 KB; weights span 1000:1; everyone asks for so much more than its share that
its queue always stands. The first second is left out. What the switch counted for each tenant in
the window is compared with what the oracle (lab/fluid.py) makes of their sum.

TCP, which does not always keep its queue standing, is measured too, at 900 Mbit/s. Total
throughput is compared with plain vde_switch's, with the same connections; as that has no link but
its own speed, Levada's link is faster than it here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from bench.flood import FULL_PAYLOAD_BYTES, SMALL_PAYLOAD_BYTES, Flood
from bench.pairs import COLUMNS, Measure, interleaved, ratio, row
from lab.cell import ATTEMPTS, Cell, measure
from lab.fluid import by_weight
from lab.net import Lab
from lab.report import Report, at_least, at_most
from lab.stats import table
from lab.switches import Levada, Switch, Vde
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import Flow, TcpFlow

Direction = Literal["egress", "ingress"]

#: Measured after the first second.
WINDOW_S = {False: 10.0, True: 3.0}
#: How far a tenant may be from its ideal: this part of it, or so many maximum frames.
TOLERANCE = 0.001
TOLERANCE_FRAMES = 2
#: A frame of a 1500-byte MTU with its VLAN tag, FCS, preamble and gap.
MTU_FRAME_WIRE_BYTES = 1542
#: Offloaded frames are split to so much wire time at most; this is then the maximum frame.
SPLIT_S = 100e-6

#: The link between the switches, where it is not the bottleneck.
_CABLE_BPS = 1_000_000_000
#: Of an offloaded message: as many segments of a full frame as UDP_SEGMENT joins in 63 KB.
_OFFLOADED = {"payload_bytes": 43 * FULL_PAYLOAD_BYTES, "segment_bytes": FULL_PAYLOAD_BYTES}
_FULL = {"payload_bytes": FULL_PAYLOAD_BYTES}
_SMALL = {"payload_bytes": SMALL_PAYLOAD_BYTES}


@dataclass(frozen=True)
class Sender:
    """A tenant, its weight, the frames that it sends and how much it asks for (payload)."""

    name: str
    weight: int
    frames: dict[str, int]
    payload_bps: int


@dataclass(frozen=True)
class Mix:
    """Senders over a bottleneck.

    What they ask for exceeds their shares by more than the queues' management can shed by
    signals in the time (CoDel raises its rate by the square root), yet is small enough to
    leave the CPU idle time."""

    name: str
    link_bps: int
    senders: tuple[Sender, ...]

    def flows(self) -> list[Flow]:
        """Each sender's flood, from its first endpoint to its second."""
        return [
            Flood(s.name, f"{s.name}0", f"{s.name}1", payload_bps=s.payload_bps, **s.frames)
            for s in self.senders
        ]

    def fell_behind(self, cell: Cell) -> str | None:
        """Which sender did not send what it was to send, or None."""
        for sender in self.senders:
            sent = cell.flows[sender.name].detail["payload_bps"] / sender.payload_bps
            if sent < _SENT_LEAST:
                return f"the sender {sender.name} sent only {sent:.1%}"
        return None


MIXES = (
    Mix(
        "bulk",
        200_000_000,
        (
            Sender("offloaded", 1000, _OFFLOADED, 450_000_000),
            Sender("full", 100, _FULL, 220_000_000),
            Sender("small", 10, _SMALL, 4_000_000),
            Sender("medium", 10, {"payload_bytes": 512}, 60_000_000),
            Sender("few", 1, _FULL, 20_000_000),
        ),
    ),
    Mix(
        "small",
        50_000_000,
        (
            Sender("small", 1000, _SMALL, 14_000_000),
            Sender("full", 100, _FULL, 180_000_000),
            Sender("offloaded", 10, _OFFLOADED, 200_000_000),
            Sender("few", 1, _FULL, 20_000_000),
        ),
    ),
)

#: TCP connections of each tenant, by weight: the one with most asks least by right.
_TCP = ((4, 1), (2, 2), (1, 4))
#: Less than the cable carries and the receiving switch takes, so that the bottleneck is one.
_TCP_LINK_BPS = 900_000_000
#: A flood that sent less than this part of what it was to send stood still for a while: then
#: its queue ran dry, and the cell says nothing.
_SENT_LEAST = 0.99
#: The link where total throughput is compared: faster than vde_switch is, which has none.
_TOTAL_LINK_BPS = 10_000_000_000
#: Pairs with vde_switch, each window this long.
_PAIRS = {False: 3, True: 1}
_PAIR_WINDOW_S = {False: 2.0, True: 0.8}


def shares(lab: Lab, report: Report, quick: bool) -> None:
    """Shares in both directions, and total throughput next to vde_switch."""
    directions: tuple[Direction, ...] = ("egress", "ingress")
    for mix in MIXES[:1] if quick else MIXES:
        for direction in directions:
            _judge(lab, report, quick, mix, direction)
    for direction in directions[:1] if quick else directions:
        _judge(lab, report, quick, None, direction)
    _total(lab, report, quick)


def two_hosts(tenants: Sequence[tuple[str, int]], link_bps: int, direction: Direction) -> Topology:
    """Tenants by name and weight with an endpoint on each of two hosts; the bottleneck is the
    first one's egress or the second one's ingress."""
    cable = max(_CABLE_BPS, link_bps)
    sending, receiving = Host("h0", cable), Host("h1", cable)
    if direction == "egress":
        sending = replace(sending, egress_bps=link_bps)
    else:
        receiving = replace(receiving, ingress_bps=link_bps)
    return Topology(
        tuple(Tenant(name, weight) for name, weight in tenants),
        tuple(Endpoint(f"{name}{n}", name, f"h{n}") for name, _ in tenants for n in range(2)),
        (sending, receiving),
    )


class _Watched(Levada):
    """Keeps what it told at both ends of the window."""

    def __init__(self, lab: Lab, topology: Topology) -> None:
        super().__init__(lab, topology)
        self.samples: list[dict[str, Any]] = []

    def sample(self) -> dict[str, Any]:
        shown = super().sample()
        self.samples.append(shown)
        return shown


def standing(samples: Sequence[dict[str, Any]], host: str, direction: Direction) -> dict[str, int]:
    """Bytes that waited in each tenant's queues at the emptiest of some samples."""
    least: dict[str, int] = {}
    for shown in samples:
        switch = next(s for s in shown["switches"] if s["name"] == host)
        for tenant in switch["tenants"]:
            waiting = sum(e[direction]["backlog_bytes"] for e in tenant["endpoints"])
            least[tenant["name"]] = min(least.get(tenant["name"], waiting), waiting)
    return least


@dataclass(frozen=True)
class Share:
    """A tenant's wire bytes in the window, ideal and measured, and how far off it may be."""

    tenant: str
    weight: int
    ideal: float
    got: float
    allowed: float

    @property
    def error(self) -> float:
        """How far from the ideal, in parts of what is allowed."""
        return abs(self.got - self.ideal) / self.allowed


def judge(got: Sequence[float], tenants: Sequence[Tenant], link_bps: int) -> list[Share]:
    """What each tenant got against the oracle's division of the total."""
    max_frame = max(MTU_FRAME_WIRE_BYTES, link_bps * SPLIT_S / 8)
    ideals = by_weight(sum(got), [t.weight for t in tenants])
    return [
        Share(t.name, t.weight, ideal, g, max(TOLERANCE * ideal, TOLERANCE_FRAMES * max_frame))
        for t, ideal, g in zip(tenants, ideals, got, strict=True)
    ]


def _judge(lab: Lab, report: Report, quick: bool, mix: Mix | None, direction: Direction) -> None:
    """One cell of a mix, or of TCP; its rows, its table and its claim."""
    name = mix.name if mix else "tcp"
    link_bps = mix.link_bps if mix else _TCP_LINK_BPS
    weights = [(s.name, s.weight) for s in mix.senders] if mix else _TCP_WEIGHTS
    topology = two_hosts(weights, link_bps, direction)
    labels = {"section": "shares", "mix": name, "direction": direction}
    for attempt in range(ATTEMPTS):
        switch = _Watched(lab, topology)
        with switch.running():
            flows = mix.flows() if mix else _connections()
            cell = measure(switch, flows, WINDOW_S[quick], {**labels, "attempt": attempt})
        fell_behind = mix and mix.fell_behind(cell)
        if fell_behind:
            cell = replace(cell, disturbed=cell.disturbed or fell_behind, valid=False)
        report.cells.append(cell.as_row())
        if cell.valid:
            break
    host = "h0" if direction == "egress" else "h1"
    got = [float(getattr(cell.wire[host][n], f"{direction}_bytes")) for n, _ in weights]
    judged = judge(got, topology.tenants, link_bps)
    worst = max(share.error for share in judged)
    report.claims.append(
        at_most(f"shares.{direction}-{name}", worst if cell.valid else None, "x allowed error", 1)
    )
    used = sum(got) * 8 / cell.window_s / link_bps
    state = cell.disturbed or cell.bound or "valid"
    title = f"shares, {direction}, mix '{name}': link used {used:.1%}, {state}"
    waiting = standing(switch.samples, host, direction)
    report.tables.append(_table(title, judged, waiting, cell))


def _table(title: str, judged: Sequence[Share], waiting: Mapping[str, int], cell: Cell) -> str:
    rows = [
        [
            share.tenant,
            f"{share.weight}",
            f"{share.ideal * 8 / 1e6 / cell.window_s:.4f}",
            f"{share.got * 8 / 1e6 / cell.window_s:.4f}",
            f"{share.got / share.ideal - 1:+.3%}",
            f"{share.error:.2f}",
            f"{waiting[share.tenant] / 1000:.0f}",
        ]
        for share in judged
    ]
    head = ["tenant", "weight", "ideal Mbit/s", "got", "error", "x allowed", "waiting, kB"]
    return f"{title}\n" + table(head, rows)


_TCP_WEIGHTS = [(f"tcp{streams}", weight) for streams, weight in _TCP]


def _connections() -> list[Flow]:
    return [
        TcpFlow(f"tcp{streams}", f"tcp{streams}0", f"tcp{streams}1", streams) for streams, _ in _TCP
    ]


def _total(lab: Lab, report: Report, quick: bool) -> None:
    """The sum of all connections' payload, next to vde_switch with the same connections."""
    topology = two_hosts(_TCP_WEIGHTS, _TOTAL_LINK_BPS, "egress")

    def measured(make: type[Switch]) -> Measure:
        def once() -> tuple[Cell, float]:
            labels: dict[str, Any] = {"section": "shares", "mix": "total", "switch": make.name}
            switch = make(lab, topology)
            with switch.running():
                cell = measure(switch, _connections(), _PAIR_WINDOW_S[quick], labels)
            cell = replace(cell, valid=cell.disturbed is None)
            return cell, sum(cell.goodput_bps.values()) / 1e6

        return once

    rows: list[Cell] = []
    pairs = interleaved(_PAIRS[quick], measured(Levada), {"vde": measured(Vde)}, rows)["vde"]
    report.cells += [cell.as_row() for cell in rows]
    report.claims.append(at_least("shares.total-vs-vde", ratio(pairs), "x vde", 1))
    title = "total of all connections between two switches, of Levada with a 10 Gbit/s link; Mbit/s"
    report.tables.append(f"{title}\n" + table(["", *COLUMNS], [row("vde", pairs, ".0f")]))
