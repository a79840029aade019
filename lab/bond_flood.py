"""A flood of shortest frames over a bond of two links with numbers, beside a victim that is
promised half of it: what a bond has for all is numbers, places to put frames in order, and memory
for frames that are kept to be sent again.

Two hosts, a Levada process each, with little memory. The attacker sends more shortest frames than
the links carry. The victim has a paced TCP connection below its promise, a ping, and a thousand
datagrams a second. First all is quiet, then the attacker sends, and last, while it does, a cable is
pulled: datagrams that were under way are sent again, where they were kept.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

from lab.net import Lab
from lab.report import Claim, at_least, at_most
from lab.stats import table
from lab.switches.levada_bond import LevadaBond
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.windows import p99
from lab.workload import FIRST_PORT, Ping, Stream, Tool, UdpFlow, trips_between

MBIT = 1_000_000
#: Slow, so that two daemons and all programs leave time to spare.
LINK_BPS, LINKS = 25 * MBIT, 2
#: 682 buffers of 2 KiB: of a flood of 2 x 25 Mbit/s, what leaves in 10 ms.
MEMORY = "4 MiB"
#: Of both links.
GUARANTEED, PACED = 0.5, 0.3
DATAGRAMS_PER_S, DATAGRAM_BYTES = 1000, 100
PING_INTERVAL_S = 0.01
#: More than the links carry: 74 400.
FLOOD_PER_S = 100_000
#: What of it has to be sent for there to be a flood.
LEAST_PART = 0.1
LEAD_S, WINDOW_S, SETTLE_S, PULLED_S = 1.5, 3.0, 0.5, 2.5
SLACK_S = 2.0

KEPT_PERCENT = 98.0
MOST_TIMES_QUIET = 3.0
#: Or so much later: a frame of each of both tenants on a link of 25 Mbit/s is a millisecond.
MOST_LATER_MS = 5.0
#: Of the victim's and the attacker's frames together, those that came out of order or not at all:
#: a process that stands still between two cables for longer than `hold` makes some.
DISORDER_PERCENT = 0.1

TOPOLOGY = Topology(
    (Tenant("blue", guarantee_bps=round(GUARANTEED * LINKS * LINK_BPS)), Tenant("red")),
    tuple(Endpoint(f"{t}{n}", t, f"h{n}") for t in ("blue", "red") for n in range(2)),
    (Host("h0", LINKS * LINK_BPS), Host("h1", LINKS * LINK_BPS)),
)


@dataclass(frozen=True)
class Window:
    """What the victim had in some seconds, and what the receiving bond counted of all frames."""

    goodput_bps: float
    rtt_p99_ms: float
    received: int
    late: int
    lost: int


@dataclass(frozen=True)
class Flooded:
    """Both windows; what the attacker sent a second; and the victim's datagrams over all of it,
    with the cable that was pulled."""

    quiet: Window
    attacked: Window
    sent_per_s: float
    datagrams: int
    datagrams_lost: int
    #: Hosts whose frames had numbers, and frames that were sent again, at the end.
    numbered: int
    replayed: int

    @property
    def disorder_percent(self) -> float:
        """Frames of the attacked window that came late or not at all."""
        return 100 * (self.attacked.late + self.attacked.lost) / max(self.attacked.received, 1)

    def __str__(self) -> str:
        rates = [w.goodput_bps / MBIT for w in (self.quiet, self.attacked)]
        lost = f"{self.datagrams_lost} of {self.datagrams} datagrams lost"
        return "a bond flooded: {:.1f} -> {:.1f} Mbit/s, ".format(*rates) + lost


def play(lab: Lab, window_s: float = WINDOW_S) -> Flooded:
    """Quiet, attacked, and a cable pulled."""
    switch = LevadaBond(lab, TOPOLOGY, [LINK_BPS] * LINKS, options={"order": "auto"}, memory=MEMORY)
    with switch.running():
        switch.introduce()
        src, dst, red = (switch.guests[name] for name in ("blue0", "blue1", "red0"))
        seconds = int(LEAD_S + 2 * window_s + SETTLE_S + PULLED_S + SLACK_S)
        stream = Stream("victim", src.name, dst.name, round(PACED * LINKS * LINK_BPS), row_ms=2)
        stream.begin(src, dst, FIRST_PORT, seconds + 5)
        ping = Ping("victim", src.name, dst.name, PING_INTERVAL_S)
        ping.begin(src, dst, 0, seconds)
        bits = DATAGRAMS_PER_S * DATAGRAM_BYTES * 8
        datagrams = UdpFlow("datagrams", src.name, dst.name, bits, DATAGRAM_BYTES)
        datagrams.begin(src, dst, FIRST_PORT + 1, seconds)
        time.sleep(LEAD_S)
        quiet = _watch(switch, window_s)
        macs = {e.name: TOPOLOGY.mac(e) for e in TOPOLOGY.endpoints}
        ends = ["--mac", macs["red0"], "--ip", red.address]
        ends += ["--to-mac", macs["red1"], "--to-ip", switch.guests["red1"].address]
        options = ["small", "--device", "red0", *ends, "--per-s", str(FLOOD_PER_S)]
        flood = Tool("attack", "red0", "red1", "costly", options)
        flood.begin(red, switch.guests["red1"], 0, int(SETTLE_S + window_s + PULLED_S))
        time.sleep(SETTLE_S)
        attacked = _watch(switch, window_s)
        numbered = sum((bond.get("order") or {}).get("numbered", False) for bond in _bonds(switch))
        switch.pull(LINKS - 1)
        sent = flood.end().detail
        counted = datagrams.end().detail
        replayed = sum(m["replayed"] for bond in _bonds(switch) for m in bond["members"])
        ping.stop()
        stream.end()
        ping.end()

    def window(watched: Watched) -> Window:
        times, wall, order = watched
        return Window(stream.goodput_bps(*times), p99(trips_between(ping.text(), *wall)), *order)

    return Flooded(
        window(quiet),
        window(attacked),
        sent["per_s"],
        counted["packets"],
        counted["lost_packets"],
        numbered,
        replayed,
    )


Watched = tuple[tuple[float, float], tuple[float, float], tuple[int, int, int]]


def _watch(switch: LevadaBond, window_s: float) -> Watched:
    """A window: its begin and end in monotonic time and by the wall clock, and what the receiving
    bond counted in it."""
    before = _order(switch)
    start, wall = time.monotonic(), time.time()
    time.sleep(window_s)
    end, wall_end = time.monotonic(), time.time()
    received, late, lost = (b - a for a, b in zip(before, _order(switch), strict=True))
    return (start, end), (wall, wall_end), (received, late, lost)


def _order(switch: LevadaBond) -> list[int]:
    order = _bonds(switch)[1].get("order") or {}
    return [order.get(key, 0) for key in ("received", "late", "lost")]


def _bonds(switch: LevadaBond) -> list[dict[str, Any]]:
    return [s["uplink"]["bond"] for s in switch.sample()["switches"]]


def claims(flooded: Flooded) -> list[Claim]:
    """That the victim had its rate, its round trips and its order, and lost nothing with the
    cable."""
    quiet, attacked = flooded.quiet, flooded.attacked
    most_ms = max(MOST_TIMES_QUIET * quiet.rtt_p99_ms, quiet.rtt_p99_ms + MOST_LATER_MS)
    name = "bond, shortest frames"
    kept = later = disorder = None
    lost = float(flooded.datagrams_lost) or None
    if flooded.sent_per_s >= LEAST_PART * FLOOD_PER_S:
        kept = 100 * attacked.goodput_bps / (PACED * LINKS * LINK_BPS)
        # Beside quiet pings that were lost none is later.
        later = attacked.rtt_p99_ms / most_ms if math.isfinite(most_ms) else None
        disorder, lost = flooded.disorder_percent, flooded.datagrams_lost
    return [
        at_least(f"{name}: hosts that number", flooded.numbered, "of 2", 2),
        at_least(f"{name}: throughput", kept, "%", KEPT_PERCENT),
        at_most(f"{name}: ping p99, of what it may be", later, "", 1.0),
        at_most(f"{name}: late or given up", disorder, "%", DISORDER_PERCENT),
        at_most(f"{name}, cable pulled: victim's datagrams lost", lost, "", 0),
    ]


def flood_table(flooded: Flooded) -> str:
    """What the victim had."""
    rows = [
        [
            name,
            f"{w.goodput_bps / MBIT:.1f}",
            f"{w.rtt_p99_ms:.2f}",
            str(w.received),
            str(w.late),
            str(w.lost),
        ]
        for name, w in (("quiet", flooded.quiet), ("attacked", flooded.attacked))
    ]
    head = [f"bond of {LINKS} links", "Mbit/s", "ping p99 ms", "frames", "late", "given up"]
    lost = f"{flooded.datagrams_lost} of {flooded.datagrams} datagrams lost"
    sent = f"{flooded.sent_per_s:.0f} shortest frames/s sent; a cable pulled meanwhile: {lost}, "
    return f"{table(head, rows)}\n{sent}{flooded.replayed} frames sent again"


def as_row(flooded: Flooded) -> dict[str, Any]:
    """For result.json."""
    return {"labels": {"attack": "bond, shortest frames"}, "valid": True, **asdict(flooded)}
