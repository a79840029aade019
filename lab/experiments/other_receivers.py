"""What a throttled sender's traffic to other receivers suffers: live, a daemon a host.

    H2 --- a2: a victim's sender -------------------------> H1: a1
    H3 --- b3: a UDP flood -------------------------------> H1: b1
             \\--- and UDP at a pace, or one TCP connection -> H4: b4

Either the victim is silent, so that nothing contends and nobody is throttled, or it sends at its
guarantee, and H1's agent has b3 send less to b1. What b3 sends to b4 is to get as much then as
before. By `rate`, and as Gatekeeper was published, whose limit is on all that an endpoint sends.
Next to both: best effort, rigid limits at the guarantees, HTB that lends, Levada without agents.
They leave the other receiver alone too, but the victim or the flood does not get what it is due.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from lab import machine, peers, plot, wire
from lab.cell import ATTEMPTS, Cell, measure
from lab.net import Lab
from lab.programs import example, program
from lab.report import Claim, Report, at_least, at_most
from lab.stats import Mean, mean, table
from lab.switches import Switch
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import Blast, Flow, TcpFlow, flood

SUMMARY = "what a throttled sender's traffic to other receivers suffers, live"

MBIT = 1_000_000
#: What four daemons and their workloads carry on two processors with time to spare.
LINK_BPS = 250 * MBIT
#: Parts of the link: promised; with the host's own and the headroom it is nearly all.
PROMISED = {"A": 0.70, "B": 0.23}
#: Parts of the link: the victim sends what it is promised; the flood and what goes elsewhere at a
#: pace fit b3's own link together, so that they do not harm each other.
FLOOD, PACED = 0.7, 0.1
PEERS = peers.on_hosts()
UDP, TCP = "UDP", "1 TCP"
RECEIVERS = {"a1": wire.UDP, "b1": wire.UDP}

LEAD_S, WINDOW_S = 1.5, 3.0
REPETITIONS = 5
#: Least part of what it gets while nobody is throttled that traffic elsewhere gets, in percent.
KEPT_PERCENT = 99.0
#: Most of what it sends that the flood gets where it is throttled, for there to be a limit at all.
THROTTLED_PERCENT = 60.0
#: Least part of its guarantee that the victim gets, in percent.
VICTIM_PERCENT = 99.0

TOPOLOGY = Topology(
    tenants=tuple(
        Tenant(name, guarantee_bps=round(part * LINK_BPS)) for name, part in PROMISED.items()
    ),
    endpoints=(
        Endpoint("a1", "A", "h1"),
        Endpoint("b1", "B", "h1"),
        Endpoint("a2", "A", "h2"),
        Endpoint("b3", "B", "h3"),
        Endpoint("b4", "B", "h4"),
    ),
    hosts=tuple(Host(name, LINK_BPS) for name in ("h1", "h2", "h3", "h4")),
)


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays all cells, peers in turn, and judges those of `rate`."""
    program()
    example("blast")
    report = Report("other-receivers", quick)
    report.parameters = {
        "link_bps": LINK_BPS,
        "promised": PROMISED,
        "flood_over_link": FLOOD,
        "paced_over_link": PACED,
        "window_s": WINDOW_S,
    }
    report.machine = machine.describe(["iperf3", "ip", "tc", str(program())])
    cells: list[Cell] = []
    for peer, make in PEERS.items():
        switch = make(lab, TOPOLOGY)
        with switch.running():
            switch.introduce()
            for repetition in range(1 if quick else REPETITIONS):
                cells += _round(switch, {"peer": peer, "repetition": repetition})
    report.cells = [cell.as_row() for cell in cells]
    report.tables = [_table(cells)]
    report.claims = claims(cells)
    _draw(cells, out)
    return report


def _round(switch: Switch, labels: dict[str, object]) -> list[Cell]:
    """Each kind of traffic elsewhere, beside a silent victim and one that sends."""
    cells = []
    for other in (UDP, TCP):
        for contended in (False, True):
            for attempt in range(ATTEMPTS):
                told = {**labels, "other": other, "contended": contended, "attempt": attempt}
                cell = measure(switch, flows(other, contended), WINDOW_S, told, LEAD_S)
                cells.append(cell)
                got = ", ".join(f"{n} {rate_bps(cell, n) / 1e6:.1f}" for n in ("a1", "b1", "b4"))
                why = "".join(f"; {w}" for w in (cell.bound, cell.disturbed) if w)
                print(f"  {' '.join(str(v) for v in told.values())}: {got}{why}", file=sys.stderr)
                if cell.valid:
                    break
    return cells


