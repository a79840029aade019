"""Levada on several hosts: a process each, in a namespace each, around a network not ours.

Each host's access link is a veth that its daemon takes over with `packet://`; the host itself,
whose address the congestion agents use, is an endpoint with a small guarantee. The network
between is the one of `lab.switches.bridge`: a Linux bridge whose ports hold the link's rate and
drop what their queues cannot hold. Tenants cross it as VLANs.
"""

from __future__ import annotations

import shutil
from typing import Any, ClassVar

from lab.net import Lab, Namespace, Process, run
from lab.programs import program
from lab.switches.bridge import UPLINK, cable_up
from lab.switches.levada import BURST_NS, Levada, rate_text, toml_table
from lab.topology import Host, Topology

#: UDP port of the agents.
_AGENTS_PORT = 7370
#: The part of the link that the host itself is promised: agents, ARP, an operator.
_HOST_PART = 0.005


class LevadaCluster(Levada):
    """`controller` is the configuration's: `rate`, `gatekeeper`, or None for hosts that do not talk
    to each other."""

    name = "levada"
    tools: ClassVar[tuple[str, ...]] = ("tc",)

    def __init__(
        self,
        lab: Lab,
        topology: Topology,
        controller: str | None = "rate",
        headroom_percent: float | None = None,
    ) -> None:
        # The wires between hosts have no rate, so nothing stands behind an uplink.
        super().__init__(
            lab,
            topology,
            headroom_percent=headroom_percent,
            controller=controller,
            burst_ns=BURST_NS,
        )
        self.daemons: dict[str, Process] = {}

    def _start(self) -> None:
        spaces = {h.name: self.lab.namespace(f"host-{h.name}") for h in self.topology.hosts}
        self._cable(spaces)
        self._environment = {"LEVADA_RUN_DIR": str(self.lab.dir / "run")}
        if self.controller is not None:
            self._found()
        for host in self.topology.hosts:
            space = spaces[host.name]
            space.ip(f"addr add {self._agents_address(host)}/24 dev {UPLINK}")
            config = self.lab.dir / f"{host.name}.toml"
            config.write_text(self._configuration_of(host))
            self._run = ("ip", "netns", "exec", space.name, *self._command(str(config)))
            self._name = self._instance(host)
            self.daemons[host.name] = self._begin(label=f"levada-{host.name}")

    def _cable(self, spaces: dict[str, Namespace]) -> None:
        """Gives each host its `UPLINK`."""
        cable_up(self.lab, self.topology, spaces)

    def _instance(self, host: Host) -> str:
        return f"{self.lab.tag}-{host.name}"

    def _found(self) -> None:
        """Makes the cluster: its authority, and each host's key and certificate."""
        first, *others = [self._papers(host) for host in self.topology.hosts]
        # Those of an earlier cluster of this lab.
        for papers in (first, *others):
            shutil.rmtree(papers, ignore_errors=True)
        levada = str(program())
        run(levada, "cluster", "init", "-d", first, "--host", self.topology.hosts[0].name)
        for host, papers in zip(self.topology.hosts[1:], others, strict=True):
            signer = f"{levada} cluster sign -d {first}"
            run(levada, "cluster", "join", "-d", papers, "--host", host.name, "--via", signer)

    def _papers(self, host: Host) -> str:
        return str(self.lab.dir / f"papers-{host.name}")

    def sample(self) -> dict[str, Any]:
        """All daemons' switches, as if they were one's; and each daemon's worker, with the clock it
        was read at, by host."""
        shown = {host.name: self._show(host) for host in self.topology.hosts}
        return {
            "switches": [switch for s in shown.values() for switch in s["switches"]],
            "workers": {
                host: {key: s[key] for key in ("now_ns", "worker")} for host, s in shown.items()
            },
        }

    def _show(self, host: Host) -> dict[str, Any]:
        self._name = self._instance(host)
        return super().sample()

    def _configuration_of(self, host: Host) -> str:
        parts = [toml_table("daemon", name=self._instance(host))]
        parts.append(self._host(host, self._uplink(host)))
        parts.append(toml_table("[switch.tenant]", name="host", vlan="untagged"))
        parts.append(
            toml_table(
                "[switch.tenant.endpoint]",
                name="host",
                port=f"host://{UPLINK}",
                guarantee=rate_text(round(host.link_bps * _HOST_PART)),
            )
        )
        if self.controller is not None:
            parts.append(self._cluster(host))
        return "\n".join(parts)

    def _uplink(self, host: Host) -> dict[str, str]:
        """Its port, and what else there is to say of it."""
        return {"port": f"packet://{UPLINK}"}

    def _cluster(self, host: Host) -> str:
        """`[cluster]`, with the same members in each host's file."""
        parts = [
            toml_table(
                "cluster",
                host=host.name,
                listen=f"{self._agents_address(host)}:{_AGENTS_PORT}",
                directory=self._papers(host),
                controller=self.controller,
            )
        ]
        for member in self.topology.hosts:
            address = f"{self._agents_address(member)}:{_AGENTS_PORT}"
            parts.append(toml_table("[cluster.member]", name=member.name, address=address))
            for e in self.topology.on(member):
                keys = {"tenant": e.tenant, "name": e.name, "mac": self.topology.mac(e)}
                parts.append(toml_table("[cluster.member.endpoint]", **keys))
        return "\n".join(parts)

    def _agents_address(self, host: Host) -> str:
        return f"10.99.0.{1 + self.topology.hosts.index(host)}"
