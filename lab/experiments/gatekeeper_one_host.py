"""Gatekeeper's figure 5 with one host isolating (`lab.figure5`): its TX half, and RX's TCP cells.

H2 and H3 do nothing for their tenants, so what H1 does decides. Of RX only the TCP cells: what an
ingress scheduler alone cannot do is hold its own against a flood that has filled the wire
before it; that is `gatekeeper-fig5`. The peers are best effort (a Linux bridge), rigid limits at
the guarantees, Linux HTB that lends (bridge, IFB for ingress), and Levada, all hosts of which
are switches of one daemon over a `link` fabric.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lab import figure5
from lab.figure5 import NONE, ONE, TEN, UDP, Figure
from lab.net import Lab
from lab.report import Report
from lab.switches import Bridge, Htb, Levada, Rigid

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
        "levada": lambda lab, shape: Levada(lab, shape, headroom_percent=HEADROOM_PERCENT),
    },
    titles={
        "bridge": "best effort",
        "rigid": "rigid limits",
        "htb": "HTB, lending",
        "levada": "Levada",
    },
    judged=("levada",),
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
    kept_percent={"tx": 99.0, "rx": 99.0},
    all_isolate=False,
    parameters={"headroom_percent": HEADROOM_PERCENT},
)

#: On ingress one host alone holds the guarantee as long as its own queues are the ones that fill.
#: A stall of this machine can fill the network's queue before it, where everybody loses, and a
#: connection takes some tenths of a second to come back: single windows had 94 to 100 %, most
#: of them 100. A quick run has one window a cell.
QUICK_RX_KEPT_PERCENT = 95.0


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays all cells, peers in turn, and judges them."""
    figure = FIGURE
    if quick:
        figure = replace(FIGURE, kept_percent={"tx": 99.0, "rx": QUICK_RX_KEPT_PERCENT})
    return figure5.play(figure, lab, quick, out)
