"""Levada with its endpoints attached as they were to vde_switch: through its VDE control sockets.

One control directory a host and tenant, one numbered plug an endpoint, and in the guest the same
vde_plug2tap that plain vde_switch has. What the plugs do counts as the switch's CPU use there and
here.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from lab.switches.levada import Levada, knobs, toml_table
from lab.switches.vde import plug
from lab.topology import Endpoint, Host


class LevadaVde(Levada):
    """Levada with vde:// ports."""

    name = "levada-vde"
    tools: ClassVar[tuple[str, ...]] = ("vde_plug2tap",)
    packages = "vde2"

    def _start(self) -> None:
        super()._start()
        for endpoint in self.topology.endpoints:
            directory, number = self._place(endpoint)
            self.processes.append(plug(self._space(endpoint.name), endpoint, directory, number))
            self._configure_device(endpoint.name)

    def _place(self, endpoint: Endpoint) -> tuple[Path, int]:
        """The directory and number of an endpoint's plug."""
        host = next(h for h in self.topology.hosts if h.name == endpoint.host)
        tenant = next(t for t in self.topology.tenants if t.name == endpoint.tenant)
        number = 1 + self.topology.of(tenant, host).index(endpoint)
        return self.lab.dir / f"vde-{endpoint.host}-{endpoint.tenant}", number

    def _endpoint(self, endpoint: Endpoint, host: Host) -> str:
        directory, number = self._place(endpoint)
        return toml_table(
            "[switch.tenant.endpoint]",
            name=endpoint.name,
            port=f"vde://{directory}[{number}]",
            mac=self.topology.mac(endpoint),
            ip=[self.topology.address(endpoint)],
            mtu=self.topology.mtu,
            **(knobs(endpoint) if host.isolates else {}),
        )


class LevadaVdeUnpaced(LevadaVde):
    """The same with links that are no bottleneck: what limits is the CPU, as with vde_switch."""

    has_link_rate: ClassVar[bool] = False
