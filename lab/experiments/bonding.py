"""One connection over two links between two hosts, each running Levada, and a pulled cable.

NetPIPE's curve over two links in round robin (`balance-rr`), plain and with numbers, stands next to
that of one link alone. UDP counts what the links carry together. One connection (cubic) takes what
it gets, and another is paced below what the links carry, so that it loses nothing by congestion:
what the kernels count of it, out of order and sent again, is disorder. Last, a cable is pulled
under a TCP connection and a thousand datagrams a second. The links run at a stated fraction of
1 Gbit/s, as fast as the lab's machine carries with time to spare.

Nothing is claimed of message sizes beside each other here. That is the part `two`, which a quick
run plays where `--only` names no other; the parts `links`, `unequal` and `loss` are in
`lab.experiments.bonding_links`, `faults` (silent and flapping links too, and other modes) in
`lab.experiments.bonding_faults`, `modes` (NetPIPE in each mode) in
`lab.experiments.bonding_modes`, `netpipe` (containers and virtual machines, and message sizes
beside each other) in `lab.experiments.bonding_netpipe`, `peers` (Multipath TCP) in
`lab.experiments.bonding_peers`, and `kernel` (Linux's bonding driver in virtual machines) in
`lab.experiments.bonding_kernel`.

A full run takes 115 minutes (`MINUTES`). It keeps what it has measured in `cells.jsonl` beside the
report: one that was interrupted goes on where it was. What is compared, such as two setups here or
two curves of `netpipe`, may then be of several starts, which the report says; ratios within a round
are of one. What others disturbed (`lab.watched`) is shown, not judged, and played again where the
run goes on. A quick run, one after a run that ended, and one after an edit of the lab (`lab.kept`)
begin anew.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import container, guest, machine, netpipe, watched
from lab.experiments import (
    bonding_faults,
    bonding_kernel,
    bonding_links,
    bonding_modes,
    bonding_netpipe,
    bonding_peers,
)
from lab.experiments.restart import longest_gap
from lab.kept import Kept, Key, digest_with_lab
from lab.net import Lab, missing_tools
from lab.netpipe import Point
from lab.programs import Builds, Missing, program
from lab.report import Claim, Report, at_least, at_most, part_of
from lab.stats import table
from lab.switches.levada_bond import LevadaBond
from lab.switches.multipath import MPTCPIZE
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, Guest, Stream, TcpFlow, UdpFlow

SUMMARY = "one TCP connection over several links, next to one link, and a cable pulled"
#: Repetitions of `two` in a quick run and in a full one.
TIMES = {True: 1, False: 3}
#: How often a full run repeats each part, and how many minutes that takes each time: of `netpipe`
#: as measured, of others by their times and single curves. A quick run of one takes 3 at most.
REPEATED = {
    "two": (TIMES[False], 2.7),
    "links": (bonding_links.LINKS.rounds[1], 1.0),
    "unequal": (bonding_links.UNEQUAL.rounds[1], 0.8),
    "loss": (bonding_links.LOSS.rounds[1], 0.35),
    "tunnel": (bonding_links.TUNNEL.rounds[1], 0.2),
    "switched": (bonding_links.SWITCHED.rounds[1], 0.2),
    "faults": (bonding_faults.ROUNDS[1], 1.3),
    "modes": (bonding_modes.ROUNDS[1], 2.5),
    "netpipe": (bonding_netpipe.TIMES[False], 9.4),
    "peers": (bonding_peers.ROUNDS[False], 2.0),
    "kernel": (bonding_kernel.ROUNDS[False], 5.7),
}
#: How long each part takes in a full run.
MINUTES = {part: times * minutes for part, (times, minutes) in REPEATED.items()}
#: What `--only` takes.
PARTS = tuple(MINUTES)
#: What is started beside the program; and what parts start beside that.
TOOLS = ("ip", "tc", "ss", "sysctl", "ping", "ethtool", "iperf3", "NPtcp")
TOOLS_OF: dict[str, tuple[str, ...]] = {
    "netpipe": (*container.TOOLS, *guest.TOOLS),
    "peers": MPTCPIZE[:1],
    "kernel": tuple(guest.TOOLS),
}

MBIT = 1_000_000
#: A tenth of the published links.
LINK_BPS = 100 * MBIT
LINKS = 2
#: What the published experiment read off NetPIPE, in its Mbit of 2^20, of two links of 1 Gbit/s:
#: 1800, which is 1887 Mbit/s of 2 x 941.
PUBLISHED_PERCENT = 100 * 1800 * netpipe.MBIT / (2 * 941 * MBIT)

#: UDP payload offered, of what all links carry: more than fits.
OFFERED = 1.05
UDP_S = 5
UDP_PAYLOAD = 1448
#: Wire bytes of such a datagram: headers, the tenant's tag, FCS, preamble and gap.
UDP_WIRE = UDP_PAYLOAD + 8 + 20 + 14 + 4 + 24
#: Of the wire's rate: what is lost between two clocks of the machine.
CARRIED_PERCENT = 98.0

#: The connection under which a cable is pulled has so much of one link, so that it fits after.
PULL_PART = 0.8
#: A paced connection has so much of all links: headers and all, it fits.
PACED_PART = 0.85
TCP_S = 6
#: Of what the kernel finds out of order of it in plain round robin; what is lost on a busy machine
#: has others out of order too, over one link also.
DISORDER_PERCENT = 5.0
DATAGRAMS_PER_S = 1000
DATAGRAM_BYTES = 100
PULL_LEAD_S = 2.0
PULL_REST_S = 3.0
#: What is asked of round robin with numbers: the longest time without a frame. Here it is looked at
#: where a TCP connection's receiver reads, so what TCP, and both ends' turns of the processor, take
#: is in it; the part `faults` has it of datagrams.
MOST_GAP_MS = 5.0


#: What is measured: links, and `order`.
Setup = tuple[int, str]
ONE: Setup = (1, "auto")
PLAIN: Setup = (LINKS, "off")
NUMBERED: Setup = (LINKS, "auto")
SETUPS = (ONE, PLAIN, NUMBERED)


def name_of(setup: Setup) -> str:
    """In words."""
    links, order = setup
    if links == 1:
        return "1 link"
    return f"{links} links, {'numbered' if order == 'auto' else 'plain'}"


@dataclass(frozen=True)
class Curve:
    """NetPIPE over so many links."""

    setup: Setup
    points: list[Point]


@dataclass(frozen=True)
class Connection:
    """What the kernels and the bonds counted of one TCP connection."""

    setup: Setup
    is_paced: bool
    goodput_bps: float
    #: Segments sent, those sent again, and those that came out of order.
    sent: int
    again: int
    out_of_order: int
    #: Frames with numbers: those that waited for an earlier one, those that came too late for it,
    #: and numbers given up.
    held: int
    late: int
    lost: int


@dataclass(frozen=True)
class Pulled:
    """What a pulled cable did."""

    gap_ms: float
    broken: int
    sent: int
    lost: int
    failures: int
    #: Hosts whose frames had numbers before; frames that until then had come after later ones had
    #: gone on.
    numbered: int
    late: int


@dataclass(frozen=True)
class Seen:
    """All that was measured of one setup."""

    curves: list[Curve]
    #: Wire bits a second of UDP.
    carried: float
    connections: list[Connection]
    pulled: Pulled | None

    @classmethod
    def of(cls, row: dict[str, Any]) -> Seen:
        """Of what `asdict` has made of one, after JSON."""
        return cls(
            [
                Curve(tuple(curve["setup"]), [Point(**p) for p in curve["points"]])
                for curve in row["curves"]
            ],
            row["carried"],
            [Connection(**{**one, "setup": tuple(one["setup"])}) for one in row["connections"]],
            Pulled(**row["pulled"]) if row["pulled"] else None,
        )


def topology() -> Topology:
    """Two hosts, an endpoint each."""
    ends = (Endpoint("a0", "a", "h0"), Endpoint("a1", "a", "h1"))
    return Topology((Tenant("a"),), ends, (Host("h0", LINK_BPS), Host("h1", LINK_BPS)))


def run(lab: Lab, quick: bool, out: Path, only: str | None = None) -> Report:
    """The part that `only` names; else all, but in a quick run the first."""
    parts = PARTS[: 1 if quick else None] if only is None else (only,)
    tools = list(dict.fromkeys([*TOOLS, *(t for part in parts for t in TOOLS_OF.get(part, ()))]))
    # All at once: with a tool more, a run that goes on would begin anew.
    missing = missing_tools(tools)
    if missing:
        raise Missing(f"bonding needs {', '.join(missing)}: tools/setup guests peers")
    out.mkdir(parents=True, exist_ok=True)
    report = Report("bonding", quick)
    report.machine = machine.describe([*tools, str(program())])
    builds = Builds.all()
    made_of = digest_with_lab(program(), report.machine, only)
    kept = Kept(None if quick else out / "cells.jsonl", made_of, builds=builds)
    for number, part in enumerate(parts):
        if not quick:
            minutes = sum(MINUTES[later] for later in parts[number:])
            _say(f"{part}: part {number + 1} of {len(parts)}, about {minutes:.0f} min left")
        _play(part, lab, quick, out, report, kept)
    report.parameters |= kept.resumed()
    report.on_disk.append(kept.end)
    return report


def _play(part: str, lab: Lab, quick: bool, out: Path, report: Report, kept: Kept) -> None:
    if part == "two":
        _play_two(lab, quick, out, report, kept)
    elif part == "faults":
        bonding_faults.play(lab, quick, report, kept)
    elif part == "modes":
        bonding_modes.play(lab, quick, out, report, kept)
    elif part == "netpipe":
        bonding_netpipe.play(lab, quick, out, report, kept)
    elif part == "peers":
        bonding_peers.play(lab, quick, out, report, kept)
    elif part == "kernel":
        bonding_kernel.play(lab, quick, report, kept)
    else:
        bonding_links.play(lab, bonding_links.PARTS[part], quick, report, kept)


def _play_two(lab: Lab, quick: bool, out: Path, report: Report, kept: Kept) -> None:
    """One link, two links, a cable pulled."""
    times = TIMES[quick]
    report.parameters["two"] = _parameters(times)

    def play(_: None, setup: Key) -> dict[str, Any]:
        # A curve takes most of the time.
        curves = 0 if quick and setup == PLAIN else times
        return asdict(_seen(lab, setup, curves, out))

    mine = watched.part(kept, "two", report.parameters["two"], Seen.of)
    played = dict(zip(SETUPS, watched.fill(mine, SETUPS, nullcontext, play), strict=True))
    seen = {setup: one.found for setup, one in played.items()}
    curves = [curve for one in seen.values() for curve in one.curves]
    carried = {setup: one.carried for setup, one in seen.items()}
    connections = [connection for one in seen.values() for connection in one.connections]
    pulled = {setup: one.pulled for setup, one in seen.items() if one.pulled}
    rows = [
        *((c.setup, row) for c in curves for row in _rows(c)),
        *((setup, _carried_row(setup, bps)) for setup, bps in carried.items()),
        *((c.setup, {"labels": {"tcp": name_of(c.setup)}, **asdict(c)}) for c in connections),
        *((setup, _pulled_row(setup, found)) for setup, found in pulled.items()),
    ]
    report.cells += [row | played[setup].marks for setup, row in rows]
    report.tables += [
        curves_table(curves),
        connections_table(connections),
        summary_table(curves, carried, pulled),
    ]
    counts = {setup for setup, one in played.items() if one.disturbed is None}
    report.claims += claims(
        [curve for curve in curves if curve.setup in counts],
        [connection for connection in connections if connection.setup in counts],
        pulled[NUMBERED] if NUMBERED in counts else None,
    )


def _seen(lab: Lab, setup: Setup, times: int, out: Path) -> Seen:
    """Plays one setup, with so many curves."""
    links, order = setup
    switch = LevadaBond(lab, topology(), [LINK_BPS] * links, options={"order": order})
    with switch.running():
        return Seen(
            [
                _curve(switch, setup, out / f"netpipe-{links}-{order}-{turn}.txt")
                for turn in range(times)
            ],
            _carried(switch, setup),
            [_connection(switch, setup, is_paced) for is_paced in (False, True)],
            _pull(switch, setup) if links == LINKS else None,
        )


def _parameters(times: int) -> dict[str, Any]:
    return {
        "link_bps": LINK_BPS,
        "links": LINKS,
        "mode": "balance-rr",
        "times": times,
        "published_percent": PUBLISHED_PERCENT,
    }


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr)


def _curve(switch: LevadaBond, setup: Setup, file: Path) -> Curve:
    src, dst = switch.guests["a0"], switch.guests["a1"]
    curve = Curve(setup, netpipe.play(src, dst, file))
    _say(f"NetPIPE over {name_of(setup)}: {netpipe.plateau(curve.points) / MBIT:.1f} Mbit/s")
    return curve


def _carried(switch: LevadaBond, setup: Setup) -> float:
    """Wire bits a second that arrive of more than fits."""
    rate = OFFERED * setup[0] * LINK_BPS * UDP_PAYLOAD / UDP_WIRE
    flow = UdpFlow("udp", "a0", "a1", rate, UDP_PAYLOAD)
    flow.begin(switch.guests["a0"], switch.guests["a1"], FIRST_PORT, UDP_S)
    goodput = flow.end().goodput_bps(1, UDP_S - 1)
    wire = goodput * UDP_WIRE / UDP_PAYLOAD
    _say(f"UDP over {name_of(setup)}: {wire / MBIT:.1f} Mbit/s of the wire")
    return wire


def _connection(switch: LevadaBond, setup: Setup, is_paced: bool) -> Connection:
    """One TCP connection for some seconds."""
    src, dst = switch.guests["a0"], switch.guests["a1"]
    before, orders = _counted(src, dst), _orders(switch)
    if is_paced:
        stream = Stream("paced", "a0", "a1", round(PACED_PART * setup[0] * LINK_BPS))
        stream.begin(src, dst, FIRST_PORT + 3, TCP_S + 5)
        begin = time.monotonic()
        time.sleep(TCP_S)
        stream.end()
        goodput = stream.goodput_bps(begin + 1, begin + TCP_S - 1)
    else:
        flow = TcpFlow("bulk", "a0", "a1")
        flow.begin(src, dst, FIRST_PORT + 4, TCP_S)
        goodput = flow.end().goodput_bps(1, TCP_S - 0.5)
    after, orders_after = _counted(src, dst), _orders(switch)
    found = Connection(
        setup,
        is_paced,
        goodput,
        *(last - first for first, last in zip(before, after, strict=True)),
        *(last - first for first, last in zip(orders, orders_after, strict=True)),
    )
    what = "paced" if is_paced else "one connection"
    _say(
        f"{what} over {name_of(setup)}: {goodput / MBIT:.1f} Mbit/s, {found.again} of {found.sent}"
        f" sent again, {found.out_of_order} out of order, {found.late} late"
    )
    return found


def _counted(src: Guest, dst: Guest) -> tuple[int, int, int]:
    """Segments sent and sent again by one, and those that came to the other out of order."""
    sender, receiver = src.namespace.counters(), dst.namespace.counters()
    return sender["TcpOutSegs"], sender["TcpRetransSegs"], receiver["TcpExtTCPOFOQueue"]


def _orders(switch: LevadaBond) -> tuple[int, int, int]:
    """Frames held and late, and numbers given up, at both hosts."""
    orders = [bond.get("order") or {} for bond in _bonds(switch)]
    held, late, lost = (sum(o.get(key, 0) for o in orders) for key in ("held", "late", "lost"))
    return held, late, lost


def _pull(switch: LevadaBond, setup: Setup) -> Pulled:
    src, dst = switch.guests["a0"], switch.guests["a1"]
    seconds = int(PULL_LEAD_S + PULL_REST_S) + 1
    stream = Stream("pull", "a0", "a1", round(PULL_PART * LINK_BPS))
    stream.begin(src, dst, FIRST_PORT + 1, seconds + 5)
    bits = DATAGRAMS_PER_S * DATAGRAM_BYTES * 8
    datagrams = UdpFlow("datagrams", "a0", "a1", bits, DATAGRAM_BYTES)
    datagrams.begin(src, dst, FIRST_PORT + 2, seconds)
    time.sleep(PULL_LEAD_S)
    orders = [bond.get("order") or {} for bond in _bonds(switch)]
    begin = time.monotonic()
    switch.pull(LINKS - 1)
    time.sleep(PULL_REST_S)
    counted = datagrams.end().detail
    told = stream.end().detail
    failures = sum(m["failures"] for bond in _bonds(switch) for m in bond["members"])
    pulled = Pulled(
        1000 * gap_s(stream.arrivals[0], begin),
        len(told["broken"]) + told["ended_early"],
        counted["packets"],
        counted["lost_packets"],
        failures,
        sum(order.get("numbered", False) for order in orders),
        sum(order.get("late", 0) for order in orders),
    )
    lost = f"{pulled.lost} of {pulled.sent} datagrams lost"
    _say(f"pulled, {name_of(setup)}: gap {pulled.gap_ms:.1f} ms, {lost}")
    return pulled


def gap_s(arrivals: Sequence[tuple[float, int]], pulled_s: float) -> float:
    """The longest time without data since a cable was pulled; to the end of what is watched, where
    nothing comes any more."""
    return longest_gap(arrivals, pulled_s - 0.1, pulled_s + PULL_REST_S)


def _bonds(switch: LevadaBond) -> list[dict[str, Any]]:
    uplinks = [s["uplink"] for s in switch.sample()["switches"]]
    return [uplink["bond"] for uplink in uplinks if uplink.get("bond")]


# --- judging ------------------------------------------------------------------------------


def claims(
    curves: Sequence[Curve], connections: Sequence[Connection], pulled: Pulled | None
) -> list[Claim]:
    """What round robin with numbers promises. None: what was pulled does not count."""
    plain, numbered = (
        [c.out_of_order for c in connections if c.setup == setup and c.is_paced]
        for setup in (PLAIN, NUMBERED)
    )
    disorder = 100 * sum(numbered) / sum(plain) if sum(plain) and numbered else None

    def of(field: str) -> float | None:
        return None if pulled is None else float(getattr(pulled, field))

    return [
        part_of(
            f"NetPIPE over {LINKS} links, of {LINKS} x one link",
            percent_of_links(curves, NUMBERED),
            "%",
            CARRIED_PERCENT,
        ),
        at_most(
            "paced connection with numbers: segments out of order, of those in plain round robin",
            disorder,
            "%",
            DISORDER_PERCENT,
        ),
        at_least("hosts whose frames have numbers", of("numbered"), "", 2),
        at_most("frames that came late", of("late"), "", 0),
        at_most("cable pulled: datagrams lost", of("lost"), "", 0),
        at_most("cable pulled: connections lost", of("broken"), "", 0),
        at_most("cable pulled: longest gap of the connection", of("gap_ms"), "ms", MOST_GAP_MS),
        at_least("cable pulled: members that the hosts gave up", of("failures"), "", 2),
    ]


def percent_of_links(curves: Sequence[Curve], setup: Setup) -> float | None:
    """What one connection has over all links, of so many times what it has over one."""
    one, all_links = (
        _middle([netpipe.plateau(c.points) for c in curves if c.setup == wanted])
        for wanted in (ONE, setup)
    )
    return 100 * all_links / (setup[0] * one) if one and all_links else None


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


# --- showing ------------------------------------------------------------------------------


def curves_table(curves: Sequence[Curve]) -> str:
    """Payload rate and time one way by message size, beside each other."""
    sizes = sorted({p.nbytes for c in curves for p in c.points})
    rows = []
    for size in sizes:
        row = [str(size)]
        for setup in SETUPS:
            found = [p for c in curves if c.setup == setup for p in c.points if p.nbytes == size]
            row.append(f"{_middle([p.bps for p in found]) / MBIT:.2f}" if found else "")
            row.append(f"{1e6 * _middle([p.seconds for p in found]):.1f}" if found else "")
        rows.append(row)
    head = ["bytes", *(word for setup in SETUPS for word in (f"{name_of(setup)} Mbit/s", "us"))]
    return table(head, rows)


def connections_table(connections: Sequence[Connection]) -> str:
    """What became of TCP connections."""
    rows = [
        [
            name_of(c.setup),
            "paced" if c.is_paced else "all it gets",
            f"{c.goodput_bps / MBIT:.1f}",
            *(str(n) for n in (c.sent, c.again, c.out_of_order, c.held, c.late, c.lost)),
        ]
        for c in connections
    ]
    head = ["one TCP over", "", "Mbit/s", "segments", "sent again", "out of order"]
    return table([*head, "frames held", "late", "given up"], rows)


def summary_table(
    curves: Sequence[Curve], carried: dict[Setup, float], pulled: dict[Setup, Pulled]
) -> str:
    """The figures that are claims, and those that are none."""
    rows = []
    for setup in (PLAIN, NUMBERED):
        part = percent_of_links(curves, setup)
        what = f"NetPIPE, 1 MiB and more, {name_of(setup)}"
        rows.append([what, f"{part:.1f} % of both" if part else "-"])
    rows.append(["published, of 2 x 941 Mbit/s", f"{PUBLISHED_PERCENT:.1f} %"])
    for setup, bps in carried.items():
        rows.append([f"UDP, {name_of(setup)}", f"{bps / MBIT:.1f} Mbit/s of the wire"])
    for setup, found in pulled.items():
        lost = f"{found.lost} of {found.sent} datagrams lost, gap {found.gap_ms:.1f} ms"
        rows.append([f"cable pulled, {name_of(setup)}", lost])
    return table(["what", "measured"], rows)


def _rows(curve: Curve) -> list[dict[str, Any]]:
    return [
        {"labels": {"netpipe": name_of(curve.setup), "bytes": p.nbytes}, **asdict(p)}
        for p in curve.points
    ]


def _carried_row(setup: Setup, bps: float) -> dict[str, Any]:
    return {"labels": {"udp over": name_of(setup)}, "wire_bps": bps}


def _pulled_row(setup: Setup, pulled: Pulled) -> dict[str, Any]:
    return {"labels": {"cable pulled": name_of(setup)}, **asdict(pulled)}
