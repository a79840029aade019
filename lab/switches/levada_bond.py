"""Two hosts with several links between them, a Levada process each, whose uplink is a bond.

Each link is two cables that meet in a network not ours: a Linux bridge whose ports hold the link's
rate and drop what their queues cannot hold, as in `lab.switches.levada_cluster`. Pulling a cable
sets the far port down, so that the host's interface loses its carrier. With one link the uplink is
that link's port and no bond: the baseline.

The bridges stand for cables: they forward the address of the bonds' hellos, and their ports take
two tags.
"""

from __future__ import annotations

from typing import Any, ClassVar

from lab.net import Lab, Namespace, bridge, veth
from lab.switches.bridge import hold_rate
from lab.switches.levada import BURST_NS, Levada, rate_text, toml_table
from lab.topology import Host, Topology

#: Bytes of a VLAN tag, which a bond's number is: beside the tenant's, one more than a port takes.
TAG_BYTES = 4
#: What a bridge forwards of the reserved addresses 01-80-C2-00-00-00 to -0F, a bit each: -0E.
HELLO_MASK = 1 << 0xE


class LevadaBond(Levada):
    """`links` links of the hosts' `link_bps` each, used as `mode` says (docs/howto/bonding.md);
    `options` are the bond's other keys."""

    name = "levada"
    tools: ClassVar[tuple[str, ...]] = ("tc",)

    def __init__(
        self,
        lab: Lab,
        topology: Topology,
        links: int,
        mode: str = "balance-rr",
        options: dict[str, object] | None = None,
    ) -> None:
        super().__init__(lab, topology, burst_ns=BURST_NS)
        self.links = links
        self.mode = mode
        self.options = options or {}
        self._fabric: Namespace | None = None
        self._names: list[str] = []

    def _start(self) -> None:
        spaces = {h.name: self.lab.namespace(f"host-{h.name}") for h in self.topology.hosts}
        self._cable(spaces)
        self._environment = {"LEVADA_RUN_DIR": str(self.lab.dir / "run")}
        self._names = []
        for host in self.topology.hosts:
            config = self.lab.dir / f"{host.name}.toml"
            self._name = f"{self.lab.tag}-{host.name}"
            self._names.append(self._name)
            parts = [toml_table("daemon", name=self._name), self._host(host, {})]
            config.write_text("\n".join(parts))
            space = spaces[host.name]
            self._run = ("ip", "netns", "exec", space.name, *self._command(str(config)))
            self._begin(label=f"levada-{host.name}")

    def _cable(self, spaces: dict[str, Namespace]) -> None:
        """Gives each host its interfaces `up0`, `up1` and so on."""
        fabric = self._fabric = self.lab.namespace("fabric")
        for link in range(self.links):
            bridge(fabric, f"br{link}")
            fabric.ip(f"link set br{link} type bridge group_fwd_mask {HELLO_MASK}")
            for host in self.topology.hosts:
                port = _port(host, link)
                veth(spaces[host.name], f"up{link}", fabric, port, self._mtu())
                fabric.ip(f"link set {port} master br{link}")
                hold_rate(fabric, port, host.link_bps, self.topology.fabric_queue_bytes)

    def _mtu(self) -> int:
        return self.topology.mtu + (TAG_BYTES if self.links > 1 else 0)

    def pull(self, link: int) -> None:
        """Pulls a cable out, at both ends."""
        self._set(link, "down")

    def plug(self, link: int) -> None:
        """Puts it back."""
        self._set(link, "up")

    def _set(self, link: int, state: str) -> None:
        assert self._fabric is not None
        for host in self.topology.hosts:
            self._fabric.ip(f"link set dev {_port(host, link)} {state}")

    def sample(self) -> dict[str, Any]:
        """Both daemons' switches, as if they were one's."""
        switches = []
        for name in self._names:
            self._name = name
            switches += super().sample()["switches"]
        return {"switches": switches}

    def _uplink_table(self, host: Host, uplink: dict[str, str]) -> str:
        burst = f"{self.burst_ns} ns"
        rate = rate_text(host.link_bps)
        mtu = self._mtu()
        if self.links == 1:
            return toml_table("switch.uplink", port="packet://up0", rate=rate, burst=burst, mtu=mtu)
        members = [
            toml_table("[switch.uplink.bond.member]", port=f"packet://up{n}", rate=rate, mtu=mtu)
            for n in range(self.links)
        ]
        bond = toml_table("switch.uplink.bond", mode=self.mode, **self.options)
        return "\n".join([toml_table("switch.uplink", burst=burst), bond, *members])


def _port(host: Host, link: int) -> str:
    return f"{host.name}-{link}"
