"""A victim, a router and an attacker: what stands on the host for each group of attacks.

One host runs Levada behind a link, outside is a bare network (`OneHost`). The victim is promised
half of the link; its tenant is in the untagged network, where the router is. The attacker has one
endpoint of another tenant, and that tenant whatever else an attack needs: more endpoints, VDE
plugs, an interface that cannot cut segments.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lab import waited_for
from lab.costly import SERVICE_PORT, mac_after
from lab.net import Failed, Lab, Namespace, Process, veth
from lab.sender import READY
from lab.switches.levada import toml_table
from lab.switches.one_host import UPLINK, OneHost
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import Guest, Tool

MBIT = 1_000_000
LINK_BPS = 1000 * MBIT
#: Of the link.
GUARANTEED = 0.5
VICTIM, ROUTER, ATTACKER = "blue0", "blue1", "red0"
#: Other endpoints of the attacker's tenant: `m0`, `m1` and so on, in one namespace.
CROWD, MEMBER = "crowd", "m"
FIRST_MEMBER = "02:00:00:01:00:00"
#: The plug with a client and the one without, of a directory in the lab's own.
PLUGS, PLUGGED, EMPTY = "plugs", "plugged", "empty"
#: The victim's service and its server outside; what the victim does there: connections a second,
#: and how many stay open.
SERVICE, SERVER_PORT = "10.1.0.100", 8080
VISITS_PER_S, KEPT = 50, 20
#: The attacker's service, its backend without a program, and the addresses that SYNs come from.
ATTACKED_SERVICE, SILENT, SILENT_IP, ATTACKERS = (
    "10.2.0.100",
    "silent",
    "10.2.0.99",
    "10.2.128.0/17",
)
#: The attacker's director, and its backend, which is nowhere outside.
DIRECTOR, NOWHERE_MAC = "lb", "02:00:00:00:01:fd"
#: An interface that cannot cut segments; the kernel does it, in the time of who sends.
BARE = "bare"
#: The host's end of the link, where that is an interface.
NIC = "nic"
#: The attacker's machine, and how many wait for each call of its guest, which takes some 20 us for
#: them; at 0.2 ms its session would end (docs/reference/ports/vhost-user.md).
MACHINE, MACHINE_MAC, WAITERS = "machine", "02:00:00:02:00:00", 500
#: Who asks the victim's address from outside.
ASKER_MAC, ASKER_IP = "02:00:00:00:01:fe", "10.1.0.254"
#: The victim's global address, the far one that it pings, and the router's link-local one, which is
#: not made of its MAC address (RFC 7217).
VICTIM_IP6, FAR_IP6 = "2001:db8:1::1", "2001:db8:f::1"
ROUTER_IP6 = "fe80::a1b2:c3d4:e5f6:708"
#: Attackers yield the processors that they share with the victim's programs: only what the switch
#: does for them is to harm. Niceness is not enough: the kernel lets a nice program end its slice of
#: milliseconds before a woken one runs (EEVDF). A program of SCHED_IDLE yields at once (sched(7)).
YIELDING = ("chrt", "--idle", "0")
#: The thread that moves every frame.
WORKER = "levada-worker"


def _nothing(switch: Attacked) -> None:
    pass


def _none(switch: Attacked) -> list[str]:
    return []


@dataclass(frozen=True)
class Attack:
    """What the attacker does."""

    name: str
    make: Callable[[Attacked], Tool]
    #: Frames a second that make it an attack: a tenth of the least of any pair that counts in
    #: docs/results/attacks.md. Attackers yield, so a busy machine may let them send next to none.
    least_per_s: float
    #: What is done when it is over, so that the next window is quiet.
    after: Callable[[Attacked], None] = _nothing
    #: Between its start and its window.
    settle_s: float = 0.5
    #: Whether somebody asks for an address meanwhile: the attacker's own tool, or another one.
    is_asked: bool = False
    asks: Callable[[Attacked], Tool] | None = None
    #: What it has hit so far, and how much of that during a window makes it an attack.
    hits: Callable[[Attacked], int] | None = None
    least_hits: int = 1
    #: Whether the attacker is after the victim's frames.
    is_theft: bool = False
    #: Whether the victim visits a service of its own meanwhile.
    is_served: bool = False


@dataclass(frozen=True)
class Scene:
    """A host, and the attacks that are played on it."""

    name: str
    attacks: tuple[Attack, ...]
    #: Tables of the attacker's tenant's other endpoints.
    others: Callable[[Attacked], list[str]] = _none
    #: What is done before the daemon starts, and after.
    before: Callable[[Attacked], None] = _nothing
    after: Callable[[Attacked], None] = _nothing
    #: Whether the attacker's addresses are declared, or else whether it may have learned ones in a
    #: network that tenants share; and whether its tenant is in the victim's.
    declared: bool = True
    may_learn: bool = False
    untagged: bool = False
    limit_bps: int | None = None
    #: Whether the victim's ping goes over IPv6, and by the router.
    by_ipv6: bool = False
    #: Whether the uplink is an interface, which has a longer ring than a tap.
    by_interface: bool = False
    #: Whether both tenants have a service, and so many connections fit into the switch's table.
    connections: int | None = None


def prompt() -> tuple[str, ...]:
    """What starts the victim's ping, so that it is woken at once and a round trip has no other
    program's slice in it: its own stream's server keeps the processor that they share for
    milliseconds (EEVDF). Nothing where that is not allowed, as in a user namespace."""
    prefix = ("chrt", "--fifo", "1")
    allowed = subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode == 0
    return prefix if allowed else ()


def pin(daemon: Process, core: int) -> None:
    """Puts a daemon's worker on a processor of its own."""
    for task in Path(f"/proc/{daemon.pid}/task").iterdir():
        if (task / "comm").read_text().strip() == WORKER:
            os.sched_setaffinity(int(task.name), {core})
            return
    raise Failed(f"the daemon has no thread {WORKER}")


