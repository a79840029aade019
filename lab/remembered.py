"""What a switch remembers for services, while attackers fill it: clients that stay, connections,
copies of SYNs, packets in fragments, who waits, and what it thinks of backends.

One host, and two tenants in the untagged network. The victim's has services with two servers, and
clients outside, each with an address of its own. Two attack at once (`lab.counted`). What they fill
is their tenant's part, by a service that never answers (*decoy*), or the server's good name. What
is shared is to have an owner, a bound and a share, by tenant and then by endpoint: so the victim's
clients are to lose nothing. What an attack hit is told by counters of the switch, or of the
servers' kernels.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

from lab import frames
from lab.asker import Asker
from lab.attacked import (
    ASKED_PER_S,
    UNBOUNDED_PER_S,
    VISITS_PER_S,
    pin,
    serve,
    service_table,
    silent_endpoint,
    visits,
)
from lab.costly import BLAMED_PER_S, SERVICE_PORT
from lab.counted import (
    ATTACKERS,
    LOOK_S,
    MATE,
    MOST_PERCENT,
    RIVAL,
    Counted,
    Hit,
    Played,
    Round,
    meanwhile,
    note,
    until,
    until_hit,
)
from lab.net import Lab, Namespace, inside
from lab.sender import packet_socket
from lab.switches.one_host import UPLINK, OneHost
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FlowResult, Tool

LINK_BPS = 1_000_000_000
#: The victim's servers, and the router.
SERVERS = ("web0", "web1")
ROUTER = "blue0"
#: Addresses that attackers may send from, beside their own.
MANY = {MATE: "10.1.128.0/17", RIVAL: "10.2.128.0/17"}
#: Clients outside: the first of their addresses.
CLIENTS, CLIENT = 40, "10.1.64.1"
#: At which ports servers answer at once, and after `WORK_MS`; and one at which nobody listens.
PORT, SLOW_PORT, NO_PORT, WORK_MS = 8080, 8081, 8089, 30
#: The victim's services: with both servers; with one that refuses; and with two places.
WEB, HALF, NARROW = "10.1.0.100", "10.1.0.101", "10.1.0.102"
#: Services that never answer, of each attacker's tenant; and with a single place.
DECOYS = {MATE: "10.1.0.110", RIVAL: "10.2.0.110"}
SHUT = {MATE: "10.1.0.111", RIVAL: "10.2.0.111"}
SILENT = {MATE: ("silent0", "10.1.0.99"), RIVAL: ("silent1", "10.2.0.99")}
_SERVICES = (WEB, HALF, NARROW, *DECOYS.values(), *SHUT.values())
MACS = {address: f"02:00:00:00:f0:{n:02x}" for n, address in enumerate(_SERVICES)}
#: Connections that the switch keeps; clients that it remembers (datapath/src/service/affinity.rs),
#: and packets in fragments (fragments.rs), of each of two tenants.
CONNECTIONS, REMEMBERED, FRAGMENTED = 4096, 16_384 // 2, 4096 // 2
#: Who waits of one endpoint of two at least: a quarter of its tenant's places, and of the switch's
#: a third of what another one leaves that has a third (room.rs).
WAITING = 1024 // 4 + (4096 - 4096 // 3) // 3
#: By how much what is sent is more than what has room.
TIMES = 1.2
#: Connections that stay open during a flood, visits of those that one server of two refuses.
KEPT, VISITS = 20, 20
#: Between the first and the last part of a packet.
APART_S = 0.6
FRAGMENTS_PER_S = 10_000
BLAME_S, HELD_S, ECHO_S = 2.25, 1, 1.0
#: SYNs that servers do not answer, or segments that they reset; the latter come faster.
BLAMED, DISOWNED_PER_S = 64, 1000
#: One bucket of 64 is the attacker's own (datapath/src/service/connections.rs): of 40 clients one
#: or two may be in it with it.
BUCKETS_PERCENT = 85.0

TOPOLOGY = Topology(
    (Tenant("blue"), Tenant("red")),
    (
        *(Endpoint(name, "blue", "host") for name in SERVERS),
        Endpoint(MATE, "blue", "host"),
        Endpoint(ROUTER, "blue", "out"),
        Endpoint(RIVAL, "red", "host"),
    ),
    (Host("host", LINK_BPS), Host("out", LINK_BPS)),
)


# --- the host -----------------------------------------------------------------------------


class Remembering(OneHost):
    """The host. `affinity` is that of the victim's service."""

    def __init__(self, lab: Lab, affinity: str = "client") -> None:
        super().__init__(lab, TOPOLOGY)
        self.affinity = affinity

    @property
    def wire(self) -> Namespace:
        """Where clients are."""
        return self._wire

    def found(self, address: str) -> dict[str, Any]:
        """What is counted of a service."""
        is_at = f"{address}:{SERVICE_PORT}"
        return next(service for service in self.services() if is_at in service["addresses"])

    def kernels(self, counter: str) -> int:
        """What the servers' kernels have counted."""
        return sum(self._space(name).counters()[counter] for name in SERVERS)

    def _host(self, host: Host, uplink: dict[str, str] | None) -> str:
        text = super()._host(host, uplink)
        return text.replace("[[switch]]\n", f"[[switch]]\nconnections = {CONNECTIONS}\n")

    def _vlan(self, tenant: Tenant) -> int | str:
        return "untagged"

    def _identity(self, endpoint: Endpoint) -> dict[str, object]:
        more = [MANY[endpoint.name]] if endpoint.name in MANY else []
        identity = super()._identity(endpoint)
        return {**identity, "ip": [self.topology.address(endpoint), *more]}

    def _endpoint(self, endpoint: Endpoint, host: Host) -> str:
        text = super()._endpoint(endpoint, host)
        if endpoint.name not in ATTACKERS:
            return text
        # Behind the last endpoint of its tenant.
        services = self._victims() if endpoint.name == MATE else []
        return "\n".join([text, self._silent(endpoint.name), *services, *_decoys(endpoint.name)])

    def _silent(self, attacker: str) -> str:
        """A backend without a program."""
        name, ip = SILENT[attacker]
        mac = f"02:00:00:00:fe:{ATTACKERS.index(attacker):02x}"
        return silent_endpoint(name, self.lab.namespace(name), ip, mac)

    def _victims(self) -> list[str]:
        servers = [{"name": name, "port": PORT} for name in SERVERS]
        half = [servers[0], {"name": SERVERS[1], "port": NO_PORT}]
        narrow = [{"name": name, "port": SLOW_PORT, "max_connections": 1} for name in SERVERS]
        # By chance, so that who is forgotten goes elsewhere as often as not.
        web = {"affinity": self.affinity, "policy": "random"}
        return [
            _service("web", WEB, servers, udp=True, keys=web),
            _service("half", HALF, half, keys={"policy": "round-robin"}),
            _service("narrow", NARROW, narrow),
        ]

    def _start(self) -> None:
        super()._start()
        self.wire.ip(f"route add 10.0.0.0/8 dev {UPLINK}")
        for client in clients():
            self.wire.ip(f"addr add {client}/32 dev {UPLINK}")
        for name in (*SERVERS, *ATTACKERS):
            self._space(name).ip(f"route add 10.0.0.0/8 dev {name}")


