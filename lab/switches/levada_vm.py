"""Levada with some endpoints in virtual machines, behind vhost-user:// ports. The others are
namespaces with tap devices, as ever."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import ClassVar

from lab.guest import Image, Machine
from lab.net import Lab
from lab.switches.levada import Levada, knobs, toml_table
from lab.topology import Endpoint, Host, Topology

#: Endpoints of that name are machines.
_PREFIX = "vm"


class LevadaVm(Levada):
    """`machines` has the endpoints that are virtual machines, by name; their guests have their
    addresses when `running` begins."""

    name = "levada-vm"
    ready_s: ClassVar[float] = 20.0

    def __init__(self, lab: Lab, topology: Topology, image: Image, queues: int = 1) -> None:
        super().__init__(lab, topology)
        self.queues = queues
        self.machines = {
            e.name: Machine(lab, e.name, image, self._socket(e), topology.mac(e), queues)
            for e in topology.endpoints
            if e.name.startswith(_PREFIX)
        }

    def _socket(self, endpoint: Endpoint) -> Path:
        return self.lab.dir / f"{endpoint.name}.sock"

    def _start(self) -> None:
        super()._start()
        for machine in self.machines.values():
            machine.start()
        for endpoint in self.topology.endpoints:
            if endpoint.name in self.machines:
                machine = self.machines[endpoint.name]
                machine.await_boot()
                machine.run(f"ip addr add {self.topology.address(endpoint)}/24 dev eth0")

    def _meet(self) -> None:
        for tenant in self.topology.tenants:
            members = [e for e in self.topology.endpoints if e.tenant == tenant.name]
            for first, second in itertools.pairwise(members):
                ping = f"ping -c1 -w5 {self.topology.address(second)}"
                if first.name in self.machines:
                    self.machines[first.name].run(f"{ping} >/dev/null")
                else:
                    self._space(first.name).run(*ping.split())

    def _endpoint(self, endpoint: Endpoint, host: Host) -> str:
        if endpoint.name not in self.machines:
            return super()._endpoint(endpoint, host)
        return toml_table(
            "[switch.tenant.endpoint]",
            name=endpoint.name,
            port=f"vhost-user://{self._socket(endpoint)}",
            mtu=self.topology.mtu,
            queues=self.queues if self.queues > 1 else None,
            **self._identity(endpoint),
            **(knobs(endpoint) if host.isolates else {}),
        )