def flows(other: str, contended: bool) -> list[Flow]:
    """The flows of a cell."""
    made: list[Flow] = [flood("flood", "b3", "b1", FLOOD * LINK_BPS, offload=True)]
    if other == UDP:
        made.append(_paced("other", "b3", "b4", PACED))
    else:
        made.append(TcpFlow("other", "b3", "b4"))
    if contended:
        made.append(_paced("victim", "a2", "a1", PROMISED["A"]))
    return made


def _paced(name: str, src: str, dst: str, part: float) -> Blast:
    """Datagrams by two, at a part of the link."""
    frame_bytes = wire.MTU_BYTES + wire.ETHERNET_BYTES + 4
    return Blast(name, src, dst, frame_bytes, part * LINK_BPS / 8 / wire.FULL_BYTES, segments=2)


def rate_bps(cell: Cell, receiver: str) -> float:
    """What a receiver got, in wire bits a second."""
    protocol = RECEIVERS.get(receiver, wire.UDP if cell.labels["other"] == UDP else wire.TCP)
    return wire.wire_bits(cell.received[receiver], protocol) / cell.window_s


def claims(cells: Sequence[Cell]) -> list[Claim]:
    """Of `rate`: what goes elsewhere gets what it did, while the flood is in fact throttled and the
    victim has what it was promised."""
    made = []
    for other in (UDP, TCP):
        free, held = (_mean_bps(cells, "rate", other, t, "b4") for t in (False, True))
        kept = None if free is None or held is None else 100 * held.value / free.value
        name = f"{other} to another receiver, of what it gets while nobody is throttled"
        made.append(at_least(name, kept, "%", KEPT_PERCENT))
        flooded = _mean_bps(cells, "rate", other, True, "b1")
        part = None if flooded is None else 100 * flooded.value / (FLOOD * LINK_BPS)
        name = f"the flood beside it, of what is sent of it to the victim's host: {other}"
        made.append(at_most(name, part, "%", THROTTLED_PERCENT))
        victim = _mean_bps(cells, "rate", other, True, "a1")
        part = None if victim is None else 100 * victim.value / (PROMISED["A"] * LINK_BPS)
        made.append(
            at_least(f"the victim, of its guarantee: beside {other}", part, "%", VICTIM_PERCENT)
        )
    return made


def _mean_bps(
    cells: Sequence[Cell], peer: str, other: str, contended: bool, receiver: str
) -> Mean | None:
    """What a receiver got; None where no cell is valid."""
    wanted = {"peer": peer, "other": other, "contended": contended}
    chosen = [c for c in cells if c.valid and all(c.labels[k] == v for k, v in wanted.items())]
    return mean([rate_bps(c, receiver) for c in chosen]) if chosen else None


def _table(cells: Sequence[Cell]) -> str:
    rows = []
    for peer in PEERS:
        for other in (UDP, TCP):
            for contended in (False, True):
                key = (peer, other, contended)
                got = [_mean_bps(cells, *key, receiver) for receiver in ("a1", "b1", "b4")]
                told = ["invalid" if bps is None else f"{bps.over(MBIT):.1f}" for bps in got]
                rows.append([peers.TITLES[peer], other, "sends" if contended else "silent", *told])
    head = ["Mbit/s on the wire", "elsewhere", "victim", "victim", "flood", "elsewhere"]
    return table(head, rows)


def _draw(cells: Sequence[Cell], out: Path) -> None:
    """What each receiver gets while all send, by peer, to what it was due."""
    names = {"a1": "victim", "b1": "flood", "b4": "elsewhere"}
    for file, other in (("udp", UDP), ("tcp", TCP)):
        series = {
            name: [_in_mbit(_mean_bps(cells, peer, other, True, receiver)) for peer in PEERS]
            for receiver, name in names.items()
        }
        series["elsewhere, victim silent"] = [
            _in_mbit(_mean_bps(cells, peer, other, False, "b4")) for peer in PEERS
        ]
        plot.bars(
            out / file,
            f"A flood at a victim's host, and {other} from the same sender elsewhere",
            "Mbit/s on the wire",
            [title.replace(" ", "\n") for title in peers.TITLES.values()],
            series,
        )


def _in_mbit(rate: Mean | None) -> Mean | None:
    return None if rate is None else rate.over(MBIT)