def _service(
    name: str,
    address: str,
    backends: Sequence[dict[str, Any]],
    udp: bool = False,
    keys: Mapping[str, object] = MappingProxyType({}),
) -> str:
    schemes = ("tcp", "udp") if udp else ("tcp",)
    addresses = [f"{scheme}://{address}:{SERVICE_PORT}" for scheme in schemes]
    return service_table(name, addresses, *backends, mac=MACS[address], **keys)


def _decoys(attacker: str) -> list[str]:
    silent = {"name": SILENT[attacker][0]}
    decoy = _service("decoy", DECOYS[attacker], [silent], udp=True, keys={"affinity": "client"})
    shut = _service("shut", SHUT[attacker], [{**silent, "max_connections": 1}])
    return [decoy, shut]


def clients() -> list[str]:
    """The addresses of clients outside."""
    prefix, first = CLIENT.rsplit(".", 1)
    return [f"{prefix}.{int(first) + n}" for n in range(CLIENTS)]


# --- what is done -------------------------------------------------------------------------


def _attack(
    switch: Remembering, kind: str, to: dict[str, str], per_s: float
) -> AbstractContextManager[list[FlowResult]]:
    """Frames of attackers meanwhile, each to an address."""
    flows = []
    for name, address in to.items():
        is_outside = name == ROUTER
        ends = ["--mac", switch.mac(name), "--to-mac", MACS[address], "--to-ip", address]
        ends += ["--ip", CLIENT if is_outside else switch.guests[name].address]
        options = [kind, "--device", switch.device(name), *ends, "--per-s", str(per_s)]
        flows.append(Tool(f"{kind}-{address}", name, name, "costly", options))
    return meanwhile(switch.guests, flows)


class Visit:
    """A connection of a client to a service: who answers. One that fails says nobody."""

    PATIENCE_S = 1.5

    def __init__(self, switch: Remembering, client: str, to: str) -> None:
        with inside(switch.wire.name):
            self._socket = socket.socket()
        self._socket.settimeout(self.PATIENCE_S)
        self._socket.bind((client, 0))
        with contextlib.suppress(OSError):
            self._socket.connect((to, SERVICE_PORT))

    def ask(self) -> str:
        """Who answers on it."""
        try:
            self._socket.sendall(b"who\n")
            return self._socket.recv(64).decode().strip()
        except OSError:
            return ""

    def close(self) -> None:
        self._socket.close()


