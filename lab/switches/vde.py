"""Plain vde_switch: what FS-VDE was built into and is compared with.

One vde_switch a host, joined by a vde cable (two plugs over a pipe: `dpipe vde_plug = vde_plug`);
endpoints are taps made by vde_plug2tap inside the guest's namespace. Unix sockets are not
bound to a network namespace, so a plug inside reaches the switch outside. The cable has no
rate: as in the publication, the switch itself is slower than the link.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from lab.net import Namespace, Process
from lab.switches.base import Switch
from lab.topology import Endpoint, Host

#: Ports of one switch beyond its endpoints: cables.
_SPARE_PORTS = 8


class Vde(Switch):
    """vde_switch with taps."""

    name = "vde"
    tools: ClassVar[tuple[str, ...]] = ("vde_switch", "vde_plug", "vde_plug2tap", "dpipe")
    packages = "vde2"
    has_link_rate = False

    def _start(self) -> None:
        sockets = [self._switch(host) for host in self.topology.hosts]
        # All others plug into the first: with two hosts, one cable.
        for number, socket in enumerate(sockets[1:], start=1):
            cable = ["dpipe", "vde_plug", str(sockets[0]), "=", "vde_plug", str(socket)]
            self.processes.append(self.lab.spawn(f"cable-{number}", *cable))
        for host, socket in zip(self.topology.hosts, sockets, strict=True):
            for endpoint in self.topology.on(host):
                self.processes.append(plug(self._space(endpoint.name), endpoint, socket))
                self._configure_device(endpoint.name)

    def _switch(self, host: Host) -> Path:
        socket = self.lab.dir / f"vde-{host.name}"
        ports = str(len(self.topology.on(host)) + _SPARE_PORTS)
        process = self.lab.spawn(
            f"vde_switch-{host.name}", "vde_switch", "-s", str(socket), "-n", ports
        )
        process.wait_for((socket / "ctl").exists, "its control socket")
        self.processes.append(process)
        return socket


def plug(space: Namespace, endpoint: Endpoint, directory: Path, port: int = 0) -> Process:
    """Gives a guest a device that is plugged into a VDE control directory, at the first free port
    where no number is given."""
    name = endpoint.name
    number = ("-p", str(port)) if port else ()
    process = space.spawn(f"plug-{name}", "vde_plug2tap", "-s", str(directory), *number, name)
    process.wait_for(lambda: space.has_device(name), f"device {name}")
    return process