def topology(scene: Scene, factor: float = 1.0) -> Topology:
    """The endpoint of blue with 0 is on the host, that with 1 outside."""
    link_bps = round(factor * LINK_BPS)
    return Topology(
        (
            Tenant("blue", guarantee_bps=round(GUARANTEED * link_bps)),
            Tenant("red", limit_bps=scene.limit_bps),
        ),
        (
            Endpoint(VICTIM, "blue", "host"),
            Endpoint(ROUTER, "blue", "out"),
            Endpoint(ATTACKER, "red", "host", declared=scene.declared),
        ),
        (Host("host", link_bps), Host("out", link_bps)),
    )


class Attacked(OneHost):
    """The host of a scene. `factor` makes its link slower than `LINK_BPS`."""

    tools: ClassVar[tuple[str, ...]] = ("vde_plug", "ethtool", "chrt")
    packages: ClassVar[str] = "vde2 ethtool util-linux"
    # The kernel takes 20 ms to make a device or to remove it, and there are hundreds.
    ready_s: ClassVar[float] = 60.0
    stop_grace_s: ClassVar[float] = 60.0

    def __init__(self, lab: Lab, scene: Scene, factor: float = 1.0) -> None:
        super().__init__(lab, topology(scene, factor))
        self.scene = scene
        self._spaces: dict[str, Namespace] = {}
        #: The machine's front end, where there is one.
        self.machine: Process

    @property
    def plugs(self) -> Path:
        """The VDE directory of the attacker's tenant."""
        return self.lab.dir / PLUGS

    def space(self, name: str) -> Namespace:
        """A namespace of the scene's own; made when it is first asked for."""
        if name not in self._spaces:
            self._spaces[name] = self.lab.namespace(name)
        return self._spaces[name]

    def configuration(self) -> str:
        return "\n".join([super().configuration(), *self.scene.others(self)])

    def _uplink_port(self) -> str:
        return f"packet://{NIC}" if self.scene.by_interface else super()._uplink_port()

    def _begin(self, *options: str, label: str = "levada") -> Process:
        if self.scene.by_interface and not self.processes:
            veth(self._wire, UPLINK, self._wire, NIC)
        return super()._begin(*options, label=label)

    def far(self) -> Guest:
        """Whom the victim pings."""
        router = self.guests[ROUTER]
        return Guest("far", router.namespace, FAR_IP6) if self.scene.by_ipv6 else router

    def pin(self, core: int) -> None:
        """Puts the worker on a processor of its own."""
        pin(self.daemon, core)

    def _start(self) -> None:
        self.scene.before(self)
        super()._start()
        if self.scene.by_ipv6:
            self._speak_ipv6()
        self.scene.after(self)

    def _vlan(self, tenant: Tenant) -> int | str:
        is_shared = tenant.name == "red" and self.scene.untagged
        return "untagged" if is_shared else super()._vlan(tenant)

    def _host(self, host: Host, uplink: dict[str, str] | None) -> str:
        text = super()._host(host, uplink)
        if self.scene.connections is None:
            return text
        return text.replace("[[switch]]\n", f"[[switch]]\nconnections = {self.scene.connections}\n")

    def _endpoint(self, endpoint: Endpoint, host: Host) -> str:
        table = super()._endpoint(endpoint, host)
        if endpoint.name == VICTIM and self.scene.connections is not None:
            far = {"name": "far", "ip": self._address(ROUTER), "mac": self.mac(ROUTER)}
            address = f"{SERVICE}:{SERVICE_PORT}"
            table += service_table("web", address, {**far, "port": SERVER_PORT})
        may_learn = endpoint.name == ATTACKER and self.scene.may_learn
        return table + 'allow = ["learned-addresses"]\n' if may_learn else table

    def _identity(self, endpoint: Endpoint) -> dict[str, object]:
        identity = super()._identity(endpoint)
        if endpoint.name == VICTIM and self.scene.by_ipv6:
            identity["ip"] = [self.topology.address(endpoint), VICTIM_IP6]
        if endpoint.name == ATTACKER and self.scene.connections is not None:
            identity["ip"] = [self.topology.address(endpoint), ATTACKERS]
        return identity

    def _address(self, name: str) -> str:
        return self.topology.address(next(e for e in self.topology.endpoints if e.name == name))

    def _speak_ipv6(self) -> None:
        """The victim reaches what is behind the router by the router's link-local address."""
        victim, wire = self._space(VICTIM), self.guests[ROUTER].namespace
        for space, device in ((victim, VICTIM), (wire, UPLINK)):
            space.sysctl(f"net.ipv6.conf.{device}.accept_dad", "0")
            space.sysctl(f"net.ipv6.conf.{device}.disable_ipv6", "0")
        wire.ip(f"addr add {ROUTER_IP6}/64 dev {UPLINK}")
        wire.ip(f"addr add {FAR_IP6}/64 dev {UPLINK}")
        wire.ip(f"route add 2001:db8:1::/64 dev {UPLINK}")
        victim.ip(f"addr add {VICTIM_IP6}/64 dev {VICTIM}")
        victim.ip(f"route add default via {ROUTER_IP6} dev {VICTIM}")