def visit(switch: Remembering, client: str, to: str) -> str:
    """Who answers a client."""
    with contextlib.closing(Visit(switch, client, to)) as one:
        return one.ask()


# --- the attacks --------------------------------------------------------------------------


def syns(switch: Remembering) -> Round:
    """SYNs of many addresses: clients stay at their servers, new connections and open ones go on,
    and who is refused by one server gets the other."""
    before = {client: visit(switch, client, WEB) for client in clients()}
    open_ones = [Visit(switch, client, WEB) for client in clients()[:KEPT]]
    asked = [one.ask() for one in open_ones]
    least = round(TIMES * REMEMBERED)

    def new() -> list[int]:
        return [switch.found(DECOYS[name])["new"] for name in ATTACKERS]

    first = new()
    with _attack(switch, "syns", DECOYS, UNBOUNDED_PER_S):
        until(lambda: all(b - a >= least for a, b in zip(first, new(), strict=True)))
        hits = [b - a for a, b in zip(first, new(), strict=True)]
        goes_on = [one.ask() for one in open_ones]
        refused = switch.found(HALF)["redirected"]
        halves = [visit(switch, client, HALF) for client in clients()[-VISITS:]]
        redirected = switch.found(HALF)["redirected"] - refused
        after = {client: visit(switch, client, WEB) for client in clients()}
    for one in open_ones:
        one.close()
    kept = sum(a == b != "" for a, b in zip(asked, goes_on, strict=True))
    stayed = sum(server == after[client] != "" for client, server in before.items())
    return Round(
        "SYNs of many addresses",
        (
            *(
                Hit(f"clients of {name}'s decoy", n, least)
                for name, n in zip(ATTACKERS, hits, strict=True)
            ),
            Hit("SYNs that a server refused and another one got", redirected, 1),
        ),
        (
            Counted("clients stay", stayed, CLIENTS),
            Counted("open ones go on", kept, KEPT),
            Counted("visits where a server refuses", sum(h != "" for h in halves), VISITS),
        ),
    )


def fragments(switch: Remembering) -> Round:
    """First fragments of many packets: the rest of a client's packet follows its first part."""
    spaces = [switch.guests[name].namespace.name for name in SERVERS]
    with contextlib.ExitStack() as stack:
        receivers = [stack.enter_context(_datagrams(space)) for space in spaces]
        with inside(switch.wire.name):
            wire = stack.enter_context(packet_socket(UPLINK))
        forgotten = {name: _forgotten(switch, name) for name in ATTACKERS}
        with _attack(switch, "fragments", DECOYS, FRAGMENTS_PER_S) as sent:
            until(lambda: all(_forgotten(switch, n) > forgotten[n] for n in ATTACKERS))
            for part in range(2):
                for number, client in enumerate(clients()):
                    wire.send(halves(client, number, switch.mac(ROUTER))[part])
                time.sleep(APART_S if part == 0 else LOOK_S)
            hits = {n: _forgotten(switch, n) - forgotten[n] for n in ATTACKERS}
        came = {sender for receiver in receivers for sender in _senders(receiver)}
    refused = sum(sum(flow.detail["refused"].values()) for flow in sent)
    return Round(
        "first fragments",
        tuple(
            # What was refused by the sender's kernel may be what a later one lacks.
            Hit(f"packets of {n} that were forgotten", count - refused, FRAGMENTED)
            for n, count in hits.items()
        ),
        (Counted("datagrams whole", len(came & set(clients())), CLIENTS, BUCKETS_PERCENT),),
    )


def _forgotten(switch: Remembering, name: str) -> int:
    return switch.drops(name).get("no-first-fragment", 0)


