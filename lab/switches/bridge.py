"""The kernel's own ways: best effort, HTB with borrowing, rigid limits.

Each host is a namespace with a Linux bridge; guests hang on it by veth, segmentation offload
on. Its access link is a veth into a fabric namespace, bridged there (a cable, with two hosts).
The link's rate is held by token buckets (tc-tbf(8)) at both ends, which drop when
`fabric_queue_bytes` stand there, as a switch's port does.

`htb` shares the link by tenant: a class each with its guarantee as `rate` and the link as
`ceil` (tc-htb(8)), on the access link for egress, and for ingress on an intermediate device
(IFB) at the link's rate less a headroom, so that the queue stands here and not in the fabric.
`rigid` has `ceil` at the guarantee. Guarantees not given follow from the weights.
Sizes are counted as on the wire as far as these can: 24 bytes of preamble, FCS and gap, short
frames padded; but a segmentation-offloaded frame, whose headers are counted per segment, counts
the 24 bytes once, so that such traffic gets up to 1.6 % more than the wire would carry.
"""

from __future__ import annotations

from typing import ClassVar

from lab.net import Lab, Namespace, bridge, ifb, veth
from lab.switches.base import Switch
from lab.topology import Host, Tenant, Topology

#: Part of the link held back on ingress: what Levada holds back by default.
HEADROOM = 0.02
#: What a bucket may hold: one segmentation-offloaded frame and a little, else none passes.
_BURST_BYTES = 80 << 10
#: Preamble, FCS and gap, and the shortest frame on the wire with them. (Not by tc-stab(8),
#: which would forget the headers of offloaded segments.)
_WIRE = "overhead 24 mpu 84 linklayer ethernet"
#: Packets an HTB class holds. They may be offloaded ones of 64 KiB; TCP's own limits on what
#: one connection has queued keep it from standing full.
_LEAF_PACKETS = 160
#: The access link's device in each host.
UPLINK = "uplink"


class Bridge(Switch):
    """Best effort: the link is shared as the traffic happens to fall."""

    name = "bridge"

    def _start(self) -> None:
        spaces = {
            host.name: self.lab.namespace(f"host-{host.name}") for host in self.topology.hosts
        }
        for host in self.topology.hosts:
            self._attach_guests(host, spaces[host.name])
        if len(self.topology.hosts) > 1:
            self._fabric(spaces)
            for host in self.topology.hosts:
                self._share(host, spaces[host.name])

    def _attach_guests(self, host: Host, space: Namespace) -> None:
        bridge(space, "br0")
        for endpoint in self.topology.on(host):
            veth(space, endpoint.name, self._space(endpoint.name), endpoint.name, self.topology.mtu)
            space.ip(f"link set {endpoint.name} master br0")
            self._configure_device(endpoint.name)

    def _fabric(self, spaces: dict[str, Namespace]) -> None:
        cable_up(self.lab, self.topology, spaces)
        for space in spaces.values():
            space.ip(f"link set {UPLINK} master br0")

    def _share(self, host: Host, space: Namespace) -> None:
        """How the host's own scheduling shares its link: here it only holds the rate."""
        hold_rate(space, UPLINK, host.link_bps, self.topology.fabric_queue_bytes)


class Htb(Bridge):
    """A class a tenant that lends what it does not use."""

    name = "htb"
    borrows: ClassVar[bool] = True

    def __init__(self, lab: Lab, topology: Topology, headroom: float = HEADROOM) -> None:
        super().__init__(lab, topology)
        self.headroom = headroom

    def _share(self, host: Host, space: Namespace) -> None:
        if not host.isolates:
            super()._share(host, space)
            return
        egress = host.egress_bps or host.link_bps
        ingress = int((host.ingress_bps or host.link_bps) * (1 - self.headroom))
        ifb(space, "ifb0", UPLINK)
        self._classes(space, UPLINK, host, egress, "src")
        self._classes(space, "ifb0", host, ingress, "dst")

    def _classes(self, space: Namespace, device: str, host: Host, link_bps: int, side: str) -> None:
        """HTB on a device; a tenant is told by the IPv4 network on that side of its frames.
        What no filter knows (ARP) passes unscheduled, as HTB does without a default class."""
        burst = f"burst {_BURST_BYTES} cburst {_BURST_BYTES} {_WIRE}"
        space.tc(f"qdisc add dev {device} root handle 1: htb default 0")
        space.tc(
            f"class add dev {device} parent 1: classid 1:1 htb"
            f" rate {link_bps}bit ceil {link_bps}bit {burst}"
        )
        for number, (tenant, rate) in enumerate(self._rates(host, link_bps), start=10):
            ceil = link_bps if self.borrows else rate
            space.tc(
                f"class add dev {device} parent 1:1 classid 1:{number} htb rate {rate}bit"
                f" ceil {ceil}bit {burst} quantum {64 << 10}"
            )
            space.tc(f"qdisc add dev {device} parent 1:{number} pfifo limit {_LEAF_PACKETS}")
            space.tc(
                f"filter add dev {device} parent 1: protocol ip prio 1 u32"
                f" match ip {side} {self.topology.subnet(tenant)} flowid 1:{number}"
            )

    def _rates(self, host: Host, link_bps: int) -> list[tuple[Tenant, int]]:
        """Each tenant's `rate`: its guarantee, or where none has one its part by weight."""
        tenants = self.topology.tenants_on(host)
        weights = sum(t.weight for t in tenants)
        if all(t.guarantee_bps is None for t in tenants):
            return [(t, link_bps * t.weight // weights) for t in tenants]
        # HTB knows no class without a rate; 1 kbit/s is as good as none.
        return [(t, t.guarantee_bps or 1000) for t in tenants]


class Rigid(Htb):
    """A class a tenant that never gets more than its guarantee."""

    name = "rigid"
    borrows = False


def cable_up(lab: Lab, topology: Topology, spaces: dict[str, Namespace]) -> None:
    """A switch that knows no tenants, with a cable to each host's `UPLINK`: toward the host it
    holds the access link's rate, and drops what its port's queue cannot hold."""
    fabric = lab.namespace("fabric")
    bridge(fabric, "br0")
    for host in topology.hosts:
        veth(spaces[host.name], UPLINK, fabric, host.name, topology.mtu)
        fabric.ip(f"link set {host.name} master br0")
        hold_rate(fabric, host.name, host.link_bps, topology.fabric_queue_bytes)


def hold_rate(space: Namespace, device: str, rate_bps: int, queue_bytes: int) -> None:
    """A token bucket: frames longer than the burst would be dropped, so it holds one."""
    space.tc(
        f"qdisc add dev {device} root tbf rate {rate_bps}bit burst {_BURST_BYTES}"
        f" limit {queue_bytes} {_WIRE}"
    )
