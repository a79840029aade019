"""Two hosts with several links between them, whose tenants are in tunnels over the bond.

As `lab.switches.levada_bond`, but that the members carry no VLANs: each host has a device `host0`
behind its switch with the address at which its tunnels end (docs/howto/bonding.md).
"""

from __future__ import annotations

import time

from lab.net import Failed
from lab.switches.levada import toml_table
from lab.switches.levada_bond import LevadaBond
from lab.topology import Host

#: Bytes that a tunnel over IPv4 adds to a frame of the guests'.
OUTER = 50
VNI = 5001
READY_S = 15.0


class LevadaBondTunnel(LevadaBond):
    """Every tenant's network is in tunnels."""

    def _start(self) -> None:
        super()._start()
        first, *others = self.topology.hosts
        # A neighbour that is asked for before it is there is asked again after seconds.
        deadline = time.monotonic() + READY_S
        for other in others:
            while not self._answers(first, other):
                if time.monotonic() > deadline:
                    raise Failed(f"host {other.name} does not answer at its end of tunnels")
                time.sleep(0.1)

    def _answers(self, host: Host, other: Host) -> bool:
        try:
            self.spaces[host.name].run("ping", "-n", "-c1", "-W1", _address(self._number(other)))
        except Failed:
            return False
        return True

    def _mtu(self) -> int:
        # As much room for guests over one link as over several.
        return self.topology.mtu + OUTER

    def _number(self, host: Host) -> int:
        return 1 + [h.name for h in self.topology.hosts].index(host.name)

    def _uplink_table(self, host: Host, uplink: dict[str, str]) -> str:
        table = super()._uplink_table(host, uplink)
        vtep = f'[switch.uplink]\nvtep = "{_address(self._number(host))}"\n'
        return table.replace("[switch.uplink]\n", vtep, 1)

    def _host(self, host: Host, uplink: dict[str, str] | None) -> str:
        number = self._number(host)
        text = super()._host(host, uplink)
        for tenant in self.topology.tenants:
            vlan = self.topology.vlan(tenant)
            text = text.replace(f"vlan = {vlan}\n", f"vni = {VNI + vlan}\n")
        parts = [text, toml_table("[switch.tenant]", name="host", vlan="untagged")]
        device = toml_table(
            "[switch.tenant.endpoint]",
            name="host",
            port="tap://host0",
            netns=self.spaces[host.name].name,
            address=[f"{_address(number)}/24"],
            mac=f"02:00:00:00:fe:{number:02x}",
            ip=[_address(number)],
        )
        parts += [device, toml_table("cluster", host=host.name)]
        for other in self.topology.hosts:
            if other != host:
                vtep = _address(self._number(other))
                parts.append(toml_table("[cluster.member]", name=other.name, vtep=vtep))
                for e in self.topology.on(other):
                    keys = {"tenant": e.tenant, "name": e.name, "mac": self.topology.mac(e)}
                    parts.append(toml_table("[cluster.member.endpoint]", **keys))
        return "\n".join(parts)


def _address(number: int) -> str:
    return f"10.99.0.{number}"
