"""Two hosts with several links between them, a Levada process each, whose uplink is a bond.

Each link is two cables that meet in a network not ours: a Linux bridge whose ports hold the link's
rate and drop what their queues cannot hold, as in `lab.switches.levada_cluster`. Pulling a cable
sets the far port down, so that the host's interface loses its carrier. With one link the uplink is
that link's port and no bond: the baseline.

The bridges stand for cables: they forward the addresses of the bonds' hellos and of LACP, and their
ports take two tags. Cables that lose frames do so at random, by a program of some instructions
where frames come into the fabric (tc-bpf(8), clsact); the hosts then hand over the wire's frames,
so that what is lost is one of these and not an offloaded chunk.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lab.net import Lab, Namespace, bridge, veth
from lab.switches.bridge import hold_rate
from lab.switches.levada import BURST_NS, Levada, rate_text, toml_table
from lab.topology import Host, Topology

#: Bytes of a VLAN tag, which a bond's number is: beside the tenant's, one more than a port takes.
TAG_BYTES = 4
#: What a bridge forwards of the reserved addresses 01-80-C2-00-00-00 to -0F, a bit each: -0E.
HELLO_MASK = 1 << 0xE
#: The same of a port, which alone may be told to forward LACPDUs: -02.
LACP_MASK = 1 << 0x2

#: Of the offset from which a classic program reads what is no byte of the frame, the one that is a
#: random number (SKF_AD_OFF + SKF_AD_RANDOM of linux/filter.h).
RANDOM_AT = 0x1_0000_0000 - 0x1000 + 56
#: Verdicts of a program that acts itself: TC_ACT_UNSPEC and TC_ACT_SHOT.
GO_ON, DROP = 0xFFFF_FFFF, 2


class LevadaBond(Levada):
    """Links of these `rates` in bit/s, used as `mode` says (docs/howto/bonding.md); `options` are
    the bond's other keys. Each direction of a link loses one frame of `loses_one_of`; 0: none.
    `memory` is each daemon's for frames, where it is not the default."""

    name = "levada"
    tools: ClassVar[tuple[str, ...]] = ("tc",)

    def __init__(
        self,
        lab: Lab,
        topology: Topology,
        rates: Sequence[int],
        mode: str = "balance-rr",
        options: dict[str, object] | None = None,
        loses_one_of: int = 0,
        memory: str | None = None,
    ) -> None:
        super().__init__(lab, topology, burst_ns=BURST_NS)
        self.rates = tuple(rates)
        self.links = len(self.rates)
        self.loses_one_of = loses_one_of
        self.mode = mode
        self.memory = {"memory": memory} if memory else {}
        self.options = options or {}
        self._fabric: Namespace | None = None
        self._names: list[str] = []
        #: Where each host's daemon runs.
        self.spaces: dict[str, Namespace] = {}

    def _start(self) -> None:
        spaces = {h.name: self.lab.namespace(f"host-{h.name}") for h in self.topology.hosts}
        self.spaces = spaces
        self._cable(spaces)
        self._environment = {"LEVADA_RUN_DIR": str(self.lab.dir / "run")}
        self._names = []
        for host in self.topology.hosts:
            config = self.lab.dir / f"{host.name}.toml"
            self._name = f"{self.lab.tag}-{host.name}"
            self._names.append(self._name)
            parts = [toml_table("daemon", name=self._name, **self.memory), self._host(host, {})]
            config.write_text("\n".join(parts))
            space = spaces[host.name]
            self._run = ("ip", "netns", "exec", space.name, *self._command(str(config)))
            self._begin(label=f"levada-{host.name}")

    def _cable(self, spaces: dict[str, Namespace]) -> None:
        queue_bytes = self.topology.fabric_queue_bytes
        self._fabric = cable(self.lab, spaces, self.rates, self._mtu(), queue_bytes)
        for host, link in itertools.product(self.topology.hosts, range(self.links)):
            if self.loses_one_of:
                spaces[host.name].run("ethtool", "-K", f"up{link}", "tso", "off", "gso", "off")
                lose(self._fabric, _port(host.name, link), self.loses_one_of)

    def _mtu(self) -> int:
        if self.links == 1:
            return self.topology.mtu
        # Between switches a number is more than a port takes whatever is below it.
        tags = 2 if self.options.get("order") == "switched" else 1
        return self.topology.mtu + tags * TAG_BYTES

    def pull(self, link: int) -> None:
        """Pulls a cable out, at both ends."""
        self._set(link, "down")

    def plug(self, link: int) -> None:
        """Puts it back."""
        self._set(link, "up")

    def silence(self, host: str, link: int) -> None:
        """All that a host sends over a link is lost, and nobody loses a carrier."""
        assert self._fabric is not None
        lose(self._fabric, _port(host, link), 1)

    def unsilence(self, host: str, link: int) -> None:
        """It arrives again."""
        assert self._fabric is not None
        self._fabric.tc(f"qdisc del dev {_port(host, link)} clsact")

    def _set(self, link: int, state: str) -> None:
        assert self._fabric is not None
        for host in self.topology.hosts:
            self._fabric.ip(f"link set dev {_port(host.name, link)} {state}")

    def sample(self) -> dict[str, Any]:
        """Both daemons' switches, as if they were one's."""
        switches = []
        for name in self._names:
            self._name = name
            switches += super().sample()["switches"]
        return {"switches": switches}

    def _uplink_table(self, host: Host, uplink: dict[str, str]) -> str:
        burst = f"{self.burst_ns} ns"
        rates = [rate_text(rate) for rate in self.rates]
        mtu = self._mtu()
        if self.links == 1:
            options = {"rate": rates[0], "burst": burst, "mtu": mtu}
            return toml_table("switch.uplink", port="packet://up0", **options)
        members = [
            toml_table("[switch.uplink.bond.member]", port=f"packet://up{n}", rate=rate, mtu=mtu)
            for n, rate in enumerate(rates)
        ]
        bond = toml_table("switch.uplink.bond", mode=self.mode, **self.options)
        return "\n".join([toml_table("switch.uplink", burst=burst), bond, *members])