# --- what attacks need --------------------------------------------------------------------


def _crowd(count: int) -> Callable[[Attacked], list[str]]:
    """So many endpoints in one namespace."""

    def others(switch: Attacked) -> list[str]:
        space = switch.space(CROWD)
        return [
            toml_table(
                "[switch.tenant.endpoint]",
                name=f"{MEMBER}{n}",
                port=f"tap://{MEMBER}{n}",
                netns=space.name,
                mac=mac_after(FIRST_MEMBER, n),
                ipv6=False,
            )
            for n in range(count)
        ]

    return others


def _machine(switch: Attacked) -> list[str]:
    """Endpoints in one namespace, and a port for a machine."""
    machine = toml_table(
        "[switch.tenant.endpoint]",
        name=MACHINE,
        port=f"vhost-user://{switch.lab.dir / MACHINE}.sock",
        listen=True,
        mac=MACHINE_MAC,
    )
    return [*_crowd(PAIRED)(switch), machine]


def _power_on(switch: Attacked) -> None:
    """The machine, for whose calls many wait. It is the attacker's, so it yields."""
    options = ("--socket", f"{switch.lab.dir / MACHINE}.sock", "--waiters", str(WAITERS))
    command = (*YIELDING, sys.executable, "-m", "lab.waited_for", *options)
    switch.machine = switch.lab.spawn(MACHINE, *command)
    switch.machine.wait_for(lambda: READY in switch.machine.output(), "its session")


