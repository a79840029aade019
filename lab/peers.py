"""What hosts that talk are compared with, by the names that results and tables have for them: next
to Levada the kernel's own ways, Levada without agents, and Gatekeeper as it was published."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lab.net import Lab
from lab.switches import Bridge, Htb, LevadaCluster, Rigid, Switch
from lab.switches.bridge import HEADROOM
from lab.topology import Topology

TITLES = {
    "bridge": "best effort",
    "rigid": "rigid limits",
    "htb": "HTB, lending",
    "apart": "Levada, no agents",
    "gatekeeper": "Gatekeeper as published",
    "rate": "Levada",
}


def on_hosts(
    headroom_percent: float = 100 * HEADROOM,
) -> Mapping[str, Callable[[Lab, Topology], Switch]]:
    """How each is made, a daemon a host; HTB and Levada hold back so much on ingress."""

    def levada(controller: str | None) -> Callable[[Lab, Topology], Switch]:
        return lambda lab, shape: LevadaCluster(lab, shape, controller, headroom_percent)

    return {
        "bridge": Bridge,
        "rigid": Rigid,
        "htb": lambda lab, shape: Htb(lab, shape, headroom=headroom_percent / 100),
        "apart": levada(None),
        "gatekeeper": levada("gatekeeper"),
        "rate": levada("rate"),
    }