def halves(client: str, number: int, mac: str) -> tuple[bytes, bytes]:
    """A datagram to the victim's service in two fragments."""
    whole = frames.udp(5000, SERVICE_PORT, bytes(1000))

    def part(data: bytes, fragment: int) -> bytes:
        packet = frames.ipv4(
            *(client, WEB, frames.UDP, data), fragment=fragment, identification=1 + number
        )
        return frames.ethernet(MACS[WEB], mac, frames.IPV4, packet)

    return part(whole[:504], frames.MORE_FRAGMENTS), part(whole[504:], 504 // 8)


def _datagrams(space: str) -> socket.socket:
    """Receives what servers get."""
    with inside(space):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setblocking(False)
    receiver.bind(("", PORT))
    return receiver


def _senders(receiver: socket.socket) -> Iterator[str]:
    with contextlib.suppress(BlockingIOError):
        while True:
            yield receiver.recvfrom(2048)[1][0]


def held(switch: Remembering) -> Round:
    """SYNs that wait for a place: others wait for theirs beside them."""
    before = switch.found(NARROW)["held"]

    def waiting() -> Iterator[Hit]:
        for name, address in SHUT.items():
            yield Hit(f"of {name} waiting", switch.found(address)["holding"], WAITING)

    with _attack(switch, "syns", SHUT, UNBOUNDED_PER_S):
        hits = until_hit(waiting)
        guest = visits(ROUTER, NARROW)
        guest.begin(switch.guests[ROUTER], switch.guests[ROUTER], 0, HELD_S)
        told = guest.end().detail
    waited = switch.found(NARROW)["held"] - before
    answered, failed = (sum(told[key].values()) for key in ("answered", "failed"))
    return Round(
        "SYNs that wait",
        (*hits, Hit("of the victim's that waited", waited, 1)),
        (Counted("visits answered", answered, answered + failed),),
    )


def unanswered(switch: Remembering) -> Round:
    """SYNs that servers throw away, again and again: none is judged dead."""
    return _blamed(switch, "unanswered", BLAMED_PER_S, "SYNs that servers cannot answer")


def disowned(switch: Remembering) -> Round:
    """Segments that servers reset, as nothing of theirs was before: none is judged dead."""
    return _blamed(switch, "disowned", DISOWNED_PER_S, "resets that refuse nothing")


def _blamed(switch: Remembering, kind: str, per_s: float, attack: str) -> Round:
    before = {client: visit(switch, client, WEB) for client in clients()}

    def counts() -> dict[str, int]:
        names = {"silent": "SYNs that were not answered", "ejections": "ejections"}
        told = {what: _backends(switch, key) for key, what in names.items()}
        return {**told, "segments that servers have reset": switch.kernels("TcpOutRsts")}

    first = counts()
    answers: list[bool] = []
    with _attack(switch, kind, dict.fromkeys(ATTACKERS, WEB), per_s):
        end = time.monotonic() + BLAME_S
        while time.monotonic() < end:
            client = clients()[len(answers) % CLIENTS]
            answers.append(visit(switch, client, WEB) == before[client] != "")
            time.sleep(1 / VISITS_PER_S)
    # Behind the attack: of a server that nobody else visits for a second it may be believed.
    grown = {what: count - first[what] for what, count in counts().items()}
    servers, ejected = len(SERVERS), grown.pop("ejections")
    what = list(grown)[kind == "disowned"]
    return Round(
        attack,
        (Hit(what, grown[what], BLAMED),),
        (
            Counted("servers not ejected", servers - min(servers, ejected), servers),
            Counted("visits answered where the client was before", sum(answers), len(answers)),
        ),
    )


def _backends(switch: Remembering, key: str) -> int:
    count: int = sum(backend[key] for backend in switch.found(WEB)["backends"])
    return count


def echoes(switch: Remembering) -> Round:
    """Pings of services from outside: who asks for a service's address is answered."""
    before = _unanswered(switch)
    asker_ip = clients()[0]
    with inside(switch.wire.name):
        asker = Asker(UPLINK, "02:00:00:00:01:fe", asker_ip, WEB)
    targets = {WEB, *DECOYS.values()}
    with contextlib.ExitStack() as stack:
        for target in targets:
            stack.enter_context(_attack(switch, "echoes", {ROUTER: target}, UNBOUNDED_PER_S / 2))
        for _ in range(round(ECHO_S * ASKED_PER_S)):
            asker.ask()
            time.sleep(1 / ASKED_PER_S)
        time.sleep(LOOK_S)
        asker.look()
        beyond = _unanswered(switch) - before
    return Round(
        "pings of services",
        (Hit("pings beyond the budget", beyond, 1000),),
        (Counted("questions answered", asker.answered, asker.asked, MOST_PERCENT),),
    )


def _unanswered(switch: Remembering) -> int:
    drops: dict[str, int] = switch.sample()["switches"][0]["uplink"]["drops"]
    return drops.get("service-budget", 0)


#: An attack, played once.
Play = Callable[[Remembering], Round]
#: The last one may leave harm that lasts for half a minute.
ATTACKS: tuple[Play, ...] = (syns, fragments, held, echoes, unanswered, disowned)
#: Those that are floods of SYNs.
FLOODS: tuple[Play, ...] = (syns, held)


def play(
    lab: Lab,
    core: int,
    rounds: int,
    say: Callable[[str], None],
    affinity: str = "client",
    attacks: Sequence[Play] = ATTACKS,
) -> Played:
    """Attacks, one after the other, `rounds` times, each time on a daemon of its own."""
    played: Played = {}
    for _ in range(rounds):
        switch = Remembering(lab, affinity)
        with switch.running():
            pin(switch.daemon, core)
            for name in SERVERS:
                serve(switch.guests[name], name, PORT)
                serve(switch.guests[name], name, SLOW_PORT, WORK_MS)
            for attack in attacks:
                note(played, attack(switch), say)
    return played
