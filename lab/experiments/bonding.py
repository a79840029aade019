"""One connection over two links between two hosts, each running Levada, and a pulled cable.

NetPIPE's curve over two links in round robin (`balance-rr` with numbers) stands next to that of one
link alone, in the same run. Then UDP counts what the links carry together, and a cable is pulled
under a TCP connection and a thousand datagrams a second. The links run at a stated fraction of
1 Gbit/s, as fast as the lab's machine carries with time to spare.

Nothing is claimed of message sizes beside each other.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import machine, netpipe
from lab.net import Lab, missing_tools
from lab.netpipe import Point
from lab.programs import Missing, program
from lab.report import Claim, Report, at_least, at_most
from lab.stats import table
from lab.switches.levada_bond import LevadaBond
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, Stream, UdpFlow

SUMMARY = "one TCP connection over two links, next to one link, and a cable pulled"

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
DATAGRAMS_PER_S = 1000
DATAGRAM_BYTES = 100
PULL_LEAD_S = 2.0
PULL_REST_S = 3.0
#: The claim's bound is the issue's for modes that lose frames, counted at the receiver of a TCP
#: connection, which waits for a retransmission besides.
MOST_GAP_MS = 250.0


@dataclass(frozen=True)
class Curve:
    """NetPIPE over so many links."""

    links: int
    points: list[Point]


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


def topology() -> Topology:
    """Two hosts, an endpoint each."""
    ends = (Endpoint("a0", "a", "h0"), Endpoint("a1", "a", "h1"))
    return Topology((Tenant("a"),), ends, (Host("h0", LINK_BPS), Host("h1", LINK_BPS)))


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """One link, two links, a cable pulled."""
    missing = missing_tools(["NPtcp", "ss"])
    if missing:
        raise Missing(f"bonding needs {', '.join(missing)}: apt install netpipe-tcp iproute2")
    out.mkdir(parents=True, exist_ok=True)
    times = 1 if quick else 5
    report = Report("bonding", quick, parameters=_parameters(times))
    report.machine = machine.describe(["iperf3", "ip", str(program())])
    curves, carried = [], {}
    pulled = None
    for links in (1, LINKS):
        switch = LevadaBond(lab, topology(), links, options={"order": "auto"})
        with switch.running():
            for turn in range(times):
                curves.append(_curve(switch, links, out / f"netpipe-{links}-{turn}.txt"))
            carried[links] = _carried(switch, links)
            if links == LINKS:
                pulled = _pull(switch)
    assert pulled is not None
    report.cells = [*_rows(curves), *_carried_rows(carried), _pulled_row(pulled)]
    report.tables = [curves_table(curves), summary_table(curves, carried, pulled)]
    report.claims = claims(curves, pulled)
    return report


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


def _curve(switch: LevadaBond, links: int, file: Path) -> Curve:
    src, dst = switch.guests["a0"], switch.guests["a1"]
    curve = Curve(links, netpipe.play(src, dst, file))
    _say(f"NetPIPE over {links}: {netpipe.plateau(curve.points) / MBIT:.1f} Mbit/s")
    return curve


def _carried(switch: LevadaBond, links: int) -> float:
    """Wire bits a second that arrive of more than fits."""
    rate = OFFERED * links * LINK_BPS * UDP_PAYLOAD / UDP_WIRE
    flow = UdpFlow("udp", "a0", "a1", rate, UDP_PAYLOAD)
    flow.begin(switch.guests["a0"], switch.guests["a1"], FIRST_PORT, UDP_S)
    goodput = flow.end().goodput_bps(1, UDP_S - 1)
    wire = goodput * UDP_WIRE / UDP_PAYLOAD
    _say(f"UDP over {links}: {wire / MBIT:.1f} Mbit/s of the wire")
    return wire


def _pull(switch: LevadaBond) -> Pulled:
    src, dst = switch.guests["a0"], switch.guests["a1"]
    seconds = int(PULL_LEAD_S + PULL_REST_S) + 1
    stream = Stream("pull", "a0", "a1", round(PULL_PART * LINK_BPS))
    stream.begin(src, dst, FIRST_PORT + 1, seconds + 5)
    bits = DATAGRAMS_PER_S * DATAGRAM_BYTES * 8
    datagrams = UdpFlow("datagrams", "a0", "a1", bits, DATAGRAM_BYTES)
    datagrams.begin(src, dst, FIRST_PORT + 2, seconds)
    time.sleep(PULL_LEAD_S)
    orders = [bond["order"] for bond in _bonds(switch)]
    begin = time.monotonic()
    switch.pull(LINKS - 1)
    time.sleep(PULL_REST_S)
    counted = datagrams.end().detail
    told = stream.end().detail
    failures = sum(m["failures"] for bond in _bonds(switch) for m in bond["members"])
    times = [t for t, _ in stream.arrivals[0] if begin - 0.1 <= t <= begin + PULL_REST_S]
    gap = max((b - a for a, b in itertools.pairwise(times)), default=PULL_REST_S)
    pulled = Pulled(
        1000 * gap,
        len(told["broken"]) + told["ended_early"],
        counted["packets"],
        counted["lost_packets"],
        failures,
        sum(order["numbered"] for order in orders),
        sum(order["late"] for order in orders),
    )
    _say(f"pulled: gap {pulled.gap_ms:.1f} ms, {pulled.lost} of {pulled.sent} datagrams lost")
    return pulled


def _bonds(switch: LevadaBond) -> list[dict[str, Any]]:
    return [s["uplink"]["bond"] for s in switch.sample()["switches"]]


# --- judging ------------------------------------------------------------------------------


def claims(curves: Sequence[Curve], pulled: Pulled) -> list[Claim]:
    """What round robin with numbers promises."""
    return [
        at_least(
            f"NetPIPE over {LINKS} links, of {LINKS} x one link",
            percent_of_links(curves),
            "%",
            CARRIED_PERCENT,
        ),
        at_least("hosts whose frames have numbers", float(pulled.numbered), "", 2),
        at_most("frames that came late", float(pulled.late), "", 0),
        at_most("cable pulled: datagrams lost", float(pulled.lost), "", 0),
        at_most("cable pulled: connections lost", float(pulled.broken), "", 0),
        at_most("cable pulled: longest gap of the connection", pulled.gap_ms, "ms", MOST_GAP_MS),
        at_least("cable pulled: members that the hosts gave up", float(pulled.failures), "", 2),
    ]


def percent_of_links(curves: Sequence[Curve]) -> float | None:
    """What one connection has over all links, of so many times what it has over one."""
    median = {
        links: _middle([netpipe.plateau(c.points) for c in curves if c.links == links])
        for links in (1, LINKS)
    }
    return 100 * median[LINKS] / (LINKS * median[1]) if median[1] else None


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


# --- showing ------------------------------------------------------------------------------


def curves_table(curves: Sequence[Curve]) -> str:
    """Payload rate and time one way by message size, one link beside all."""
    sizes = sorted({p.nbytes for c in curves for p in c.points})
    rows = []
    for size in sizes:
        row = [str(size)]
        for links in (1, LINKS):
            found = [p for c in curves if c.links == links for p in c.points if p.nbytes == size]
            row.append(f"{_middle([p.bps for p in found]) / MBIT:.2f}" if found else "")
            row.append(f"{1e6 * _middle([p.seconds for p in found]):.1f}" if found else "")
        rows.append(row)
    head = ["bytes", "1 link Mbit/s", "us", f"{LINKS} links Mbit/s", "us"]
    return table(head, rows)


def summary_table(curves: Sequence[Curve], carried: dict[int, float], pulled: Pulled) -> str:
    """The figures that are claims, and those that are none yet."""
    part = percent_of_links(curves)
    rows = [
        [
            "one TCP connection, messages of 1 MiB and more",
            f"{part:.1f} % of both" if part else "-",
            "claim",
        ],
        ["published, of 2 x 941 Mbit/s", f"{PUBLISHED_PERCENT:.1f} %", ""],
        *(
            [
                f"UDP over {links}",
                f"{bps / MBIT:.1f} Mbit/s of the wire",
                "reported",
            ]
            for links, bps in carried.items()
        ),
        ["datagrams lost when a cable is pulled", f"{pulled.lost} of {pulled.sent}", "claim"],
    ]
    return table(["what", "measured", ""], rows)


def _rows(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    return [
        {"labels": {"links": c.links, "bytes": p.nbytes}, "valid": True, **asdict(p)}
        for c in curves
        for p in c.points
    ]


def _carried_rows(carried: dict[int, float]) -> list[dict[str, Any]]:
    return [
        {"labels": {"udp over": links}, "valid": True, "wire_bps": bps}
        for links, bps in carried.items()
    ]


def _pulled_row(pulled: Pulled) -> dict[str, Any]:
    return {"labels": {"cable": "pulled"}, "valid": True, **asdict(pulled)}
