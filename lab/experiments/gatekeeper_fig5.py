"""Gatekeeper's figure 5, whole (`lab.figure5`): three hosts, three daemons, both halves, all loads.

All hosts isolate, and their congestion agents talk over the same access links. What one host alone
cannot keep is kept here: a guarantee on ingress against floods that do not react to drops, and
against swarms of short connections. Next to both controllers, `rate` and the published
`gatekeeper`: Levada without agents, best effort (a Linux bridge), rigid limits at the guarantees,
and HTB that lends (bridge, IFB for ingress), each on all three hosts.
"""

from __future__ import annotations

from pathlib import Path

from lab import figure5, peers
from lab.figure5 import NONE, ONE, SWARM, TEN, UDP, Figure
from lab.net import Lab
from lab.report import Report
from lab.switches.levada import BURST_NS

SUMMARY = "Gatekeeper's figure 5, whole: three hosts whose congestion agents talk"

#: What Levada and HTB hold back on ingress while tenants contend. What is given up is judged in
#: bytes that arrive, so it has the time besides that workers were late: half a percent in cells
#: that count (with 1.5 % a run gave up 2.1 and 2.2 %, of 2).
HEADROOM_PERCENT = 1.25

_LOADS = (
    *((ONE, NONE), (ONE, ONE), (ONE, TEN), (ONE, UDP), (ONE, SWARM)),
    *((NONE, ONE), (NONE, TEN), (NONE, UDP)),
)
_QUICK_LOADS = ((ONE, NONE), (ONE, TEN), (ONE, UDP), (ONE, SWARM), (NONE, UDP))

FIGURE = Figure(
    name="gatekeeper-fig5",
    peers=peers.on_hosts(HEADROOM_PERCENT),
    titles=peers.TITLES,
    judged={"tx": ("rate",), "rx": ("rate",)},
    careless="bridge",
    loads={"tx": _LOADS, "rx": _LOADS},
    quick_loads={"tx": _QUICK_LOADS, "rx": _QUICK_LOADS},
    all_isolate=True,
    parameters={"headroom_percent": HEADROOM_PERCENT, "burst_us": BURST_NS // 1000},
)


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays all cells, peers in turn, and judges them."""
    return figure5.play(FIGURE, lab, quick, out)
