"""The live cells of `vcc-incast`: many connections of one guest to another, with the kernel's TCP.

Both guests have no ECN, and each is behind a Levada of its own. The link between has the queue of
the simulation and a tenth of its rate; two segments of each connection do not fit into it. What is
compared is how the guest's switch treats it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.net import Lab
from lab.report import Claim, at_least, at_most
from lab.stats import table
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.vcc_live import DELAY_US, LINK_BPS, Network, counters
from lab.workload import FIRST_PORT, Guest, TcpFlow

#: Connections; two segments of each are twice what the queue and the link hold.
CONNECTIONS = 64
#: The queue, in wire bytes, and above how many it marks.
SLOW: Mapping[str, object] = {
    "queue": "90000 B",
    "aqm": {"kind": "step", "threshold": "30000 B"},
}
#: What is not measured, since windows find their size, and what is.
WARM_UP_S, MEASURED_S = 4, 4
#: How the guests are treated.
TREATMENTS: Mapping[str, Mapping[str, str | bool]] = {
    "legacy": {"vcc": "off"},
    "dctcp": {"vcc": "dctcp"},
    "held": {"vcc": "dctcp", "hold_acks": True},
}
#: Bounds: what is sent again, of what `dctcp` sends again; what the guest received.
MOST_AGAIN, LEAST_USE = 0.02, 0.98
#: Wire bytes of a full segment, and its payload.
WIRE, PAYLOAD = 1538, 1448


@dataclass(frozen=True)
class Cell:
    """What was seen of one treatment."""

    treatment: str
    #: What the guest received, of what full segments can carry.
    use: float
    #: Segments sent again, and timeouts.
    again: int
    timeouts: int


def topology() -> Topology:
    """Two guests, one at each side."""
    return Topology(
        tenants=(Tenant("job"),),
        endpoints=(Endpoint("from", "job", "h1"), Endpoint("to", "job", "h2")),
        hosts=tuple(Host(side, 10 * LINK_BPS) for side in ("h1", "h2")),
    )


def play(lab: Lab, treatment: str) -> Cell:
    """One cell."""
    network = Network(lab, topology(), TREATMENTS[treatment], SLOW)
    with network.running():
        network.introduce()
        flow = TcpFlow("incast", "from", "to", CONNECTIONS)
        src, dst = network.guests[flow.src], network.guests[flow.dst]
        flow.begin(src, dst, FIRST_PORT, WARM_UP_S + MEASURED_S + 2)
        time.sleep(WARM_UP_S)
        before, counted, began = _received(dst), counters(src), time.monotonic()
        time.sleep(MEASURED_S)
        got, took_s, now = _received(dst) - before, time.monotonic() - began, counters(src)
        flow.abort()
    again, timeouts = (now[key] - counted[key] for key in ("TcpRetransSegs", "TcpExtTCPTimeouts"))
    return Cell(treatment, 8 * got / took_s / (LINK_BPS * PAYLOAD / WIRE), again, timeouts)


def _received(guest: Guest) -> int:
    """Bytes that its open connections have had."""
    return sum(map(int, re.findall(r" bytes_received:(\d+)", guest.namespace.run("ss", "-tinH"))))


def text(cells: Sequence[Cell]) -> str:
    """What was seen, as a table."""
    rows = [[c.treatment, f"{c.use * 100:.1f} %", str(c.again), str(c.timeouts)] for c in cells]
    title = f"live, {CONNECTIONS} connections, {LINK_BPS / 1e6:.0f} Mbit/s, {DELAY_US} us"
    return table([title, "link used", "sent again", "timeouts"], rows)


def claims(cells: Sequence[Cell]) -> list[Claim]:
    """Of one run each: what is held sends next to nothing again, and fills the link. Where `dctcp`
    sends nothing again there is nothing to show."""
    by = {cell.treatment: cell for cell in cells}
    held, dctcp = by["held"], by["dctcp"]
    again = held.again / dctcp.again if dctcp.again else None
    name = f"live, {CONNECTIONS} connections: held"
    return [
        at_most(f"{name}, sent again / dctcp", again, "x", MOST_AGAIN),
        at_least(f"{name}, link used", held.use, "of 1", LEAST_USE),
    ]
