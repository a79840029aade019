"""The demo's fourth act: one connection over two links, of which one is pulled.

Two hosts with two links between them, and one TCP connection. First in plain round robin, as a
bond is with any partner: the links' sum, but segments come out of order, and what is on the wire
of a link that is pulled is lost. Then with numbers, as between two Levada hosts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from lab import wire
from lab.bars import Bar, Bars
from lab.net import Lab, Received
from lab.report import Claim, at_least, at_most, between
from lab.stats import table
from lab.switches.levada_bond import LevadaBond
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, Guest, TcpFlow

MBIT = 1_000_000
LINK_BPS = 100 * MBIT
LINKS = 2
#: A phase, when in it the cable is pulled, and what is left out: slow start, what follows the
#: pull, and the end.
PHASE_S = 6
PULL_S = 3.5
SETTLE_S, AFTER_S, TAIL_S = 2.0, 0.8, 0.3
TICK_S = 0.2
#: Least part of the links that the connection gets, before and after; most segments out of order,
#: of those without numbers, before. (What the sender's queue drops has a window's segments come out
#: of order until it is sent again, over one link also.)
USED_PERCENT = 85.0
DISORDER_PERCENT = 20.0

TOPOLOGY = Topology(
    (Tenant("a"),),
    (Endpoint("a0", "a", "h0"), Endpoint("a1", "a", "h1")),
    (Host("h0", LINK_BPS), Host("h1", LINK_BPS)),
)
TITLE = "One connection over two links"
INTRODUCTION = f"""\
Two hosts, {LINKS} links of {LINK_BPS // MBIT} Mbit/s between them, one TCP connection, in round
robin. After {PULL_S} s a cable is pulled. First plain, as with any partner: segments come out
of order. Then with numbers, as between two Levada hosts: order is restored, and what the pulled
cable loses is sent again.
"""
WAYS = {"off": "plain", "auto": "numbered"}


@dataclass(frozen=True)
class Phase:
    """What was seen with one value of `order`."""

    order: str
    #: Seconds since the begin, and what the receiver's device had received then.
    samples: list[tuple[float, Received]]
    pulled_s: float
    #: Segments sent again, and those that came out of order, over both links.
    again: int
    out_of_order: int

    def part(self, first_s: float, last_s: float) -> float:
        """The connection's rate between two times, in wire bits a second."""
        inside = [sample for sample in self.samples if first_s <= sample[0] <= last_s]
        return rate(inside[0], inside[-1]) if len(inside) > 1 else 0.0

    def before_bps(self) -> float:
        """Over both links."""
        return self.part(SETTLE_S, self.pulled_s)

    def after_bps(self) -> float:
        """Over the one that is left."""
        return self.part(self.pulled_s + AFTER_S, PHASE_S - TAIL_S)

    def series(self) -> dict[str, tuple[list[float], list[float]]]:
        """The rate over time, in seconds and Mbit/s."""
        pairs = list(itertools.pairwise(self.samples))
        rates = [rate(first, last) / MBIT for first, last in pairs]
        return {"connection": ([last[0] for _, last in pairs], rates)}


def rate(first: tuple[float, Received], last: tuple[float, Received]) -> float:
    """Wire bits a second between two samples."""
    return wire.wire_bits(last[1].since(first[1]), wire.TCP) / (last[0] - first[0])


def play(lab: Lab, order: str, bars: Bars) -> Phase:
    """One phase, shown while it runs."""
    switch = LevadaBond(lab, TOPOLOGY, [LINK_BPS] * LINKS, options={"order": order})
    with switch.running(), ThreadPoolExecutor(1) as beside:
        switch.introduce()
        src, dst = switch.guests["a0"], switch.guests["a1"]
        before = after = None
        flow = TcpFlow("connection", "a0", "a1")
        flow.begin(src, dst, FIRST_PORT, PHASE_S)
        start = time.monotonic()
        samples = [(0.0, dst.namespace.received(dst.name))]
        pull: Future[None] | None = None
        pulled_s = None
        while (elapsed := time.monotonic() - start) < PHASE_S - TAIL_S:
            if elapsed >= PULL_S and pulled_s is None:
                after = _counted(src, dst)
                # On a busy machine that takes a second.
                pull = beside.submit(switch.pull, LINKS - 1)
                pulled_s = elapsed
            if elapsed >= SETTLE_S and before is None:
                # Slow start ends with a loss, behind which all is out of order.
                before = _counted(src, dst)
            time.sleep(TICK_S)
            received = dst.namespace.received(dst.name)
            samples.append((time.monotonic() - start, received))
            _draw(bars, order, elapsed, samples, pulled_s is not None)
        assert pull is not None
        pull.result()
        bars.settle()
        flow.end()
        assert before is not None
        assert after is not None
        again, out_of_order = (a - b for a, b in zip(after, before, strict=True))
        return Phase(order, samples, pulled_s or PHASE_S, again, out_of_order)


def _counted(src: Guest, dst: Guest) -> tuple[int, int]:
    """Segments sent again by one, and those that came to the other out of order."""
    return (
        src.namespace.counters()["TcpRetransSegs"],
        dst.namespace.counters()["TcpExtTCPOFOQueue"],
    )


def _draw(
    bars: Bars, order: str, elapsed: float, samples: Sequence[tuple[float, Received]], pulled: bool
) -> None:
    got = rate(samples[max(0, len(samples) - 4)], samples[-1])
    links = LINKS - pulled
    heading = f'order = "{order}", {elapsed:4.1f} s: 1 TCP over {links} link{"s"[: links - 1]}'
    bars.draw(heading, [Bar("connection", got / MBIT, links * LINK_BPS / MBIT, wants=True)])


def text(plain: Phase, numbered: Phase) -> str:
    """What the connection got, as a table."""
    rows = [
        [
            WAYS[phase.order],
            f"{phase.before_bps() / MBIT:.1f}",
            f"{phase.after_bps() / MBIT:.1f}",
            str(phase.out_of_order),
            str(phase.again),
        ]
        for phase in (plain, numbered)
    ]
    head = ["Mbit/s on the wire", f"{LINKS} links", "1 pulled", "out of order", "sent again"]
    return f"{TITLE}\n{table(head, rows)}"


def claims(plain: Phase, numbered: Phase) -> list[Claim]:
    """What numbers promise, the last against the same links without them."""
    both = 100 * numbered.before_bps() / (LINKS * LINK_BPS)
    left = 100 * numbered.after_bps() / ((LINKS - 1) * LINK_BPS)
    # Without disorder in plain round robin there is nothing that numbers have put in order.
    disorder = 100 * numbered.out_of_order / plain.out_of_order if plain.out_of_order else None
    return [
        at_least("two-links: of both links, one connection", both, "%", USED_PERCENT),
        between("two-links: of the one left when a cable is pulled", left, "%", USED_PERCENT, 105),
        at_most("two-links: out of order, of plain", disorder, "%", DISORDER_PERCENT),
    ]


def cells(plain: Phase, numbered: Phase) -> list[dict[str, object]]:
    """The rows of the report."""
    return [
        {
            "labels": {"act": "two-links", "phase": WAYS[phase.order]},
            "before_bps": phase.before_bps(),
            "after_bps": phase.after_bps(),
            "again": phase.again,
            "out_of_order": phase.out_of_order,
            "series": phase.series(),
        }
        for phase in (plain, numbered)
    ]
