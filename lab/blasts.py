"""Blasts from other hosts, live: how soon an endpoint's arrivals are restored.

    H2 --- a2: the victim's sender, open loop or one TCP connection ------+
    H3 ... H6 --- b3 ... b6: a UDP flood each, for a second at a time -----+--> H1: a1 and b1

All hosts isolate and their agents talk (`LevadaCluster`). The victim's sender goes on all the
time; the others begin together, stop together, and pause until all is quiet again. The fabric's
port toward H1 drops what its queue cannot hold. An open-loop victim sends at its guarantee, in
datagrams, not in trains, and its receiver counts in rows of 5 ms.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from lab import wire
from lab.net import Lab
from lab.switches import LevadaCluster
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, Blast, TcpFlow, flood

MBIT = 1_000_000
LINK_BPS = 1000 * MBIT
#: Of the access link, in wire bits a second: with what the host itself is promised, and the
#: headroom, they are all of it.
GUARANTEES_BPS = {"A": 731 * MBIT, "B": 244 * MBIT}
#: A row of the victim's receiver.
ROW_MS = 5
#: The victim counts as restored from when on its mean over this time stays at `RESTORED`.
SPAN_ROWS = 5
RESTORED = 0.99
#: A blast, and the pause after it.
BLAST_S = 1
PAUSE_S = 1.0
#: Before the first blast: a TCP victim has found its rate.
LEAD_S = 2.0
#: A flood's rate over the link's.
FLOOD = 1.5


@dataclass(frozen=True)
class Blasted:
    """What one blast did."""

    senders: int
    #: Seconds until the victim's arrivals were back, and what part of what it sent meanwhile
    #: was lost; None where they never were while the blast lasted.
    restored_s: float | None
    lost: float


def topology(senders: int) -> Topology:
    """H1 with both victims, H2 with A's sender, and a host for each sender of B."""
    names = [f"h{n}" for n in range(1, senders + 3)]
    endpoints = [
        Endpoint("a1", "A", "h1"),
        Endpoint("a2", "A", "h2"),
        Endpoint("b1", "B", "h1"),
        *(Endpoint(f"b{n}", "B", f"h{n}") for n in range(3, senders + 3)),
    ]
    return Topology(
        tenants=tuple(Tenant(name, guarantee_bps=bps) for name, bps in GUARANTEES_BPS.items()),
        endpoints=tuple(endpoints),
        hosts=tuple(Host(name, LINK_BPS) for name in names),
    )


def restored_s(
    rows: Sequence[float], row_s: float, begin_s: float, end_s: float, due: float
) -> float | None:
    """Seconds from `begin_s` until every mean over `SPAN_ROWS` rows, up to `end_s`, is `RESTORED`
    of `due` a row. Rows are bytes. None where the last such mean is not."""
    first = int(begin_s / row_s)
    last = int(end_s / row_s)
    back = first
    for at in range(first, last - SPAN_ROWS + 1):
        if sum(rows[at : at + SPAN_ROWS]) < RESTORED * SPAN_ROWS * due:
            # The first of the span is the one that is short: the next span may be whole.
            back = at + 1
    if back > last - SPAN_ROWS:
        return None
    return max(0.0, back * row_s - begin_s)


def lost(rows: Sequence[float], row_s: float, begin_s: float, end_s: float, due: float) -> float:
    """The part of `due` a row that did not arrive."""
    chosen = rows[int(begin_s / row_s) : int(end_s / row_s)]
    return max(0.0, 1 - sum(chosen) / (due * len(chosen))) if chosen else 0.0


def open_loop(lab: Lab, controller: str | None, senders: int, blasts: int) -> list[Blasted]:
    """Blasts against a victim that sends at its guarantee whatever happens."""
    switch = LevadaCluster(lab, topology(senders), controller)
    with switch.running():
        guests = switch.guests
        seconds = int(LEAD_S + blasts * (BLAST_S + PAUSE_S + 1)) + 2
        frame_bytes = wire.MTU_BYTES + wire.ETHERNET_BYTES + 4
        per_s = GUARANTEES_BPS["A"] / 8 / wire.FULL_BYTES
        victim = Blast("victim", "a2", "a1", frame_bytes, per_s, row_ms=ROW_MS)
        victim.begin(guests["a2"], guests["a1"], FIRST_PORT, seconds)
        time.sleep(LEAD_S)
        begun = []
        for _ in range(blasts):
            floods = []
            for n in range(senders):
                each = flood(f"b{n + 3}", f"b{n + 3}", "b1", FLOOD * LINK_BPS, offload=True)
                each.begin(guests[each.src], guests["b1"], FIRST_PORT + 1 + n, BLAST_S)
                floods.append(each)
            ends = [each.end().detail["sent_at_ns"] for each in floods]
            begun.append((max(ends), min(ends)))
            time.sleep(PAUSE_S)
        result = victim.end()
    payload = frame_bytes - wire.UDP_FRAME_BYTES
    due = per_s * payload * ROW_MS / 1000
    rows = [nbytes for _, _, nbytes in result.rows]
    origin_ns = result.detail["rows_from_ns"]
    made = []
    for last_ns, first_ns in begun:
        # They begin some tens of milliseconds apart: from when all of them send.
        begin_s = (last_ns - origin_ns) / 1e9
        end_s = (first_ns - origin_ns) / 1e9 + BLAST_S
        span = (rows, ROW_MS / 1000, begin_s, end_s, due)
        made.append(Blasted(senders, restored_s(*span), lost(*span)))
    return made


def connection(lab: Lab, controller: str | None, senders: int, blasts: int) -> tuple[float, int]:
    """The same against one TCP connection: its payload rate while blasts last, in bits a second,
    and its timeouts."""
    switch = LevadaCluster(lab, topology(senders), controller)
    with switch.running():
        guests = switch.guests
        seconds = int(LEAD_S + blasts * (BLAST_S + PAUSE_S + 1)) + 2
        victim = TcpFlow("victim", "a2", "a1")
        start = time.monotonic()
        victim.begin(guests["a2"], guests["a1"], FIRST_PORT, seconds)
        time.sleep(LEAD_S)
        spans = []
        for _ in range(blasts):
            begin = time.monotonic() - start
            floods = []
            for n in range(senders):
                each = flood(f"b{n + 3}", f"b{n + 3}", "b1", FLOOD * LINK_BPS, offload=True)
                each.begin(guests[each.src], guests["b1"], FIRST_PORT + 1 + n, BLAST_S)
                floods.append(each)
            spans.append((begin, begin + BLAST_S))
            for each in floods:
                each.end()
            time.sleep(PAUSE_S)
        timeouts = guests["a2"].namespace.run("nstat", "-asz", "TcpExtTCPTimeouts").split()
        result = victim.end()
    rates = [result.goodput_bps(*span) for span in spans]
    return sum(rates) / len(rates), int(float(timeouts[timeouts.index("TcpExtTCPTimeouts") + 1]))
