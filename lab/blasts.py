"""Blasts from other hosts, live: how soon an endpoint's arrivals are restored.

    H2 --- a2: the victim's sender, open loop or one TCP connection ------+
    H3 ... H6 --- b3 ... b6: a UDP flood each, for a second at a time -----+--> H1: a1 and b1

Over any `Switch` with this testbed's topology. The victim's sender goes on all the time; the others
begin together, stop together, and pause until all is quiet again. The fabric's port toward H1 drops
what its queue cannot hold. An open-loop victim sends at its guarantee, some datagrams at once, and
its receiver counts them by the rows of 5 ms in which they were sent: what is late because a
processor was busy with others is not lost.

Over Levada three to six daemons, the fabric and all workloads share one machine, and what looks
like a fault of the agents may be its own: a worker that wakes up late, more than 1 ms or four
frames, has lost that time of its link, and a link that is used to three quarters then has a queue
that stands. So with six daemons links are slower than 1 Gbit/s (`LINKS_BPS`), and before the blasts
the same is played with floods that are `NONE`, and that are `PACED` below what B is promised, so
that nothing contends and agents have nothing to do: there the victim must be whole. Each blast
tells how busy the machine and each worker were and how long their loops took, and
whether the victim's own sender kept its pace."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lab import wire
from lab.machine import BUSY_LIMIT, IDLE_LIMIT, CpuUse, cpu_use, sample_cpu
from lab.stats import bucket_counts, quantile
from lab.switches import Switch
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, Blast, FlowResult, TcpFlow, flood

MBIT = 1_000_000
#: All access links, by the number of senders.
LINKS_BPS = {1: 1000 * MBIT, 4: 250 * MBIT}
#: What the fabric's ports hold of a link of 1 Gbit/s, of others as much less: 2.1 ms of any.
QUEUE_BYTES = 256 << 10
#: Parts of the access link. Together with what the host itself is promised (0.5 %) and the headroom
#: (2 %) they leave A, whose sender is at its guarantee, a little to make good what was late.
PROMISED = {"A": 0.70, "B": 0.23}
#: Datagrams that the victim hands to the kernel at once at 1 Gbit/s, at others as many fewer: those
#: of 0.14 ms of any.
SEGMENTS = 8
#: A row of the victim's ends.
ROW_MS = 5
#: The victim is whole where this part of what it sent in a span has arrived.
RESTORED = 0.99
#: Datagrams in a span, or a few more: it has as many rows as it takes, one at 1 Gbit/s, so that one
#: that is lost is no harm.
SPAN = 140
#: Part of its pace at which the victim's sender has to be in a row (a message is 1/35 of one), and
#: least part of the rows in which it is where it has its time on a processor.
PACE, PACED_ROWS = 0.9, 0.97
#: Rows before a blast that are shown with it.
LEAD_ROWS = 10
#: A blast, and the pause after it.
BLAST_S = 1
PAUSE_S = 1.0
#: Before the first blast: a TCP victim has found its rate.
LEAD_S = 2.0
#: All floods' rate together over the link's, by kind.
NONE, PACED, FLOOD = "none", "paced", "flood"
FLOODS = {NONE: 0.0, PACED: 0.9 * PROMISED["B"], FLOOD: 2.0}
#: A worker whose loop took longer than this one time in a hundred looked late at what arrives: its
#: agent is to look every millisecond.
LAG_LIMIT_US = 1000.0


@dataclass(frozen=True)
class Load:
    """What the machine and the workers did while a blast lasted."""

    #: Part of all cores' time that was idle.
    idle: float
    #: By host: busy part of the worker's time, and how long its loop took, in us. Empty where the
    #: switch tells no such thing.
    busy: dict[str, float]
    lag_p99_us: dict[str, float]
    lag_max_us: dict[str, float]

    def bound(self) -> str | None:
        """Why the machine and not the agents decided what happened, or None."""
        if self.idle < IDLE_LIMIT:
            return f"machine idle {self.idle:.1%} < {IDLE_LIMIT:.0%}"
        if not self.busy:
            return None
        busiest, slowest = (max(of, key=lambda h: of[h]) for of in (self.busy, self.lag_p99_us))
        if self.busy[busiest] > BUSY_LIMIT:
            return f"{busiest}'s worker busy {self.busy[busiest]:.1%} > {BUSY_LIMIT:.0%}"
        if self.lag_p99_us[slowest] > LAG_LIMIT_US:
            return f"{slowest}'s loop took {self.lag_p99_us[slowest]:.0f} us > {LAG_LIMIT_US:.0f}"
        return None


@dataclass(frozen=True)
class Blasted:
    """What one blast did."""

    kind: str
    senders: int
    #: Seconds until the victim's arrivals were back, and what part of what it sent meanwhile
    #: was lost; None where they never were while the blast lasted.
    restored_s: float | None
    lost: float
    #: Part of the time in which the victim was whole, and in which its sender kept its pace.
    whole: float
    paced: float
    load: Load
    #: Why it tells nothing about agents, or None.
    bound: str | None
    #: Part of what was sent that arrived, row by row: from `LEAD_ROWS` rows before the blast.
    arrived: list[float] = field(default_factory=list)


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
        tenants=tuple(
            Tenant(name, guarantee_bps=round(guarantee_bps(name, senders))) for name in PROMISED
        ),
        endpoints=tuple(endpoints),
        hosts=tuple(Host(name, LINKS_BPS[senders]) for name in names),
        fabric_queue_bytes=queue_bytes(senders),
    )


def queue_bytes(senders: int) -> int:
    """What the fabric's ports hold."""
    return QUEUE_BYTES * LINKS_BPS[senders] // LINKS_BPS[1]


