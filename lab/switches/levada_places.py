"""Two hosts with links between them, as `LevadaBond`, and endpoints of three kinds on each: a
namespace with a TAP, an LXC container with an end of a veth pair, and a virtual machine behind a
vhost-user port. Each kind is a tenant of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lab.container import Container
from lab.guest import Image, Machine
from lab.net import Lab
from lab.netpipe import PROGRAM
from lab.switches.levada import knobs, toml_table
from lab.switches.levada_bond import LevadaBond
from lab.topology import Endpoint, Host, Tenant, Topology

NATIVE, CONTAINER, GUEST = "native", "container", "guest"
KINDS = (NATIVE, CONTAINER, GUEST)


def topology(link_bps: int, kinds: Sequence[str] = KINDS) -> Topology:
    """An endpoint of each kind on each of two hosts."""
    ends = [Endpoint(f"{kind[0]}{n}", kind, f"h{n}") for kind in kinds for n in (0, 1)]
    hosts = tuple(Host(f"h{n}", link_bps) for n in (0, 1))
    return Topology(tuple(Tenant(kind) for kind in kinds), tuple(ends), hosts)


class LevadaPlaces(LevadaBond):
    """`containers` and `machines` are those endpoints, by name."""

    ready_s: ClassVar[float] = 20.0

    def __init__(
        self,
        lab: Lab,
        rates: Sequence[int],
        options: dict[str, object],
        image: Image,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        super().__init__(lab, topology(rates[0], kinds), rates, options=options)
        self.kinds = kinds
        self.containers: dict[str, Container] = {}
        self.machines = {
            e.name: Machine(lab, e.name, image, lab.dir / f"{e.name}.sock", self.topology.mac(e))
            for e in self._of(GUEST)
        }

    def _of(self, kind: str) -> list[Endpoint]:
        return [e for e in self.topology.endpoints if e.tenant == kind]

    def _start(self) -> None:
        super()._start()
        for machine in self.machines.values():
            machine.start()
        for endpoint in self._of(CONTAINER):
            address = f"{self.topology.address(endpoint)}/24"
            self.containers[endpoint.name] = container = Container(
                self.lab,
                f"{self.lab.tag}-{endpoint.name}",
                self.spaces[endpoint.host],
                endpoint.name,
                address,
                (PROGRAM,),
            )
            container.start()
        for endpoint in self._of(GUEST):
            machine = self.machines[endpoint.name]
            machine.await_boot()
            machine.run(f"ip addr add {self.topology.address(endpoint)}/24 dev eth0")

    def _meet(self) -> None:
        """Each first endpoint of a kind pings the second."""
        for kind in self.kinds:
            first, second = self._of(kind)
            ping = f"ping -c1 -w5 {self.topology.address(second)}"
            if kind == NATIVE:
                self._space(first.name).run(*ping.split())
            elif kind == CONTAINER:
                self.containers[first.name].run(*ping.split())
            else:
                self.machines[first.name].run(f"{ping} >/dev/null")

    def _endpoint(self, endpoint: Endpoint, host: Host) -> str:
        if endpoint.tenant == NATIVE:
            return super()._endpoint(endpoint, host)
        if endpoint.tenant == CONTAINER:
            port = f"veth://{endpoint.name}"
        else:
            port = f"vhost-user://{self.lab.dir / f'{endpoint.name}.sock'}"
        return toml_table(
            "[switch.tenant.endpoint]",
            name=endpoint.name,
            port=port,
            mtu=self.topology.mtu,
            **self._identity(endpoint),
            **knobs(endpoint),
        )