def _called(switch: Attacked) -> int:
    return waited_for.last_told(switch.machine.output())


def _without_offloads(switch: Attacked) -> list[str]:
    """Two VDE plugs and an interface."""
    table = "[switch.tenant.endpoint]"
    plugs = [
        toml_table(
            table,
            name=name,
            port=f"vde://{switch.plugs}[{number}]",
            mac=mac_after(FIRST_MEMBER, number),
        )
        for number, name in enumerate((PLUGGED, EMPTY), start=1)
    ]
    space, mac = switch.space(BARE), mac_after(FIRST_MEMBER, _NUMBERS[BARE])
    bare = toml_table(table, name=BARE, port=f"packet://{BARE}", netns=space.name, mac=mac)
    return [*plugs, bare]


def service_table(
    name: str, address: str | Sequence[str], *backends: dict[str, object], **keys: object
) -> str:
    """A service of the last tenant."""
    service = toml_table("[switch.tenant.service]", name=name, address=address, **keys)
    head = "[switch.tenant.service.backend]"
    return service + "".join(toml_table(head, **backend) for backend in backends)


def silent_endpoint(name: str, space: Namespace, ip: str, mac: str) -> str:
    """An endpoint of the last tenant without a program."""
    return toml_table(
        "[switch.tenant.endpoint]",
        name=name,
        port=f"tap://{name}",
        netns=space.name,
        mac=mac,
        ip=[ip],
        ipv6=False,
    )


def _silent_service(switch: Attacked) -> list[str]:
    """A service of the attacker's, whose one backend has no program and so never answers."""
    endpoint = silent_endpoint(SILENT, switch.space(CROWD), SILENT_IP, FIRST_MEMBER)
    return [endpoint, service_table("web", f"{ATTACKED_SERVICE}:{SERVICE_PORT}", {"name": SILENT})]


def _directed_service(switch: Attacked) -> list[str]:
    """A service of the attacker's, whose one backend is outside and never answers."""
    director = toml_table("[switch.tenant.endpoint]", name=DIRECTOR, port="director://")
    addresses = [f"{scheme}://{ATTACKED_SERVICE}:{SERVICE_PORT}" for scheme in ("tcp", "udp")]
    backend: dict[str, object] = {"name": "nowhere", "ip": SILENT_IP, "mac": NOWHERE_MAC}
    return [
        director,
        service_table("web", addresses, backend, mac=FIRST_MEMBER, director=DIRECTOR),
    ]


def _serve(switch: Attacked) -> None:
    """The victim's server, outside."""
    serve(switch.guests[ROUTER], "far", SERVER_PORT)


def serve(guest: Guest, name: str, port: int, work_ms: float = 0) -> None:
    """Starts a server (`lab.visitor`)."""
    who = ("--address", guest.address, "--port", str(port), "--name", name)
    command = (sys.executable, "-m", "lab.visitor", "serve", *who, "--work-ms", str(work_ms))
    server = guest.namespace.spawn("server", *command, stdout=subprocess.DEVNULL)
    server.wait_for(lambda: READY in server.output(), "a listening socket")


def visitor(switch: Attacked) -> Tool:
    """The victim at its own service: new connections, and some that stay open."""
    return visits(VICTIM, SERVICE, KEPT)


def visits(src: str, service: str, kept: int = 0) -> Tool:
    """New connections of an endpoint to a service, and some that stay open."""
    options = ["visit", "--to", f"{service}:{SERVICE_PORT}"]
    options += ["--per-s", str(VISITS_PER_S), "--keep", str(kept)]
    return Tool("visits", src, src, "visitor", options)


#: What is added to the first member's MAC address.
_NUMBERS = {PLUGGED: 1, EMPTY: 2, BARE: 3}


