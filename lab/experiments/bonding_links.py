"""More links between two hosts, links of unequal rate, and links that lose frames.

The parts `links`, `unequal`, `loss`, `tunnel` and `switched` of `lab/run bonding`
(`lab.experiments.bonding` has the first). All run with numbers, in rounds: each round plays every
set of links once, one after the other, and what is claimed is the median over the rounds of a ratio
within one. So a machine that is slower for a while slows both sides of it.

`links`: what one, four and 64 TCP connections (cubic) have over 2, 4 and 8 links, of so many times
what they have over one: links are alike here, so only the first is measured alone, and the sum is
so many times that. UDP below what the links carry is counted. `unequal`: a link beside one with a
tenth of its rate, each measured alone too. `loss`: two links that lose one frame of a thousand,
next to one link as fast as both that loses as many: what order adds to the loss. `tunnel`: two
links next to one, both with the tenant in tunnels (VXLAN). `switched`: the same with `order =
"switched"`, where each frame leaves by itself. There is no delay beside the queues'; with delay,
and at full rates, the simulator shows it (`levada-sim bonding`).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from lab import watched
from lab.kept import Kept
from lab.net import Failed, Lab
from lab.report import Claim, Report, at_least, at_most, middle, part_of
from lab.stats import table
from lab.switches.levada_bond import LevadaBond
from lab.switches.levada_bond_tunnel import LevadaBondTunnel
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, TcpFlow, UdpFlow

MBIT = 1_000_000
#: A twentieth of the published links, so that the machine carries eight; and a tenth.
SLOW_BPS, FAST_BPS = 50 * MBIT, 100 * MBIT
CONNECTIONS = (1, 4, 64)
#: One frame of so many is lost.
LOSES_ONE_OF = 1000
#: UDP offered, of what all links carry.
OFFERED = 0.9
UDP_PAYLOAD, UDP_WIRE = 1448, 1448 + 8 + 20 + 14 + 4 + 24
TCP_S, LOSS_S, UDP_S = 4, 8, 4
#: Left out of a connection's time: slow start, and the end.
LEAD_S, TAIL_S = 1.0, 0.5
NUMBERED_S = 5.0

LINKS_PERCENT, UNEQUAL_PERCENT, LOSS_PERCENT = 98.0, 97.0, 95.0
#: Which frames are lost is chance, and so is part of the rate.
MOST_LOSS_PERCENT = 105.0


@dataclass(frozen=True)
class Links:
    """What is between the hosts: rates in bit/s, and one of how many frames is lost (0: none)."""

    rates: tuple[int, ...]
    loses_one_of: int = 0

    def name(self) -> str:
        """In words."""
        count = {rate: self.rates.count(rate) for rate in self.rates}
        rates = " + ".join(f"{n} x {rate // MBIT}" for rate, n in count.items())
        return f"{rates} Mbit/s" + (f", 1 of {self.loses_one_of} lost" if self.loses_one_of else "")


@dataclass(frozen=True)
class Part:
    """A part: sets of links, connections at a time, and whether UDP is counted."""

    name: str
    links: tuple[Links, ...]
    connections: tuple[int, ...]
    udp: bool
    seconds: int
    #: Rounds of a quick run, and of a full one.
    rounds: tuple[int, int]
    #: `order` of the bond, and what makes the hosts.
    order: str = "auto"
    switch: type[LevadaBond] = LevadaBond


LINKS = Part(
    "links",
    tuple(Links((SLOW_BPS,) * n) for n in (1, 2, 4, 8)),
    CONNECTIONS,
    True,
    TCP_S,
    (3, 9),
)
UNEQUAL = Part(
    "unequal",
    (
        Links((FAST_BPS,)),
        Links((FAST_BPS // 10,)),
        Links((FAST_BPS, FAST_BPS // 10)),
    ),
    CONNECTIONS,
    True,
    TCP_S,
    (5, 9),
)
LOSS = Part(
    "loss",
    (
        Links((FAST_BPS,), LOSES_ONE_OF),
        Links((FAST_BPS // 2,) * 2, LOSES_ONE_OF),
    ),
    (1,),
    False,
    LOSS_S,
    (7, 15),
)
#: One link, and two, in ways other than plain VLANs over cables.
_TWO = (Links((FAST_BPS,)), Links((FAST_BPS,) * 2))
TUNNEL = Part("tunnel", _TWO, (1,), True, TCP_S, (5, 9), switch=LevadaBondTunnel)
SWITCHED = Part("switched", _TWO, (1,), True, TCP_S, (5, 9), order="switched")
PARTS = {part.name: part for part in (LINKS, UNEQUAL, LOSS, TUNNEL, SWITCHED)}


@dataclass(frozen=True)
class Tcp:
    """Connections over some links, in one round."""

    links: Links
    round: int
    connections: int
    goodput_bps: float
    #: Segments sent, those sent again, and those that the receiver found out of order.
    sent: int
    again: int
    out_of_order: int
    #: Frames with numbers that came too late to wait for, and numbers given up; both hosts.
    late: int
    lost: int


@dataclass(frozen=True)
class Udp:
    """Numbered datagrams over some links. What the hosts' queues and sockets drop, where the
    machine does not run them, is lost too; the bond's part is the frames that came too late to wait
    for, and the numbers given up."""

    links: Links
    sent: int
    lost: int
    out_of_order: int
    late: int
    given_up: int


def topology() -> Topology:
    """Two hosts, an endpoint each."""
    ends = (Endpoint("a0", "a", "h0"), Endpoint("a1", "a", "h1"))
    return Topology((Tenant("a"),), ends, (Host("h0", FAST_BPS), Host("h1", FAST_BPS)))


def play(lab: Lab, part: Part, quick: bool, report: Report, kept: Kept) -> None:
    """Plays the rounds of a part that are not kept, and adds what was found to a report."""
    rounds = part.rounds[0 if quick else 1]
    report.parameters[part.name] = {
        "rounds": rounds,
        "seconds": part.seconds,
        "links": [links.name() for links in part.links],
    }
    found = watched.fill(
        watched.part(kept, part.name, report.parameters[part.name], _read),
        [(turn,) for turn in range(rounds)],
        nullcontext,
        lambda _, key: _round(lab, part, quick, key[0]),
    )
    tcp, udp = _all([one.found for one in found])
    report.cells += [
        _row(part, counted) | one.marks for one in found for some in one.found for counted in some
    ]
    report.tables += [tcp_table(part, tcp), *([udp_table(udp)] if udp else [])]
    report.claims += CLAIMS[part.name](*_all(watched.valid(found)), tcp)


def _all(rounds: Sequence[tuple[list[Tcp], list[Udp]]]) -> tuple[list[Tcp], list[Udp]]:
    """What was found in some rounds."""
    tcp = [one for some, _ in rounds for one in some]
    return tcp, [one for _, some in rounds for one in some]


def _round(lab: Lab, part: Part, quick: bool, turn: int) -> dict[str, list[dict[str, Any]]]:
    """Plays all sets of links once."""
    tcp: list[Tcp] = []
    udp: list[Udp] = []
    for links in part.links:
        options: dict[str, object] = {"order": part.order}
        switch = part.switch(
            lab, topology(), links.rates, options=options, loses_one_of=links.loses_one_of
        )
        with switch.running():
            _wait_for_numbers(switch)
            for connections in part.connections:
                # One connection is what is claimed of; the others once, in a quick run.
                if connections == 1 or turn == 0 or not quick:
                    tcp.append(_tcp(switch, links, turn, connections, part.seconds))
            if part.udp and turn == 0:
                udp.append(_udp(switch, links))
    return {"tcp": [asdict(t) for t in tcp], "udp": [asdict(u) for u in udp]}


def _read(row: dict[str, Any]) -> tuple[list[Tcp], list[Udp]]:
    """A round, of what JSON has of it."""
    return [_of(Tcp, one) for one in row["tcp"]], [_of(Udp, one) for one in row["udp"]]


Counted = TypeVar("Counted", Tcp, Udp)


def _of(kind: type[Counted], row: dict[str, Any]) -> Counted:
    """What `asdict` has made a row of, after JSON."""
    links = Links(tuple(row["links"]["rates"]), row["links"]["loses_one_of"])
    return kind(**{**row, "links": links})


def _wait_for_numbers(switch: LevadaBond) -> None:
    deadline = time.monotonic() + NUMBERED_S
    while switch.links > 1 and not all(o["numbered"] for o in orders(switch)):
        if time.monotonic() > deadline:
            raise Failed(f"frames have no numbers: {orders(switch)}")
        time.sleep(0.05)


def orders(switch: LevadaBond) -> list[dict[str, int]]:
    """What both hosts have counted of order; nothing with one link."""
    uplinks = [s["uplink"] for s in switch.sample()["switches"]]
    return [uplink["bond"]["order"] for uplink in uplinks if uplink.get("bond")]


def _tcp(switch: LevadaBond, links: Links, turn: int, connections: int, seconds: int) -> Tcp:
    before = _counted(switch)
    flow = TcpFlow("tcp", "a0", "a1", connections)
    flow.begin(switch.guests["a0"], switch.guests["a1"], FIRST_PORT, seconds)
    goodput = flow.end().goodput_bps(LEAD_S, seconds - TAIL_S)
    counted = [last - first for first, last in zip(before, _counted(switch), strict=True)]
    found = Tcp(links, turn, connections, goodput, *counted)
    _say(
        f"{links.name()}, {connections} TCP: {goodput / MBIT:.1f} Mbit/s, {found.again} of"
        f" {found.sent} sent again, {found.out_of_order} out of order, {found.late} late"
    )
    return found


def _counted(switch: LevadaBond) -> list[int]:
    sender, receiver = (switch.guests[name].namespace.counters() for name in ("a0", "a1"))
    kernels = [sender["TcpOutSegs"], sender["TcpRetransSegs"], receiver["TcpExtTCPOFOQueue"]]
    return [*kernels, *(sum(o[key] for o in orders(switch)) for key in ("late", "lost"))]


def _udp(switch: LevadaBond, links: Links) -> Udp:
    rate = OFFERED * sum(links.rates) * UDP_PAYLOAD / UDP_WIRE
    before = _counted(switch)[-2:]
    flow = UdpFlow("udp", "a0", "a1", rate, UDP_PAYLOAD)
    flow.begin(switch.guests["a0"], switch.guests["a1"], FIRST_PORT + 1, UDP_S)
    told = flow.end().detail
    bond = [last - first for first, last in zip(before, _counted(switch)[-2:], strict=True)]
    counts = told["packets"], told["lost_packets"], told["out_of_order"]
    found = Udp(links, *counts, *bond)
    _say(
        f"{links.name()}, UDP: {found.lost} of {found.sent} lost,"
        f" {found.out_of_order} out of order, {found.late} late, {found.given_up} given up"
    )
    return found


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr)


# --- judging ------------------------------------------------------------------------------


def percent(
    tcp: Sequence[Tcp],
    links: Links,
    of: Sequence[Links],
    played: Sequence[Tcp],
    connections: int = 1,
) -> float | None:
    """What connections have over some links, of the sum of what they have over each of `of` in the
    same round; the median over the rounds that count, of all that were `played`."""
    found: dict[tuple[Links, int], float] = {
        (t.links, t.round): t.goodput_bps for t in tcp if t.connections == connections
    }
    ratios = []
    for turn in {turn for _, turn in found}:
        parts = [found.get((one, turn)) for one in of]
        whole = found.get((links, turn))
        if whole is None or not all(parts):
            continue
        ratios.append(100 * whole / sum(part for part in parts if part))
    rounds = {t.round for t in played if t.connections == connections}
    return middle(ratios, len(rounds))


def _links_claims(tcp: Sequence[Tcp], udp: Sequence[Udp], played: Sequence[Tcp]) -> list[Claim]:
    one, *more = LINKS.links
    claims = []
    for links in more:
        n = len(links.rates)
        part = percent(tcp, links, [one] * n, played)
        claims.append(
            part_of(f"one TCP over {n} links, of {n} x one link", part, "%", LINKS_PERCENT)
        )
    return claims + _udp_claims(udp)


def _unequal_claims(tcp: Sequence[Tcp], udp: Sequence[Udp], played: Sequence[Tcp]) -> list[Claim]:
    fast, slow, both = UNEQUAL.links
    claims = [
        part_of(
            f"{n} TCP over {both.name()}, of the sum of each alone",
            percent(tcp, both, [fast, slow], played, n),
            "%",
            UNEQUAL_PERCENT,
        )
        for n in UNEQUAL.connections
    ]
    return [*claims, *_udp_claims(udp)]


def _loss_claims(tcp: Sequence[Tcp], udp: Sequence[Udp], played: Sequence[Tcp]) -> list[Claim]:
    one, two = LOSS.links
    part = percent(tcp, two, [one], played)
    # That frames were lost at all: what is sent again.
    sent, again = (sum(getattr(t, key) for t in tcp if t.links == two) for key in ("sent", "again"))
    lost = 100 * again / sent if sent else None
    name = "one TCP over two links that lose 0.1 %, of one as fast as both that does"
    return [
        part_of(name, part, "%", LOSS_PERCENT, MOST_LOSS_PERCENT),
        at_least("segments sent again over two links", lost, "%", 0.05),
    ]


def _udp_claims(udp: Sequence[Udp]) -> list[Claim]:
    several = [u for u in udp if len(u.links.rates) > 1]
    disordered = sum(u.out_of_order + u.late for u in several)
    given_up = sum(u.given_up for u in several)
    what = f"UDP at {100 * OFFERED:g} % of several links"
    return [
        at_most(f"{what}: out of order", float(disordered) if several else None, "", 0),
        at_most(f"{what}: given up", float(given_up) if several else None, "", 0),
    ]


def _two_claims(tcp: Sequence[Tcp], udp: Sequence[Udp], played: Sequence[Tcp]) -> list[Claim]:
    one, two = _TWO
    part = percent(tcp, two, [one] * 2, played)
    name = "one TCP over two links, of two times one link in the same way"
    return [part_of(name, part, "%", LINKS_PERCENT), *_udp_claims(udp)]


CLAIMS = {
    "links": _links_claims,
    "unequal": _unequal_claims,
    "loss": _loss_claims,
    "tunnel": _two_claims,
    "switched": _two_claims,
}


# --- showing ------------------------------------------------------------------------------


def tcp_table(part: Part, tcp: Sequence[Tcp]) -> str:
    """What TCP had: medians over rounds, and sums of what was counted."""
    rows = []
    for links in part.links:
        for connections in part.connections:
            found = [t for t in tcp if (t.links, t.connections) == (links, connections)]
            if not found:
                continue
            rates = sorted(t.goodput_bps / MBIT for t in found)
            sums = (sum(getattr(t, key) for t in found) for key in COUNTED)
            row = [links.name(), str(connections), f"{statistics.median(rates):.1f}"]
            rows.append([*row, f"{rates[0]:.1f} to {rates[-1]:.1f}", *map(str, sums)])
    head = ["links", "TCP", "Mbit/s", "from, to", "segments", "sent again", "out of order"]
    return table([*head, "late", "given up"], rows)


COUNTED = ("sent", "again", "out_of_order", "late", "lost")


def udp_table(udp: Sequence[Udp]) -> str:
    """What became of datagrams."""
    counts = ("sent", "lost", "out_of_order", "late", "given_up")
    rows = [[u.links.name(), *(str(getattr(u, key)) for key in counts)] for u in udp]
    return table(["links", "datagrams", "lost", "out of order", "late", "given up"], rows)


def _row(part: Part, found: Tcp | Udp) -> dict[str, object]:
    labels = {"part": part.name, "links": found.links.name()}
    return {"labels": labels, **asdict(found)}
