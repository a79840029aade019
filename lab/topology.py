"""What a testbed consists of, as plain data, apart from whatever switch builds it.

Hosts have an access link each, tenants own endpoints, endpoints live on hosts. The access links
meet in a fabric that is no bottleneck itself; with two hosts it is a mere cable. Addresses follow
from the position in the topology, so the same topology looks the same behind every switch.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tenant:
    """A tenant, the same on all hosts. Rates hold per host and direction."""

    name: str
    weight: int = 1
    guarantee_bps: int | None = None
    limit_bps: int | None = None


@dataclass(frozen=True)
class Endpoint:
    """One VM or container. Its name is also its device's: at most 15 characters."""

    name: str
    tenant: str
    host: str
    weight: int = 1
    guarantee_bps: int | None = None
    limit_bps: int | None = None
    #: Whether the switch is told its addresses, and holds it to them.
    declared: bool = True


@dataclass(frozen=True)
class Host:
    """A host and its access link of `link_bps` in each direction.

    `egress_bps` and `ingress_bps` are what its switch is told of that rate (by default the
    truth). `isolates` false is a host that does nothing for its tenants: all weigh the same."""

    name: str
    link_bps: int
    egress_bps: int | None = None
    ingress_bps: int | None = None
    isolates: bool = True


@dataclass(frozen=True)
class Topology:
    """A whole testbed."""

    tenants: tuple[Tenant, ...]
    endpoints: tuple[Endpoint, ...]
    hosts: tuple[Host, ...]
    mtu: int = 1500
    #: How much a full link's far end holds before it drops (a shallow switch's port).
    fabric_queue_bytes: int = field(default=256 << 10)

    def on(self, host: Host) -> list[Endpoint]:
        """The endpoints of a host, in order."""
        return [e for e in self.endpoints if e.host == host.name]

    def tenants_on(self, host: Host) -> list[Tenant]:
        """The tenants with an endpoint on a host, in order."""
        present = {e.tenant for e in self.on(host)}
        return [t for t in self.tenants if t.name in present]

    def of(self, tenant: Tenant, host: Host) -> list[Endpoint]:
        """A tenant's endpoints on a host, in order."""
        return [e for e in self.on(host) if e.tenant == tenant.name]

    def vlan(self, tenant: Tenant) -> int:
        """The VLAN that carries a tenant between hosts."""
        return 10 * self._tenant_number(tenant.name)

    def subnet(self, tenant: Tenant) -> str:
        """The IPv4 network of a tenant."""
        return f"10.{self._tenant_number(tenant.name)}.0.0/24"

    def address(self, endpoint: Endpoint) -> str:
        """The IPv4 address of an endpoint, without prefix length (24)."""
        tenant, number = self._position(endpoint)
        return f"10.{tenant}.0.{number}"

    def mac(self, endpoint: Endpoint) -> str:
        """The locally administered MAC address of an endpoint."""
        tenant, number = self._position(endpoint)
        return f"02:00:00:00:{tenant:02x}:{number:02x}"

    def _tenant_number(self, name: str) -> int:
        return 1 + [t.name for t in self.tenants].index(name)

    def _position(self, endpoint: Endpoint) -> tuple[int, int]:
        """Tenant's number and the endpoint's within it, both from 1."""
        peers = [e for e in self.endpoints if e.tenant == endpoint.tenant]
        return self._tenant_number(endpoint.tenant), 1 + peers.index(endpoint)
