"""What every switch of the lab can do: be started with a topology, and be stopped."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from lab.net import Failed, Lab, Namespace, Process, missing_tools
from lab.programs import Missing
from lab.topology import Topology
from lab.workload import Guest

#: Programs that every testbed needs, and the Debian packages that hold them.
_TOOLS = ("ip", "tc", "ping", "iperf3")
_PACKAGES = "iproute2 iputils-ping iperf3"


class Switch(ABC):
    """A switch, or several joined ones, with the endpoints of a topology.

    Use `with switch.running():`. Inside, `guests` maps endpoint names to where workloads run,
    and `processes` are the programs whose CPU use is the switch's."""

    #: How tables and results call it.
    name: ClassVar[str]
    #: Programs it needs besides those, and the Debian packages that hold them.
    tools: ClassVar[tuple[str, ...]] = ()
    packages: ClassVar[str] = ""
    #: Whether the access links have the topology's rate; where not, the switch itself is
    #: what limits, and a cell bound by its CPU is the expected one.
    has_link_rate: ClassVar[bool] = True

    def __init__(self, lab: Lab, topology: Topology) -> None:
        self.lab = lab
        self.topology = topology
        self.guests: dict[str, Guest] = {}
        self.processes: list[Process] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Builds everything; takes it all down on leaving."""
        missing = missing_tools([*_TOOLS, *self.tools])
        if missing:
            packages = f"{_PACKAGES} {self.packages}".strip()
            raise Missing(f"{self.name} needs {', '.join(missing)}: apt install {packages}")
        with self.lab.stage():
            for endpoint in self.topology.endpoints:
                space = self.lab.namespace(endpoint.name)
                address = self.topology.address(endpoint)
                self.guests[endpoint.name] = Guest(endpoint.name, space, address)
            self._start()
            self._meet()
            yield
        self.guests.clear()
        self.processes.clear()

    @abstractmethod
    def _start(self) -> None:
        """Starts the switch and gives each guest its device, with MAC and address, up."""

    def sample(self) -> dict[str, Any] | None:
        """The switch's own counters now (`levada show --json`), where it has any."""
        return None

    def _space(self, endpoint: str) -> Namespace:
        return self.guests[endpoint].namespace

    def _configure_device(self, endpoint_name: str) -> None:
        """MAC, address, MTU of the device named like its endpoint, which is in its namespace."""
        endpoint = next(e for e in self.topology.endpoints if e.name == endpoint_name)
        space = self._space(endpoint.name)
        mac, mtu = self.topology.mac(endpoint), self.topology.mtu
        space.ip(f"link set dev {endpoint.name} address {mac} mtu {mtu} up")
        space.ip(f"addr add {self.topology.address(endpoint)}/24 dev {endpoint.name}")

    def _meet(self) -> None:
        """Neighbours in each tenant's list ping each other once, so that tables are warm and what
        does not work fails here, and not as a flow that stays at zero."""
        for process in self.processes:
            if not process.alive():
                raise Failed(f"{process.label} ended at once:\n{process.output()[-2000:]}")
        for tenant in self.topology.tenants:
            members = [e for e in self.topology.endpoints if e.tenant == tenant.name]
            for first, second in itertools.pairwise(members):
                guest = self.guests[first.name]
                peer = self.topology.address(second)
                guest.namespace.run("ping", "-n", "-q", "-c1", "-w5", peer)

    def introduce(self) -> None:
        """Tells all guests of a tenant each other's addresses for good: a flood that fills its own
        queue would lose the kernel's ARP probes in it, and pause until one gets through."""
        for a, b in itertools.permutations(self.topology.endpoints, 2):
            if a.tenant == b.tenant:
                neighbour = f"{self.topology.address(b)} lladdr {self.topology.mac(b)}"
                self._space(a.name).ip(f"neigh replace {neighbour} dev {a.name} nud permanent")
