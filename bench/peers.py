"""Peers that only the benchmarks know: a bare copy loop, and Open vSwitch over a link with a rate.

The copy loop (ports/examples/copy_loop.rs) reads and writes frames with all offloads between two
taps, or two interfaces that exist, and does nothing else: what it reaches is what the kernel's side
of such a port costs, and what is below it is the price of being a switch.
"""

from __future__ import annotations

from typing import ClassVar

from lab.net import Namespace, run, veth
from lab.programs import example
from lab.switches import Levada, Ovs, Switch
from lab.topology import Endpoint, Host

#: What the token bucket of a link may send at once: one segmentation-offloaded frame and a little.
_BURST_BYTES = 80 << 10
#: Preamble, FCS and gap, and the shortest frame with them (tc-stab(8)'s terms).
_WIRE = "overhead 24 mpu 84 linklayer ethernet"


class CopyLoop(Switch):
    """Two taps and one thread that copies. For topologies with exactly two endpoints."""

    name = "copy"
    has_link_rate = False

    def _start(self) -> None:
        first, second = self.topology.endpoints
        ends = [word for e in (first, second) for word in (self._space(e.name).name, e.name)]
        loop = self.lab.spawn("copy_loop", example("copy_loop"), *ends)
        loop.wait_for(lambda: "copy_loop: ready" in loop.output(), "its devices")
        self.processes.append(loop)
        for endpoint in (first, second):
            self._configure_device(endpoint.name)


class PacketCopyLoop(Switch):
    """The same between two veths that somebody else made, read and written by AF_PACKET."""

    name = "copy"
    has_link_rate = False

    def _start(self) -> None:
        wires = _wires(self)
        first, second = self.topology.endpoints
        ends = [word for e in (first, second) for word in (wires.name, e.name)]
        loop = self.lab.spawn("copy_loop", example("copy_loop"), "--packet", *ends)
        loop.wait_for(lambda: "copy_loop: ready" in loop.output(), "its interfaces")
        self.processes.append(loop)


class PacketLevada(Levada):
    """Levada whose endpoints are veths that somebody else made, taken with packet://."""

    name: ClassVar[str] = "packet"

    def _start(self) -> None:
        self._wires = _wires(self)
        super()._start()

    def _endpoint(self, endpoint: Endpoint, host: Host) -> str:
        made = super()._endpoint(endpoint, host)
        # Its guest's end has the address; the switch's end has none.
        kept = [line for line in made.splitlines() if not line.startswith(("netns", "address"))]
        place = f'netns = "{self._wires.name}"'
        return "\n".join([*kept, place, ""]).replace("tap://", "packet://")


class VethLevada(Levada):
    """Levada whose endpoints named veth... are pairs that it makes."""

    def _endpoint(self, endpoint: Endpoint, host: Host) -> str:
        made = super()._endpoint(endpoint, host)
        return made.replace("tap://", "veth://") if endpoint.name.startswith("veth") else made


class VccLevada(Levada):
    """Levada whose tenants are named after their `vcc`; its guests have no ECN."""

    def _start(self) -> None:
        for guest in self.guests.values():
            guest.namespace.sysctl("net.ipv4.tcp_ecn", "0")
        super()._start()

    def configuration(self) -> str:
        """As TOML."""
        text = super().configuration()
        for tenant in self.topology.tenants:
            head = f'[[switch.tenant]]\nname = "{tenant.name}"\n'
            text = text.replace(head, f'{head}vcc = "{tenant.name}"\n')
        return text


def _wires(switch: Switch) -> Namespace:
    """A namespace with an end of a veth for each endpoint, named like it; the guests have the
    other ends, configured."""
    wires = switch.lab.namespace(f"{switch.name}-wires")
    for endpoint in switch.topology.endpoints:
        name = endpoint.name
        veth(wires, name, switch._space(name), name, switch.topology.mtu)
        switch._configure_device(name)
    return wires


class NearLevada(Levada):
    """Levada whose link has no delay of its own, as a cable between two interfaces has none."""

    def _link(self, name: str, rate_bps: int) -> str:
        return super()._link(name, rate_bps) + 'delay = "0 us"\n'


class LinkedOvs(Ovs):
    """Open vSwitch whose two hosts are joined as an operator would: by a link with a rate.

    Its userspace datapath has no shaper, so the link itself limits: a veth whose two ends each
    have a token bucket (tc-tbf(8)) with as long a queue as a shallow switch's port. Bridges read
    and write these ends through AF_PACKET, as they do with a real NIC."""

    name: ClassVar[str] = "ovs"
    has_link_rate = True

    def _patch(self, a: str, b: str) -> None:
        home = f"{self.lab.tag}-ovs"
        ends = {a: f"up-{a}", b: f"up-{b}"}
        run("ip", "-n", home, "link", "add", ends[a], "type", "veth", "peer", "name", ends[b])
        rates = {host.name: host.link_bps for host in self.topology.hosts}
        for host, end in ends.items():
            bucket = f"rate {rates[host]}bit burst {_BURST_BYTES} {_WIRE}"
            limit = f"limit {self.topology.fabric_queue_bytes}"
            run("ip", "-n", home, "link", "set", end, "up")
            run("tc", "-n", home, *f"qdisc add dev {end} root tbf {limit} {bucket}".split())
            # Without a QoS of this type the switch would take the bucket off its port.
            qos = ("--", "--id=@leave", "create", "qos", "type=linux-noop")
            self._vsctl("add-port", host, end, "--", "set", "port", end, "qos=@leave", *qos)
