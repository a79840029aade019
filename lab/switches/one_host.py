"""Levada on one host, whose uplink ends in a network without any switch of ours.

The uplink is a tap, and what is outside has its addresses on that device, in a namespace of its
own, behind one MAC address as behind a router: it may send what it likes, and no other Levada has
looked at it before. Its tenants share the untagged network (a kernel without VLAN devices will do).
"""

from __future__ import annotations

from lab.switches.levada import Levada, toml_table
from lab.topology import Endpoint, Tenant
from lab.workload import Guest

#: The tap behind the uplink.
UPLINK = "uplink"


class OneHost(Levada):
    """The first host of a topology runs Levada, the endpoints of the second are outside."""

    def configuration(self) -> str:
        self._wire = self.lab.namespace("wire")
        uplink = {"port": self._uplink_port(), "netns": self._wire.name}
        host = self._host(self.topology.hosts[0], uplink)
        return "\n".join([toml_table("daemon", name=self._name), host])

    def _uplink_port(self) -> str:
        """What the daemon has of the uplink."""
        return f"tap://{UPLINK}"

    def mac(self, endpoint: str) -> str:
        """The MAC address that a frame to an endpoint needs."""
        outside = self._outside
        wanted = outside[0].name if endpoint in [e.name for e in outside] else endpoint
        return self.topology.mac(next(e for e in self.topology.endpoints if e.name == wanted))

    def device(self, endpoint: str) -> str:
        """The device through which an endpoint sends, in its namespace."""
        return UPLINK if endpoint in [e.name for e in self._outside] else endpoint

    def _vlan(self, tenant: Tenant) -> int | str:
        # Whoever has nobody outside keeps a VLAN: a network with learned addresses floods what it
        # does not know.
        has_peer = any(e.tenant == tenant.name for e in self._outside)
        return "untagged" if has_peer else super()._vlan(tenant)

    def _start(self) -> None:
        super()._start()
        self._wire.ip(f"link set dev {UPLINK} address {self.mac(self._outside[0].name)} up")
        for endpoint in self._outside:
            address = self.topology.address(endpoint)
            self._wire.ip(f"addr add {address}/24 dev {UPLINK}")
            self.guests[endpoint.name] = Guest(endpoint.name, self._wire, address)

    @property
    def _outside(self) -> list[Endpoint]:
        return self.topology.on(self.topology.hosts[1])