def _make_bare(switch: Attacked) -> None:
    space = switch.space(BARE)
    veth(space, BARE, space, f"{BARE}-peer")
    offloads = ("tx", "sg", "tso", "gso", "tx-udp-segmentation")
    space.run("ethtool", "-K", BARE, *(word for name in offloads for word in (name, "off")))


def _plug_in(switch: Attacked) -> None:
    """A client that takes all frames and throws them away. It is the attacker's, so it yields."""
    process = switch.lab.spawn(
        "plug",
        *(*YIELDING, "vde_plug"),
        "-p",
        str(_NUMBERS[PLUGGED]),
        str(switch.plugs),
        stdout=subprocess.DEVNULL,
    )
    process.wait_for(lambda: _PLUGGED_IN in switch.daemon.output(), "a plug")


#: What the daemon says of a client.
_PLUGGED_IN = ": plugged in by"


# --- the attacks --------------------------------------------------------------------------


def _costly(
    kind: str,
    per_s: float,
    to: str | None = None,
    batch: int | None = None,
) -> Callable[[Attacked], Tool]:
    """Frames of the attacker's one endpoint, `to` another endpoint of its tenant."""

    def make(switch: Attacked) -> Tool:
        to_mac = mac_after(FIRST_MEMBER, _NUMBERS[to] if to else 0)
        ends = ["--mac", switch.mac(ATTACKER), "--ip", switch.guests[ATTACKER].address]
        ends += ["--to-mac", to_mac, "--to-ip", "10.2.0.99"]
        return _tool(switch, ATTACKER, [kind, "--device", ATTACKER, *ends], per_s, batch)

    return make


def _by_crowd(
    kind: str, ports: int, per_s: float, batch: int | None = None, to_mac: str = FIRST_MEMBER
) -> Callable[[Attacked], Tool]:
    """Frames of many endpoints."""

    def make(switch: Attacked) -> Tool:
        ends = ["--mac", FIRST_MEMBER, "--ip", "10.2.0.98", "--to-mac", to_mac]
        ends += ["--to-ip", "10.2.0.99", "--ports", str(ports)]
        switch.guests[CROWD] = Guest(CROWD, switch.space(CROWD), "10.2.0.98")
        return _tool(switch, CROWD, [kind, "--device", MEMBER, *ends], per_s, batch)

    return make


def _tool(
    switch: Attacked, src: str, options: Sequence[str], per_s: float, batch: int | None
) -> Tool:
    bound = [] if batch is None else ["--batch", str(batch)]
    return Tool("attack", src, src, "costly", [*options, "--per-s", str(per_s), *bound], YIELDING)


def _syns(switch: Attacked) -> Tool:
    """SYNs of the attacker's one endpoint, from all the addresses that it may have."""
    ends = ["--mac", switch.mac(ATTACKER), "--ip", switch.guests[ATTACKER].address]
    ends += ["--to-mac", FIRST_MEMBER, "--to-ip", ATTACKED_SERVICE]
    return _tool(switch, ATTACKER, ["syns", "--device", ATTACKER, *ends], UNBOUNDED_PER_S, None)


def _from_outside(kind: str, per_s: float) -> Callable[[Attacked], Tool]:
    """Frames for the attacker's service, from made-up addresses outside in its tenant's VLAN. They
    come over the link, so no faster than that."""

    def make(switch: Attacked) -> Tool:
        red = next(t for t in switch.topology.tenants if t.name == "red")
        ends = ["--mac", ASKER_MAC, "--ip", switch.guests[ATTACKER].address]
        ends += ["--to-mac", FIRST_MEMBER, "--to-ip", ATTACKED_SERVICE]
        options = [kind, "--device", UPLINK, *ends, "--vlan", str(switch.topology.vlan(red))]
        options += ["--line-bps", str(switch.topology.hosts[0].link_bps)]
        return _tool(switch, ROUTER, options, per_s, None)

    return make