def segments(senders: int) -> int:
    """Datagrams that the victim hands to the kernel at once."""
    return SEGMENTS * LINKS_BPS[senders] // LINKS_BPS[1]


def span_rows(senders: int) -> int:
    """Rows in a span."""
    return math.ceil(SPAN / (_per_s(senders) * ROW_MS / 1000))


def _per_s(senders: int) -> float:
    """The victim's datagrams."""
    return guarantee_bps("A", senders) / 8 / wire.FULL_BYTES


def guarantee_bps(tenant: str, senders: int) -> float:
    """Of a tenant, in wire bits a second."""
    return PROMISED[tenant] * LINKS_BPS[senders]


@dataclass(frozen=True)
class Rows:
    """What a sender sent, row by row, and what of each row has arrived, however late: in bytes.
    Rows begin with the sender."""

    sent: Sequence[float]
    arrived: Sequence[float]
    span_rows: int
    row_s: float = ROW_MS / 1000

    def restored_s(self, begin_s: float, end_s: float) -> float | None:
        """Seconds from `begin_s` until it is whole in every span up to `end_s`. None where it is
        not in the last."""
        first, last = self._rows(begin_s, end_s)
        short = [at for at in range(first, last - self.span_rows + 1) if not self._whole(at)]
        if short and short[-1] == last - self.span_rows:
            return None
        # The first of the span is the one that is short: the next span is whole.
        return max(0.0, (short[-1] + 1) * self.row_s - begin_s) if short else 0.0

    def whole(self, begin_s: float, end_s: float) -> float:
        """The part of the spans in which it is whole."""
        first, last = self._rows(begin_s, end_s)
        spans = range(first, last - self.span_rows + 1)
        return sum(self._whole(at) for at in spans) / len(spans)

    def lost(self, begin_s: float, end_s: float) -> float:
        """The part of what was sent that did not arrive."""
        first, last = self._rows(begin_s, end_s)
        return 1 - sum(self.arrived[first:last]) / max(1.0, sum(self.sent[first:last]))

    def paced(self, due: float, begin_s: float, end_s: float) -> float:
        """The part of the rows in which `PACE` of `due` or more was sent."""
        first, last = self._rows(begin_s, end_s)
        return sum(self.sent[at] >= PACE * due for at in range(first, last)) / (last - first)

    def arrived_parts(self, begin_s: float, end_s: float, lead: int) -> list[float]:
        """Of what was sent in each row, the part that arrived; 1 where nothing was sent. With the
        `lead` rows before."""
        first, last = self._rows(begin_s, end_s)
        rows = range(first - lead, last)
        return [self.arrived[at] / self.sent[at] if self.sent[at] else 1.0 for at in rows]

    def _whole(self, at: int) -> bool:
        span = slice(at, at + self.span_rows)
        return sum(self.arrived[span]) >= RESTORED * sum(self.sent[span])

    def _rows(self, begin_s: float, end_s: float) -> tuple[int, int]:
        return int(begin_s / self.row_s), int(end_s / self.row_s)


