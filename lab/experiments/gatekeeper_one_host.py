"""Gatekeeper's figure 5 with promises on one host (`lab.figure5`): its TX half, RX's TCP cells.

H2 and H3 promise their tenants nothing, so what H1 does decides. The peers are best effort (a
Linux bridge), rigid limits at the guarantees, Linux HTB that lends (bridge, IFB for ingress), and
Levada, all hosts of which are switches of one daemon over a `link` fabric: once each for itself
(`alone`), and once with congestion agents that talk (`agents`).

On ingress one host alone holds a guarantee as long as its own queues are the ones that fill: a
stall of the machine can fill the network's queue before it, where everybody loses, and one
connection beside ten takes some tenths of a second to come back. So on RX only `agents` is judged.
Against floods that have filled the wire, see `gatekeeper-fig5`.
"""

from __future__ import annotations

from pathlib import Path

from lab import figure5
from lab.figure5 import NONE, ONE, TEN, UDP, Figure
from lab.net import Lab
from lab.report import Report
from lab.switches import Bridge, Htb, Levada, Rigid
from lab.switches.levada import BURST_NS

SUMMARY = "Gatekeeper's figure 5: two tenants on one host, both directions, next to Linux's ways"

#: What Levada and HTB hold back on ingress: less than may be given up, as TCP never quite fills
#: what it is given.
HEADROOM_PERCENT = 1.5

FIGURE = Figure(
    name="gatekeeper-one-host",
    peers={
        "bridge": Bridge,
        "rigid": Rigid,
        "htb": lambda lab, shape: Htb(lab, shape, headroom=HEADROOM_PERCENT / 100),
        "alone": lambda lab, shape: Levada(
            lab, shape, headroom_percent=HEADROOM_PERCENT, burst_ns=BURST_NS
        ),
        "agents": lambda lab, shape: Levada(
            lab, shape, headroom_percent=HEADROOM_PERCENT, burst_ns=BURST_NS, controller="rate"
        ),
    },
    titles={
        "bridge": "best effort",
        "rigid": "rigid limits",
        "htb": "HTB, lending",
        "alone": "Levada, no agents",
        "agents": "Levada",
    },
    judged={"tx": ("alone", "agents"), "rx": ("agents",)},
    careless="bridge",
    loads={
        "tx": (
            *((ONE, NONE), (ONE, ONE), (ONE, TEN), (ONE, UDP)),
            *((NONE, ONE), (NONE, TEN), (NONE, UDP)),
        ),
        "rx": ((ONE, NONE), (ONE, ONE), (ONE, TEN), (NONE, ONE), (NONE, TEN)),
    },
    quick_loads={
        "tx": ((ONE, NONE), (ONE, TEN), (ONE, UDP), (NONE, UDP)),
        "rx": ((ONE, NONE), (ONE, TEN)),
    },
    all_isolate=False,
    parameters={"headroom_percent": HEADROOM_PERCENT, "burst_us": BURST_NS // 1000},
)


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays all cells, peers in turn, and judges them."""
    return figure5.play(FIGURE, lab, quick, out)