def cable(
    lab: Lab, spaces: Mapping[str, Namespace], rates: Sequence[int], mtu: int, queue_bytes: int
) -> Namespace:
    """Gives each host, by its name, the interfaces `up0`, `up1` and so on, a link of these rates
    each; where the links' bridges are."""
    fabric = lab.namespace("fabric")
    for link, rate in enumerate(rates):
        bridge(fabric, f"br{link}")
        fabric.ip(f"link set br{link} type bridge group_fwd_mask {HELLO_MASK}")
        for name, space in spaces.items():
            port = _port(name, link)
            veth(space, f"up{link}", fabric, port, mtu)
            fabric.ip(f"link set {port} master br{link}")
            fabric.ip(f"link set {port} type bridge_slave group_fwd_mask {LACP_MASK}")
            hold_rate(fabric, port, rate, queue_bytes)
    return fabric


def _port(host: str, link: int) -> str:
    return f"{host}-{link}"


def lose(space: Namespace, port: str, one_of: int) -> None:
    """Has one frame of so many that come into a port be lost, each by its own dice."""
    program = [
        (0x20, 0, 0, RANDOM_AT),  # load a random word
        (0x94, 0, 0, one_of),  # modulo
        (0x15, 0, 1, 0),  # 0 or not
        (0x06, 0, 0, DROP),
        (0x06, 0, 0, GO_ON),
    ]
    text = ",".join([str(len(program)), *(" ".join(map(str, line)) for line in program)])
    space.tc(f"qdisc add dev {port} clsact")
    # One word to tc, though it has blanks.
    command = f"filter add dev {port} ingress bpf da bytecode".split()
    space.run("tc", *command, text)
