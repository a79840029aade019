"""Levada: writes the configuration of a topology, runs `levada run`, samples `levada show`.

All hosts are switches of one daemon. With two hosts one link joins their uplinks, as fast as
the faster of them, and each switch holds its own access link's rate; with more, each has its
link to a plain switch, the fabric, on whose trunk ports they end.
"""

from __future__ import annotations

import json
import signal
from typing import Any, ClassVar

from lab.net import Failed, Lab, Process, run
from lab.programs import program
from lab.switches.base import Switch
from lab.topology import Endpoint, Host, Tenant, Topology

#: For uplinks behind which nothing is slower than they are: the lateness of a loop that costs them
#: no rate is then the same on egress as it always is on ingress.
BURST_NS = 1_000_000
#: What the one daemon is called among hosts.
_CLUSTER_HOST = "lab"


class Levada(Switch):
    """`order` and `ingress` are the configuration's; so is `headroom`, in percent, whether the
    endpoints' devices are `persistent`, the `controller` of the switches' congestion agents, None
    for switches that do not talk to each other, and the uplinks' `burst`, in ns."""

    name = "levada"
    #: What starting and stopping it takes at most.
    ready_s: ClassVar[float] = 10.0
    stop_grace_s: ClassVar[float] = 5.0

    def __init__(
        self,
        lab: Lab,
        topology: Topology,
        order: str = "fair",
        ingress: str = "queue",
        headroom_percent: float | None = None,
        persistent: bool = False,
        controller: str | None = None,
        burst_ns: int | None = None,
    ) -> None:
        super().__init__(lab, topology)
        self.controller = controller
        self.burst_ns = burst_ns
        self.persistent = persistent
        self.order = order
        self.ingress = ingress
        self.headroom_percent = headroom_percent
        self._name = lab.tag

    def _start(self) -> None:
        config = self.lab.dir / "levada.toml"
        config.write_text(self.configuration())
        home = self.lab.namespace("levada")
        self._environment = {"LEVADA_RUN_DIR": str(self.lab.dir / "run")}
        self._run = ("ip", "netns", "exec", home.name, *self._command(str(config)))
        self.daemon = self._begin()

    def _begin(self, *options: str, label: str = "levada") -> Process:
        """Starts a daemon and waits until it is ready."""
        process = self.lab.spawn(label, *self._run, *options, env=self._environment)
        self.lab.defer(lambda: process.stop(signal.SIGTERM, self.stop_grace_s))
        process.wait_for(
            lambda: f"levada: {self._name} ready" in process.output(), "ready ports", self.ready_s
        )
        self.processes.append(process)
        return process

    def _command(self, config: str) -> list[str]:
        """What runs it."""
        return [str(program()), "run", "-c", config]

    def sample(self) -> dict[str, Any]:
        """`levada show --json`, as it is."""
        return self._shown()

    def services(self) -> list[dict[str, Any]]:
        """`levada show services --json`."""
        shown: list[dict[str, Any]] = self._shown("services")["services"]
        return shown

    def service(self) -> dict[str, Any]:
        """The same of the first service."""
        return self.services()[0]

    def drops(self, endpoint: str) -> dict[str, int]:
        """What was dropped of an endpoint's frames so far, by reason."""
        tenants = [t for s in self.sample()["switches"] for t in s["tenants"]]
        found = (e for t in tenants for e in t["endpoints"] if e["name"] == endpoint)
        drops: dict[str, int] = next(found)["drops"]
        return drops

    def vcc_of_endpoints(self) -> list[dict[str, Any]]:
        """`levada show vcc --json`, by endpoint."""
        endpoints: list[dict[str, Any]] = self._shown("vcc")["endpoints"]
        return endpoints

    def _shown(self, *what: str) -> dict[str, Any]:
        line = (str(program()), "show", *what, "--name", self._name, "--json")
        text = run(*line, env=self._environment)
        try:
            shown: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError as error:
            raise Failed(f"levada show --json is not JSON: {text[:300]!r}") from error
        return shown

    def set(self, kind: str, path: str, key: str) -> None:
        """`levada set`: changes KEY=VALUE of what is at `path`."""
        line = (str(program()), "set", kind, path, key, "--name", self._name)
        run(*line, env=self._environment)

    def configuration(self) -> str:
        """The topology as Levada's TOML."""
        hosts = self.topology.hosts
        parts = [toml_table("daemon", name=self._name)]
        if len(hosts) == 2:
            parts.append(self._link("fabric", max(h.link_bps for h in hosts)))
            ends = {hosts[0].name: "link://fabric/a", hosts[1].name: "link://fabric/b"}
        else:
            ends = {h.name: f"link://{h.name}/a" for h in hosts}
        for host in hosts:
            parts.append(self._host(host, {"port": ends[host.name]} if len(hosts) > 1 else None))
        if len(hosts) > 2:
            parts += [self._link(h.name, h.link_bps) for h in hosts]
            parts.append(_fabric(hosts))
        if self.controller is not None:
            # All hosts are switches of this daemon, whose agents need no network between them.
            parts.append(toml_table("cluster", host=_CLUSTER_HOST, controller=self.controller))
        return "\n".join(parts)

    def _host(self, host: Host, uplink: dict[str, str] | None) -> str:
        """A host's switch; `uplink` is its uplink's port, and where that is."""
        options: dict[str, str] = {"order": self.order, "ingress": self.ingress}
        if self.headroom_percent is not None:
            options["headroom"] = f"{self.headroom_percent:g} %"
        parts = [toml_table("[switch]", name=host.name, **options)]
        if uplink is not None:
            parts.append(self._uplink_table(host, uplink))
        for tenant in self.topology.tenants_on(host):
            vlan = None if uplink is None else self._vlan(tenant)
            shares = knobs(tenant) if host.isolates else {}
            parts.append(toml_table("[switch.tenant]", name=tenant.name, vlan=vlan, **shares))
            for endpoint in self.topology.of(tenant, host):
                parts.append(self._endpoint(endpoint, host))
        return "\n".join(parts)

    def _uplink_table(self, host: Host, uplink: dict[str, str]) -> str:
        """`[switch.uplink]`."""
        egress = rate_text(host.egress_bps or host.link_bps)
        ingress = rate_text(host.ingress_bps or host.link_bps)
        rate = {"egress": egress, "ingress": ingress}
        burst = None if self.burst_ns is None else f"{self.burst_ns} ns"
        return toml_table("switch.uplink", **uplink, rate=rate, burst=burst, mtu=self.topology.mtu)

    def _vlan(self, tenant: Tenant) -> int | str:
        """What carries a tenant over the uplink."""
        return self.topology.vlan(tenant)

    def _endpoint(self, endpoint: Endpoint, host: Host) -> str:
        address = self.topology.address(endpoint)
        return toml_table(
            "[switch.tenant.endpoint]",
            name=endpoint.name,
            port=f"tap://{endpoint.name}",
            netns=self._space(endpoint.name).name,
            address=[f"{address}/24"],
            mtu=self.topology.mtu,
            persistent=self.persistent or None,
            **(self._identity(endpoint) if endpoint.declared else {}),
            **(knobs(endpoint) if host.isolates else {}),
        )

    def _identity(self, endpoint: Endpoint) -> dict[str, object]:
        """The addresses that an endpoint declares."""
        return {"mac": self.topology.mac(endpoint), "ip": [self.topology.address(endpoint)]}

    def _link(self, name: str, rate_bps: int) -> str:
        queue = f"{self.topology.fabric_queue_bytes} B"
        return toml_table("[link]", name=name, rate=rate_text(rate_bps), queue=queue)


def _fabric(hosts: tuple[Host, ...]) -> str:
    """A switch without uplink whose ports are the far ends of the hosts' links."""
    ports = [
        toml_table("[switch.tenant.endpoint]", name=h.name, port=f"link://{h.name}/b", trunk=True)
        for h in hosts
    ]
    head = [toml_table("[switch]", name="fabric"), toml_table("[switch.tenant]", name="fabric")]
    return "\n".join(head + ports)


def knobs(node: Tenant | Endpoint) -> dict[str, object]:
    """Weight, guarantee and limit as keys of the configuration."""
    keys: dict[str, object] = {"weight": node.weight}
    if node.guarantee_bps is not None:
        keys["guarantee"] = rate_text(node.guarantee_bps)
    if node.limit_bps is not None:
        keys["limit"] = rate_text(node.limit_bps)
    return keys


def rate_text(bps: int) -> str:
    return f"{bps} bit/s"


def toml_table(header: str, **fields: object) -> str:
    """A TOML table; a key whose value is None is left out."""
    lines = [f"[{header}]"]
    lines += [f"{key} = {_value(value)}" for key, value in fields.items() if value is not None]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """A TOML value. JSON's strings, lists, numbers and booleans are TOML's too."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)
