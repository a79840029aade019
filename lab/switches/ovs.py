"""Open vSwitch's userspace datapath, started by hand beside whatever the system runs.

An ovsdb-server and an ovs-vswitchd of our own, in their own namespace and directory; a bridge
a host (`datapath_type=netdev`), joined by patch ports. Endpoints are taps made by the switch and
moved into the guest's namespace. With `tso` segmentation-offloaded frames pass whole; it has to
be set before the switch starts (Open vSwitch manual, topics/userspace-tso) and is the fair peer.
It has no shaper in this datapath, so links have no rate.
"""

from __future__ import annotations

from typing import ClassVar

from lab.net import Lab, Namespace, Process, run
from lab.switches.base import Switch
from lab.topology import Endpoint, Topology

_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


class Ovs(Switch):
    """ovs-vswitchd with netdev bridges and taps."""

    name = "ovs"
    tools: ClassVar[tuple[str, ...]] = ("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl")
    packages = "openvswitch-switch"
    has_link_rate = False

    def __init__(self, lab: Lab, topology: Topology, tso: bool = True) -> None:
        super().__init__(lab, topology)
        self.tso = tso

    def _start(self) -> None:
        self._dir = self.lab.dir / "ovs"
        self._dir.mkdir(exist_ok=True)
        for old in self._dir.iterdir():
            old.unlink()
        home = self.lab.namespace("ovs")
        self._home = home
        self._database(home)
        self._vsctl("--no-wait", "init")
        if self.tso:
            self._vsctl(
                "--no-wait", "set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true"
            )
        self._daemon(home)
        for host in self.topology.hosts:
            self._vsctl(
                "add-br", host.name, "--", "set", "bridge", host.name, "datapath_type=netdev"
            )
        first = self.topology.hosts[0].name
        for host in self.topology.hosts[1:]:
            self._patch(first, host.name)
        for endpoint in self.topology.endpoints:
            self._attach(endpoint)

    def _attach(self, endpoint: Endpoint) -> None:
        """Gives an endpoint its device."""
        name = endpoint.name
        self._vsctl("add-port", endpoint.host, name, "--", "set", "interface", name, "type=tap")
        self._home.ip(f"link set {name} netns {self._space(name).name}")
        self._configure_device(name)

    def _database(self, home: Namespace) -> None:
        socket = self._dir / "db.sock"
        run("ovsdb-tool", "create", str(self._dir / "conf.db"), _SCHEMA)
        server = self._spawn(
            home, "ovsdb-server", f"{self._dir}/conf.db", f"--remote=punix:{socket}"
        )
        server.wait_for(socket.exists, "its socket")

    def _daemon(self, home: Namespace) -> None:
        daemon = self._spawn(home, "ovs-vswitchd", f"unix:{self._dir}/db.sock")
        self.processes.append(daemon)

    def _spawn(self, home: Namespace, program: str, *arguments: str) -> Process:
        control = f"--unixctl={self._dir}/{program}.ctl"
        pidfile = f"--pidfile={self._dir}/{program}.pid"
        environment = ("env", f"OVS_RUNDIR={self._dir}")
        return home.spawn(program, *environment, program, *arguments, control, pidfile)

    def _patch(self, a: str, b: str) -> None:
        for here, there in ((a, b), (b, a)):
            port, peer = f"{here}-{there}", f"{there}-{here}"
            self._vsctl(
                *("add-port", here, port, "--", "set", "interface", port),
                *("type=patch", f"options:peer={peer}"),
            )

    def _vsctl(self, *arguments: str) -> None:
        run("ovs-vsctl", f"--db=unix:{self._dir}/db.sock", "--timeout=10", *arguments)
