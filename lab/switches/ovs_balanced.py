"""Open vSwitch under a controller that balances a service: `levada openflow`, or os-ken's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from lab.net import Lab, Process, inside, veth
from lab.net import run as run_command
from lab.programs import program
from lab.stand_in import StandIn
from lab.switches.levada import toml_table
from lab.switches.ovs import Ovs
from lab.topology import Endpoint, Topology

#: The address that the controllers balance, beside those of the topology's first tenant.
SERVICE = "10.1.0.100"
SERVICE_MAC = "02:00:00:00:01:64"
PORT = 80
#: Debian's interpreter, for whose packages os-ken is one.
SYSTEM_PYTHON = "/usr/bin/python3"
OSKEN = "/usr/bin/osken-manager"
#: Where the switch connects to os-ken, on its own namespace's loopback.
OSKEN_PORT = 6653
#: Of `levada openflow`: more than a run has, so that none is turned away.
CONNECTIONS = 1 << 20
#: What the queue before a limited endpoint holds, as time at its rate.
QUEUE_MS = 100


class OvsBalanced(Ovs):
    """A bridge whose service is before `servers`; `mode` is reactive, hash or os-ken."""

    tools: ClassVar[tuple[str, ...]] = (*Ovs.tools, "ovs-ofctl", "ethtool")

    def __init__(
        self,
        lab: Lab,
        topology: Topology,
        servers: tuple[str, ...],
        mode: str,
        policy: str = "round-robin",
    ) -> None:
        super().__init__(lab, topology, tso=False)
        self.mode = mode
        self.policy = policy
        self.servers = [self._endpoint(name) for name in servers]
        self.controller: Process | None = None

    def _endpoint(self, name: str) -> Endpoint:
        return next(endpoint for endpoint in self.topology.endpoints if endpoint.name == name)

    def _start(self) -> None:
        super()._start()
        bridge = self.topology.hosts[0].name
        self._vsctl("set-fail-mode", bridge, "secure")
        if self.mode == "os-ken":
            target = f"tcp:127.0.0.1:{OSKEN_PORT}"
            self.controller = self._osken()
        else:
            target = f"unix:{self._dir}/levada.sock"
            self.controller = self._levada()
        self._vsctl("set-controller", bridge, target)
        self.controller.wait_for(self._is_ready, "the switch's rules", timeout_s=20.0)
        self.processes.append(self.controller)

    def _attach(self, endpoint: Endpoint) -> None:
        """One with a limit has a veth and a token bucket towards it, as the switch has no shaper in
        this datapath; it counts the wire as Levada does, with preamble, FCS and gap."""
        if endpoint.limit_bps is None:
            super()._attach(endpoint)
            return
        inner, outer = endpoint.name, f"{endpoint.name}-o"
        space = self._space(inner)
        veth(self._home, outer, space, inner)
        # A packet socket would pass on checksums that are still to be made.
        space.run("ethtool", "-K", inner, "tx", "off")
        # Open vSwitch removes the discipline that a new port has.
        self._vsctl("add-port", endpoint.host, outer)
        bucket = f"rate {endpoint.limit_bps}bit burst 32k latency {QUEUE_MS}ms overhead 24"
        self._home.tc(f"qdisc add dev {outer} root tbf {bucket}")
        self._configure_device(inner)

    def _levada(self) -> Process:
        service = toml_table(
            "[openflow.service]",
            name="web",
            address=f"{SERVICE}:{PORT}",
            mac=SERVICE_MAC,
            policy=self.policy,
        )
        backends = [
            toml_table(
                "[openflow.service.backend]",
                name=server.name,
                ip=self.topology.address(server),
                mac=self.topology.mac(server),
            )
            for server in self.servers
        ]
        listen = f"unix:{self._dir}/levada.sock"
        head = toml_table(
            "openflow",
            name=self._name,
            listen=listen,
            mode=self.mode,
            connections=CONNECTIONS,
        )
        config = self._dir / "openflow.toml"
        config.write_text("\n".join([head, service, *backends]))
        command = (str(program()), "openflow", "-c", str(config))
        process = self.lab.spawn("openflow", *command, env=self._environment)
        process.wait_for(lambda: f"levada: {self._name} ready" in process.output(), "listening")
        return process

    def _osken(self) -> Process:
        servers = ";".join(
            f"{self.topology.address(server)},{self.topology.mac(server)},{PORT}"
            for server in self.servers
        )
        app = Path(__file__).resolve().parents[1] / "osken_balancer.py"
        return self._home.spawn(
            "os-ken",
            "env",
            f"LB_SERVICE={SERVICE},{SERVICE_MAC},{PORT}",
            f"LB_SERVERS={servers}",
            "PYTHONDONTWRITEBYTECODE=1",
            SYSTEM_PYTHON,
            OSKEN,
            "--ofp-listen-host=127.0.0.1",
            f"--ofp-tcp-listen-port={OSKEN_PORT}",
            str(app),
        )

    def stand_in(self) -> StandIn:
        """Another switch at the same controller, which only asks."""
        if self.mode != "os-ken":
            return StandIn(self._dir / "levada.sock")
        with inside(self._home.name):
            return StandIn(("127.0.0.1", OSKEN_PORT))

    def _is_ready(self) -> bool:
        if self.mode != "os-ken":
            return any(switch["phase"] == "ready" for switch in self.shown()["switches"])
        flows = run_command("ovs-ofctl", "-OOpenFlow13", "dump-flows", self._management)
        return "NORMAL" in flows and SERVICE in flows

    @property
    def _management(self) -> str:
        return f"{self._dir}/{self.topology.hosts[0].name}.mgmt"

    @property
    def _name(self) -> str:
        return self.lab.tag

    @property
    def _environment(self) -> dict[str, str]:
        return {"LEVADA_RUN_DIR": str(self.lab.dir / "run")}

    def shown(self) -> dict[str, Any]:
        """`levada show openflow --json`."""
        return self._show("openflow")

    def service(self) -> dict[str, Any]:
        """`levada show services --json`: the one service."""
        service: dict[str, Any] = self._show("services")["services"][0]
        return service

    def _show(self, what: str) -> dict[str, Any]:
        line = (str(program()), "show", what, "--json", "--name", self._name)
        shown: dict[str, Any] = json.loads(run_command(*line, env=self._environment))
        return shown
