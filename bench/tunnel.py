"""Tenants on two hosts: one TCP connection through a tunnel, next to the same without one and to
Linux's own.

Two daemons in namespaces of their own, joined by a veth as by a cable, each with the host behind
its switch; the tenant crosses it once as VXLAN and once in a VLAN. Linux has a bridge and a vxlan
device in each. Neither has a link's rate: what limits is the CPU, for all alike. Guests have an MTU
of 1450 in tunnels, so that frames fit the cable with the outer headers around them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import ClassVar

from bench.pairs import COLUMNS, Measure, interleaved, ratio, row
from bench.throughput import ROUNDS, WINDOW_S
from lab.cell import Cell, measure
from lab.net import Lab, Namespace, bridge, veth
from lab.report import Report, at_least
from lab.stats import table
from lab.switches import LevadaCluster, Switch
from lab.switches.bridge import UPLINK
from lab.switches.levada import toml_table
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import TcpFlow

#: A rate of the cable that nothing here reaches.
_FAR_ABOVE_BPS = 100_000_000_000
#: The tenant's network.
_VNI = 5001
#: What is left of the cable's MTU behind the outer headers: Ethernet, IPv4, UDP, VXLAN.
_INNER_MTU = 1450
#: How much of the rate of Linux, and of that without tunnels, the tunnels have to reach.
_AT_LEAST = {"linux": 1.0, "vlan": 0.9}


class Cabled(LevadaCluster):
    """Levada on two hosts with nothing but a cable between them."""

    name: ClassVar[str] = "vlan"
    has_link_rate = False

    def __init__(self, lab: Lab, topology: Topology) -> None:
        super().__init__(lab, topology, controller=None)

    def _cable(self, spaces: dict[str, Namespace]) -> None:
        _cable(self.topology, spaces)


class Tunnelled(Cabled):
    """The same whose tenant crosses the cable in tunnels."""

    name: ClassVar[str] = "levada"

    def _uplink(self, host: Host) -> dict[str, str]:
        return super()._uplink(host) | {"vtep": self._agents_address(host)}

    def _host(self, host: Host, uplink: dict[str, str] | None) -> str:
        (tenant,) = self.topology.tenants
        vlan = f"vlan = {self.topology.vlan(tenant)}"
        return super()._host(host, uplink).replace(vlan, f"vni = {_VNI}")

    def _configuration_of(self, host: Host) -> str:
        parts = [super()._configuration_of(host), toml_table("cluster", host=host.name)]
        for other in self.topology.hosts:
            if other != host:
                vtep = self._agents_address(other)
                parts.append(toml_table("[cluster.member]", name=other.name, vtep=vtep))
                for e in self.topology.on(other):
                    keys = {"tenant": e.tenant, "name": e.name, "mac": self.topology.mac(e)}
                    parts.append(toml_table("[cluster.member.endpoint]", **keys))
        return "\n".join(parts)


class LinuxVxlan(Switch):
    """A bridge in each host with the guest, by a veth, and a vxlan device."""

    name = "linux"
    has_link_rate = False

    def _start(self) -> None:
        spaces = {h.name: self.lab.namespace(f"host-{h.name}") for h in self.topology.hosts}
        _cable(self.topology, spaces)
        addresses = {h.name: f"10.99.0.{n}" for n, h in enumerate(self.topology.hosts, start=1)}
        for host, space in spaces.items():
            space.ip(f"addr add {addresses[host]}/24 dev {UPLINK}")
            (other,) = (address for name, address in addresses.items() if name != host)
            ends = f"local {addresses[host]} remote {other} dstport 4789 dev {UPLINK}"
            space.ip(f"link add vx0 type vxlan id {_VNI} {ends}")
            space.ip(f"link set dev vx0 mtu {_INNER_MTU} up")
            bridge(space, "br0", ["vx0"])
            for endpoint in self.topology.endpoints:
                if endpoint.host == host:
                    guest, name = self._space(endpoint.name), endpoint.name
                    veth(space, name, guest, name, self.topology.mtu)
                    space.ip(f"link set {name} master br0")
                    self._configure_device(name)


def tunnel(lab: Lab, report: Report, quick: bool) -> None:
    """One TCP connection between two hosts: in tunnels, in a VLAN, and in Linux's tunnels."""
    kinds: tuple[Callable[[Lab, Topology], Switch], ...] = (Tunnelled, Cabled, LinuxVxlan)
    names = ("levada", "vlan", "linux")
    rows: list[Cell] = []
    with contextlib.ExitStack() as running:

        def measured(switch: Switch) -> Measure:
            running.enter_context(switch.running())

            def once() -> tuple[Cell, float]:
                src, dst = (endpoint.name for endpoint in switch.topology.endpoints)
                labels = {"section": "tunnel", "switch": switch.name}
                cell = measure(switch, [TcpFlow("flow", src, dst)], WINDOW_S[quick], labels)
                # The CPU is meant to bind it: it counts unless something disturbed it.
                cell = replace(cell, valid=cell.disturbed is None)
                return cell, cell.goodput_bps["flow"] / 1e9

            return once

        switches = zip(names, kinds, strict=True)
        ours, *others = [measured(kind(lab, _two_hosts(name))) for name, kind in switches]
        pairs = interleaved(ROUNDS[quick], ours, dict(zip(names[1:], others, strict=True)), rows)
    report.cells += [cell.as_row() for cell in rows]
    report.claims += [
        at_least(f"tunnel.vs-{name}", ratio(pairs[name]), f"x {name}", least)
        for name, least in _AT_LEAST.items()
    ]
    report.parameters["tunnel_pairs"] = {n: [asdict(p) for p in ps] for n, ps in pairs.items()}
    what = {"vlan": "Levada without tunnels", "linux": "Linux's vxlan and bridge"}
    lines = [row(what[name], ps, ".3f") for name, ps in pairs.items()]
    title = "tunnel: one TCP connection between two hosts, in Levada's tunnels; Gbit/s"
    report.tables.append(f"{title}\n" + table(["", *COLUMNS], lines))


def _two_hosts(name: str) -> Topology:
    """Two hosts with an endpoint each of one tenant, named after `name`."""
    hosts = tuple(Host(f"{name}{n}", _FAR_ABOVE_BPS) for n in range(2))
    ends = tuple(Endpoint(host.name, name, host.name) for host in hosts)
    # Levada's guests get what fits by themselves.
    mtu = _INNER_MTU if name == "linux" else 1500
    return Topology((Tenant(name),), ends, hosts, mtu=mtu)


def _cable(topology: Topology, spaces: dict[str, Namespace]) -> None:
    """A veth between two hosts."""
    first, second = (spaces[host.name] for host in topology.hosts)
    veth(first, UPLINK, second, UPLINK)