def _flood_from_outside(switch: Attacked) -> Tool:
    """Frames of 64 bytes for the attacker's endpoint, as many as the link and the sender carry."""
    red = next(t for t in switch.topology.tenants if t.name == "red")
    ends = ["--mac", ASKER_MAC, "--ip", "10.2.0.98"]
    ends += ["--to-mac", switch.mac(ATTACKER), "--to-ip", switch.guests[ATTACKER].address]
    options = ["small", "--device", UPLINK, *ends, "--vlan", str(switch.topology.vlan(red))]
    options += ["--line-bps", str(switch.topology.hosts[0].link_bps)]
    return _tool(switch, ROUTER, options, FLOODED_FROM_OUTSIDE_PER_S, None)


def _theft(kind: str) -> Callable[[Attacked], Tool]:
    def make(switch: Attacked) -> Tool:
        who = ["--mac", switch.mac(ATTACKER), "--router-mac", switch.mac(ROUTER)]
        who += ["--router-ip", ROUTER_IP6, "--victim-mac", switch.mac(VICTIM)]
        who += ["--victim-ip", VICTIM_IP6]
        options = [kind, "--device", ATTACKER, *who]
        return Tool("attack", ATTACKER, ATTACKER, "thief", options)

    return make


def asker(switch: Attacked, storm_per_s: float = 0) -> Tool:
    """Who asks for the victim's address from outside, amid broadcasts in the VLAN of the attacker's
    tenant."""
    red = next(t for t in switch.topology.tenants if t.name == "red")
    options = ["--device", UPLINK, "--mac", ASKER_MAC, "--ip", ASKER_IP]
    options += ["--to-ip", switch.guests[VICTIM].address, "--per-s", str(ASKED_PER_S)]
    options += ["--storm-per-s", str(storm_per_s), "--vlan", str(switch.topology.vlan(red))]
    return Tool("asker", ROUTER, VICTIM, "asker", options)


def _storm(switch: Attacked) -> Tool:
    return asker(switch, STORM_PER_S)


def _victim_asks(switch: Attacked) -> Tool:
    """The victim asks for the router's address."""
    ends = {"device": VICTIM, "mac": switch.mac(VICTIM), "per-s": str(ASKED_PER_S)}
    ends |= {"ip": switch.guests[VICTIM].address, "to-ip": switch.guests[ROUTER].address}
    options = [word for name, value in ends.items() for word in (f"--{name}", value)]
    return Tool("asker", VICTIM, ROUTER, "asker", options)


def _flood_limited(switch: Attacked) -> int:
    return switch.drops(ATTACKER).get("flood-limit", 0)


def _drain(switch: Attacked) -> None:
    """What waits at 1 Mbit/s would wait for minutes."""
    for limit in (f"limit={LINK_BPS} bit/s", f"limit={switch.scene.limit_bps} bit/s"):
        switch.set("tenant", "host/red", limit)
        time.sleep(DRAIN_S)


#: For all of the memory at the link's rate.
DRAIN_S = 1.0
#: More than a switch can take: as many as its rings have room for.
UNBOUNDED_PER_S = 20_000
#: Endpoints of the crowds: who exchange frames, who belong to a group, who fill the memory.
PAIRED, GROUPED, WAITING = 40, 100, 300
#: Frames a second of each endpoint that fills the memory: all of it within `FILL_S`.
BIG_PER_S, SMALL_PER_S = 20, 60
FILL_S = 2.5
#: Datagrams of 1400 bytes, two thirds of the link; that is turned around, and the victim has more
#: than a third of it.
TURNED_PER_S = 60_000
#: More than a worker passes on, where the sender and the link carry it.
FLOODED_FROM_OUTSIDE_PER_S = 1_000_000
#: Broadcasts from outside, above what the switch floods from an uplink (20 000 a second), and
#: questions between them.
STORM_PER_S, ASKED_PER_S = 50_000, 50
#: A table that a flood of two seconds exceeds ten times.
SMALL_TABLE = 4096
#: The default of an endpoint's flood budget, whatever its frames' length.
FLOODED_PER_S = 1000
#: 64 KiB to a network of a hundred is 55 Mbit of copies: the default of an endpoint's budget for a
#: second (docs/explanation/memory-and-floods.md). So few frames are twenty times that.
SLOW_FLOOD_PER_S = 20
#: Frames of which each is a burst of its own, and a call.
SINGLE_PER_S = 50_000