def open_loop(switch: Switch, senders: int, kinds: Sequence[str]) -> list[Blasted]:
    """Blasts of these kinds, one after another, against a victim that sends at its guarantee
    whatever happens."""
    with switch.running():
        switch.introduce()
        guests = switch.guests
        seconds = int(LEAD_S + len(kinds) * (BLAST_S + PAUSE_S + 2)) + 2
        frame_bytes = wire.MTU_BYTES + wire.ETHERNET_BYTES + 4
        per_s = _per_s(senders)
        victim = Blast("victim", "a2", "a1", frame_bytes, per_s, segments(senders), ROW_MS)
        victim.begin(guests["a2"], guests["a1"], FIRST_PORT, seconds)
        time.sleep(LEAD_S)
        played = []
        for kind in kinds:
            cpu, shown = sample_cpu(switch.processes), switch.sample()
            floods = _begin(switch, senders, kind)
            # Where none is sent, a second of the same.
            spans = [time.time_ns()]
            time.sleep(BLAST_S)
            load = _load(cpu_use(cpu, sample_cpu(switch.processes)), shown, switch.sample())
            spans = [each.end().detail["sent_at_ns"] for each in floods] or spans
            played.append((kind, spans, load))
            time.sleep(PAUSE_S)
        result = victim.end()
    due = per_s * (frame_bytes - wire.UDP_FRAME_BYTES) * ROW_MS / 1000
    return [_blasted(result, due, senders, *each) for each in played]


def _begin(switch: Switch, senders: int, kind: str) -> list[Blast]:
    """Floods of a kind from all senders."""
    floods = []
    for n in range(senders if FLOODS[kind] else 0):
        rate_bps = FLOODS[kind] * LINKS_BPS[senders] / senders
        each = flood(f"b{n + 3}", f"b{n + 3}", "b1", rate_bps, offload=True)
        each.begin(switch.guests[each.src], switch.guests["b1"], FIRST_PORT + 1 + n, BLAST_S)
        floods.append(each)
    return floods


def _load(use: CpuUse, first: dict[str, Any] | None, last: dict[str, Any] | None) -> Load:
    """From two samples of a cluster."""
    busy: dict[str, float] = {}
    p99: dict[str, float] = {}
    most: dict[str, float] = {}
    if first is None or last is None:
        return Load(use.idle, busy, p99, most)
    for host, told in last["workers"].items():
        before = first["workers"][host]
        wall_ns = told["now_ns"] - before["now_ns"]
        busy[host] = (told["worker"]["busy_ns"] - before["worker"]["busy_ns"]) / wall_ns
        buckets = (sample["worker"]["loop_lag_buckets"] for sample in (before, told))
        counts = bucket_counts(*buckets)
        p99[host], most[host] = (quantile(counts, part) / 1000 for part in (0.99, 1.0))
    return Load(use.idle, busy, p99, most)


def _blasted(
    result: FlowResult, due: float, senders: int, kind: str, began_ns: Sequence[int], load: Load
) -> Blasted:
    """What the victim's ends saw of a blast whose senders began then, by the wall clock."""
    detail = result.detail
    rows = Rows(detail["sent_rows"], detail["arrived_of_rows"], span_rows(senders))
    # They begin some tens of milliseconds apart: from when all of them send.
    begin_s = (max(began_ns) - detail["sent_at_ns"]) / 1e9
    end_s = (min(began_ns) - detail["sent_at_ns"]) / 1e9 + BLAST_S
    paced = rows.paced(due, begin_s, end_s)
    bound = load.bound()
    if bound is None and paced < PACED_ROWS:
        bound = f"the victim's sender kept its pace in {paced:.1%} of the rows only"
    return Blasted(
        kind,
        senders,
        restored_s=rows.restored_s(begin_s, end_s),
        lost=rows.lost(begin_s, end_s),
        whole=rows.whole(begin_s, end_s),
        paced=paced,
        load=load,
        bound=bound,
        arrived=rows.arrived_parts(begin_s, end_s, LEAD_ROWS),
    )


def connection(switch: Switch, senders: int, blasts: int) -> tuple[list[float], int]:
    """The same against one TCP connection: its payload rate while each blast lasted, in bits a
    second, and its timeouts."""
    with switch.running():
        switch.introduce()
        guests = switch.guests
        seconds = int(LEAD_S + blasts * (BLAST_S + PAUSE_S + 2)) + 2
        victim = TcpFlow("victim", "a2", "a1")
        start = time.monotonic()
        victim.begin(guests["a2"], guests["a1"], FIRST_PORT, seconds)
        time.sleep(LEAD_S)
        spans = []
        for _ in range(blasts):
            begin = time.monotonic() - start
            floods = _begin(switch, senders, FLOOD)
            spans.append((begin, begin + BLAST_S))
            for each in floods:
                each.end()
            time.sleep(PAUSE_S)
        timeouts = guests["a2"].namespace.run("nstat", "-asz", "TcpExtTCPTimeouts").split()
        result = victim.end()
    rates = [result.goodput_bps(*span) for span in spans]
    return rates, int(float(timeouts[timeouts.index("TcpExtTCPTimeouts") + 1]))