SCENES = (
    Scene(
        "ports without offloads",
        (
            Attack("tiny segments, VDE", _costly("tiny-segments", UNBOUNDED_PER_S, PLUGGED), 20),
            Attack("full segments, VDE", _costly("full-segments", UNBOUNDED_PER_S, PLUGGED), 500),
            Attack(
                "tiny segments, empty plug", _costly("tiny-segments", UNBOUNDED_PER_S, EMPTY), 170
            ),
            Attack("tiny segments, interface", _costly("tiny-segments", UNBOUNDED_PER_S, BARE), 35),
        ),
        others=_without_offloads,
        before=_make_bare,
        after=_plug_in,
    ),
    Scene(
        "a group of 101",
        (
            Attack("64 KiB to a group", _costly("group", FLOODED_PER_S, batch=1), 100),
            Attack("64 bytes to a group", _costly("group-small", UNBOUNDED_PER_S), 2000),
        ),
        others=_crowd(GROUPED),
    ),
    Scene(
        "a shared network of 103",
        (
            Attack(
                "64 KiB to a shared network",
                _costly("group", SLOW_FLOOD_PER_S, batch=1),
                2,
                is_asked=True,
                asks=_victim_asks,
                hits=_flood_limited,
            ),
        ),
        others=_crowd(GROUPED),
        untagged=True,
    ),
    Scene(
        "40 ports",
        (Attack("600 000 local frames/s", _by_crowd("neighbours", PAIRED, 600_000), 30_000),),
        others=_crowd(PAIRED),
    ),
    Scene(
        "a machine for whose calls many wait",
        (
            Attack(
                "single frames to a machine",
                _by_crowd("singles", PAIRED, SINGLE_PER_S, 1, MACHINE_MAC),
                3000,
                hits=_called,
                least_hits=3000,
            ),
        ),
        others=_machine,
        after=_power_on,
    ),
    Scene(
        "300 ports behind 1 Mbit/s",
        (
            Attack(
                "memory, big frames",
                _by_crowd("waiting", WAITING, WAITING * BIG_PER_S, batch=1),
                600,
                _drain,
                FILL_S,
            ),
            Attack(
                "memory, small frames",
                _by_crowd("waiting-small", WAITING, WAITING * SMALL_PER_S, batch=4),
                1800,
                _drain,
                FILL_S,
            ),
        ),
        others=_crowd(WAITING),
        limit_bps=MBIT,
    ),
    Scene(
        "outside",
        (Attack("storm in one VLAN", _storm, 5000, is_asked=True),),
    ),
    Scene(
        "outside an interface",
        (Attack("flood from outside", _flood_from_outside, 10_000),),
        by_interface=True,
    ),
    Scene(
        "services",
        (Attack("SYNs of many addresses", _syns, 1100, is_served=True),),
        others=_silent_service,
        after=_serve,
        connections=SMALL_TABLE,
    ),
    Scene(
        "a director",
        (
            Attack(
                "SYNs turned around", _from_outside("syns", UNBOUNDED_PER_S), 2000, is_served=True
            ),
            Attack("datagrams turned around", _from_outside("datagrams", TURNED_PER_S), 6000),
        ),
        others=_directed_service,
        after=_serve,
        connections=SMALL_TABLE,
    ),
    Scene(
        "a neighbour without `mac`",
        (Attack("router's MAC taken", _theft("mac"), 10, is_theft=True),),
        declared=False,
        untagged=True,
    ),
    Scene(
        "a neighbour that may learn",
        (Attack("router's MAC learned", _theft("mac"), 10, is_theft=True),),
        declared=False,
        may_learn=True,
        untagged=True,
    ),
    Scene(
        "a declared neighbour",
        (Attack("router's link-local taken", _theft("link-local"), 10, is_theft=True),),
        untagged=True,
        by_ipv6=True,
    ),
)
