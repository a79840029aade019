"""What a switch keeps of its endpoints, while attackers fill it: addresses that are learned,
addresses that belong to who had them first, and connections of virtual congestion control.

Two attack at once (`lab.counted`). Each kind of entry is to have an owner, a bound and a share, by
endpoint and by tenant, so that the victim's entries stay, and find room. On one host addresses are
learned; on another one tenants share the untagged network, where the first user of an address keeps
it, and `vcc` is on.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lab import frames
from lab.attacked import UNBOUNDED_PER_S, pin
from lab.costly import LEAST_BYTES, NOBODY, mac_after
from lab.counted import (
    ATTACKERS,
    LOOK_S,
    MATE,
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
from lab.net import Lab, inside
from lab.numbered import came, frame, outlet
from lab.sender import packet_socket
from lab.switches.levada import Levada
from lab.switches.one_host import UPLINK, OneHost
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import Hostile, Tool

LINK_BPS = 1_000_000_000
VICTIM = "victim0"
#: Between two frames of which none is to find a full ring.
APART_S = 0.002

# --- addresses that are learned -----------------------------------------------------------

#: Whose addresses are learned: a neighbour with many behind it, and one that receives what nobody
#: is known to have.
BEHIND, LISTENER = "behind0", "listener0"
LEARNING = Topology(
    (Tenant("blue"), Tenant("red")),
    (
        Endpoint(VICTIM, "blue", "host"),
        *(Endpoint(name, "blue", "host", declared=False) for name in (BEHIND, LISTENER, MATE)),
        Endpoint(RIVAL, "red", "host", declared=False),
    ),
    (Host("host", LINK_BPS),),
)
#: Addresses behind the neighbour that are learned before the flood, and as many beside it. With its
#: own they are fewer than an endpoint may have (docs/reference/configuration.md: `max_learned`).
LEARNED, MAX_LEARNED = 20, 64
FIRST_LEARNED = "02:0b:00:00:00:00"
#: Addresses of an attacker that found no room: as many as no table of so few endpoints has.
UNLEARNED = 10_000


def learned(switch: Levada) -> Round:
    """Frames from made-up addresses: what is for a neighbour's addresses reaches it alone.

    Each attacker's `fdb-full` tells that its part of the table is full. A table that forgets for
    them what it knew, or has no room for what it is to learn beside them, copies the victim's
    frames to the listener."""
    macs = [mac_after(FIRST_LEARNED, number) for number in range(2 * LEARNED)]
    own = switch.topology.mac(switch.topology.endpoints[0])
    full = {name: _full(switch, name) for name in ATTACKERS}

    def hit() -> Iterator[Hit]:
        for name in ATTACKERS:
            unlearned = _full(switch, name) - full[name]
            yield Hit(f"frames of {name} without room for their address", unlearned, UNLEARNED)

    with contextlib.ExitStack() as stack:
        victim, behind, listener = (
            stack.enter_context(outlet(switch.guests[name].namespace.name, name))
            for name in (VICTIM, BEHIND, LISTENER)
        )
        _send(behind, [frame(own, mac, 0) for mac in macs[:LEARNED]])
        with meanwhile(switch.guests, [_made_up(switch, name, own) for name in ATTACKERS]):
            hits = until_hit(hit)
            _send(behind, [frame(own, mac, 0) for mac in macs[LEARNED:]])
            time.sleep(LOOK_S)
            _send(victim, [frame(mac, own, number) for number, mac in enumerate(macs)])
            time.sleep(LOOK_S)
        came_there, copied = came(behind), came(listener)
    alone = [number for number in range(len(macs)) if came_there[number] and not copied[number]]
    before = sum(number < LEARNED for number in alone)
    return Round(
        "made-up source addresses",
        hits,
        (
            Counted("addresses learned before are not forgotten", before, LEARNED),
            Counted("addresses are learned beside it", len(alone) - before, LEARNED),
        ),
    )


def _full(switch: Levada, name: str) -> int:
    return switch.drops(name).get("fdb-full", 0)


def _made_up(switch: Levada, name: str, to_mac: str) -> Tool:
    """Frames of an attacker, each from another address."""
    ip, unused = switch.guests[name].address, ("--other-mac", NOBODY, "--other-ip", "10.9.0.9")
    who = ["--device", name, "--mac", NOBODY, "--ip", ip, "--to-mac", to_mac, "--to-ip", "10.9.0.9"]
    kind = "mac-flood-learned"
    return Hostile(kind, name, name, kind, UNBOUNDED_PER_S, [*who, *unused])


def _send(by: socket.socket, all_: Sequence[bytes]) -> None:
    for one in all_:
        by.send(one)
        time.sleep(APART_S)


# --- the shared network -------------------------------------------------------------------

#: Outside, of the victim's tenant and the rival's; and who claims what others have, of a third one.
ROUTER, FAR, TAKER = "blue0", "red1", "green0"
SHARED = Topology(
    (Tenant("blue"), Tenant("red"), Tenant("green")),
    (
        Endpoint(VICTIM, "blue", "host"),
        Endpoint(MATE, "blue", "host"),
        Endpoint(RIVAL, "red", "host"),
        Endpoint(TAKER, "green", "host"),
        Endpoint(ROUTER, "blue", "out"),
        Endpoint(FAR, "red", "out"),
    ),
    (Host("host", LINK_BPS), Host("out", LINK_BPS)),
)
#: Connections of `vcc` that the switch keeps: few, so that as many open ones exceed them; and many,
#: so that half-open ones do not, of three endpoints.
FEW_FLOWS, MANY_FLOWS = 1024, 8192


class Shared(OneHost):
    """The host on which tenants share the untagged network. Endpoints declare no IP address."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab, SHARED)

    def vcc(self, name: str) -> dict[str, Any]:
        """`levada show vcc --json` of an endpoint."""
        every = self.vcc_of_endpoints()
        return next(one for one in every if one["path"].endswith(f"/{name}"))

    def set_flows(self, flows: int) -> None:
        """Changes how many connections of `vcc` are kept."""
        self.set("switch", "host", f'vcc={{"flows":{flows},"rescale":false}}')

    def _host(self, host: Host, uplink: dict[str, str] | None) -> str:
        text = super()._host(host, uplink)
        text = text.replace("[[switch]]\n", f"[[switch]]\nvcc = {{ flows = {FEW_FLOWS} }}\n")
        return text.replace("[[switch.tenant]]\n", '[[switch.tenant]]\nvcc = "echo"\n')

    def _vlan(self, tenant: Tenant) -> int | str:
        return "untagged"

    def _identity(self, endpoint: Endpoint) -> dict[str, object]:
        return {"mac": self.topology.mac(endpoint)}

    def _start(self) -> None:
        super()._start()
        # A peer with ECN: the switch speaks it for the guests.
        self._wire.sysctl("net.ipv4.tcp_ecn", "1")


# --- addresses that are held --------------------------------------------------------------

#: Addresses that an endpoint may be first with (datapath/src/owners.rs), that an attacker
#: announces, and that the victim has: half before, half beside. Each has its kernel's own too.
MOST_HELD, ANNOUNCED, VICTIMS = 8, 100, 6
FIRST_OF = {VICTIM: "10.1.1", MATE: "10.1.2", RIVAL: "10.2.2"}
#: How often an attacker announces them all, and how often the victim answers for each of its own.
TURNS, ANSWERS = 4, 3


def held_first(switch: Shared) -> Round:
    """ARP for a hundred addresses each: what the victim has stays its own.

    A third tenant claims all of them: `spoofed-arp` of its endpoint tells how many each attacker
    holds, which is its whole part, and what passes that it holds no more. A table that forgets the
    victim's for theirs, or has no room for its later ones, lets that endpoint have these."""
    addresses = {
        name: [f"{first}.{1 + n}" for n in range(VICTIMS if name == VICTIM else ANNOUNCED)]
        for name, first in FIRST_OF.items()
    }
    half = VICTIMS // 2
    with contextlib.ExitStack() as stack:
        wire = stack.enter_context(_arp(switch, ROUTER))
        by = {name: stack.enter_context(_arp(switch, name)) for name in (*FIRST_OF, TAKER)}

        def announce(name: str, which: Sequence[str]) -> tuple[int, int]:
            """An endpoint tells the router that it has some: how often that passes, and is
            refused."""
            before, mac = _spoofed(switch, name), switch.mac(name)
            _announced(wire)
            _send(by[name], [_answer(mac, ip, switch.mac(ROUTER)) for ip in which])
            time.sleep(LOOK_S)
            announced = _announced(wire)
            return sum(announced[mac, ip] for ip in set(which)), _spoofed(switch, name) - before

        announce(VICTIM, addresses[VICTIM][:half])
        for turn in range(TURNS):
            for name in ATTACKERS:
                announce(name, addresses[name])
            if turn == TURNS // 2:
                announce(VICTIM, addresses[VICTIM][half:])
        taken = {name: announce(TAKER, addresses[name]) for name in ATTACKERS}
        _, refused = announce(TAKER, addresses[VICTIM])
        answered, _ = announce(VICTIM, ANSWERS * addresses[VICTIM])
    free = sum(min(passed, ANNOUNCED - MOST_HELD) for passed, _ in taken.values())
    return Round(
        "ARP for many addresses",
        tuple(Hit(f"addresses of {n}", count, MOST_HELD - 1) for n, (_, count) in taken.items()),
        (
            Counted("addresses of the victim that nobody else gets", refused, VICTIMS),
            Counted("ARP answers of the victim pass", answered, ANSWERS * VICTIMS),
            Counted("addresses are free again", free, 2 * (ANNOUNCED - MOST_HELD)),
        ),
    )


def _arp(switch: Shared, name: str) -> socket.socket:
    """Sends and receives ARP as an endpoint."""
    with inside(switch.guests[name].namespace.name):
        made = packet_socket(switch.device(name), frames.ARP)
    made.setblocking(False)
    return made


def _answer(mac: str, ip: str, to: str) -> bytes:
    """An ARP answer that `ip` is at `mac`."""
    body = frames.arp(2, mac, ip, "10.1.0.254")
    return frames.ethernet(to, mac, frames.ARP, body).ljust(LEAST_BYTES, b"\0")


def _announced(wire: socket.socket) -> Counter[tuple[str, str]]:
    """Which addresses were announced by ARP since the last look, by whom, and how often."""
    announced: Counter[tuple[str, str]] = Counter()
    with contextlib.suppress(BlockingIOError):
        while True:
            received = wire.recv(LEAST_BYTES)
            announced[received[22:28].hex(":"), socket.inet_ntoa(received[28:32])] += 1
    return announced


def _spoofed(switch: Shared, name: str) -> int:
    return switch.drops(name).get("spoofed-arp", 0)


# --- connections of vcc -------------------------------------------------------------------

#: Connections that each attacker opens, so many at a time: more than the table has, together.
OPENED, AT_ONCE = 620, 62
#: Of these it has a quarter of the table at least, but for the victim's, and the rest has no room:
#: less than three eighths are its own (datapath/src/vcc/connections.rs).
OPEN, CROWDED = FEW_FLOWS // 5, OPENED - FEW_FLOWS * 3 // 8
#: Half-open connections of an endpoint that its guest began, or strangers (connections.rs), and how
#: many more there are to be.
HALF_OPEN, MORE = 1024, 1000
#: So few SYNs of strangers that the victim's own segments have room in its ring.
STRANGERS_PER_S = 5000
STRANGERS = "10.9.0.1"
#: What the victim opens meanwhile, and where.
CONNECTIONS, PORT = 20, 8080


def open_connections(switch: Shared) -> Round:
    """More connections that are open than `vcc` has room for: those of the victim find some.

    Each attacker's `open` tells that it has its part, `table-full` that it would have more. In a
    table without parts the victim's find no room, and are not translated."""
    first = {name: _crowded(switch, name) for name in (*ATTACKERS, VICTIM)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_listener(switch))
        for _ in range(OPENED // AT_ONCE):
            for name in ATTACKERS:
                for one in _opened(switch, name, AT_ONCE):
                    stack.enter_context(one)
        hits = []
        for name in ATTACKERS:
            crowded = _crowded(switch, name) - first[name]
            hits.append(Hit(f"open ones of {name}", switch.vcc(name)["open"], OPEN))
            hits.append(Hit(f"of {name} without room", crowded, CROWDED))
        counted = _translated(switch)
        crowded = _crowded(switch, VICTIM) - first[VICTIM]
    found = CONNECTIONS - min(crowded, CONNECTIONS)
    room = Counted("connections of the victim find room", found, CONNECTIONS)
    return Round("open connections", tuple(hits), (counted, room))


def half_open_connections(switch: Shared) -> Round:
    """SYNs that nobody answers, of both attackers' guests, and of strangers to the victim's own: it
    opens connections all the same.

    `table-full` of each tells that it has as many half-open ones as one may have. Where these had
    no bound, or strangers' took the place of the guest's own, the victim's would not be
    translated."""
    switch.set_flows(MANY_FLOWS)
    flooded = (*ATTACKERS, VICTIM)
    first = {name: _crowded(switch, name) for name in flooded}

    def hit() -> Iterator[Hit]:
        for name in flooded:
            yield Hit(f"SYNs at {name} without room", _crowded(switch, name) - first[name], MORE)

    floods = [_syns(switch, name) for name in ATTACKERS]
    with (
        _listener(switch),
        meanwhile(switch.guests, [*floods, _syns_of_strangers(switch)]),
    ):
        hits = until_hit(hit)
        counted = _translated(switch)
    return Round("half-open connections", hits, (counted,))


def _crowded(switch: Shared, name: str) -> int:
    """Connections of an endpoint that have found no room."""
    count: int = switch.vcc(name)["untouched"].get("table-full", 0)
    return count


def _listener(switch: Shared) -> socket.socket:
    """A server outside. What connects to it waits to be accepted."""
    with inside(switch.guests[ROUTER].namespace.name):
        made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("", PORT))
    made.listen(4096)
    return made


def _opened(switch: Shared, name: str, count: int) -> list[socket.socket]:
    """Connections of an endpoint to the server, begun at once, when all are open or have had their
    time."""
    to = switch.guests[FAR if name == RIVAL else ROUTER].address
    with inside(switch.guests[name].namespace.name):
        begun = [socket.socket() for _ in range(count)]
    poll = select.poll()
    for one in begun:
        one.setblocking(False)
        one.connect_ex((to, PORT))
        poll.register(one, select.POLLOUT)
    until(lambda: len(poll.poll(LOOK_S * 1000)) == count)
    return begun


def _translated(switch: Shared) -> Counted:
    """The victim opens connections."""
    before = switch.vcc(VICTIM)["translated"]
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(_opened(switch, VICTIM, 1)[0])
        time.sleep(LOOK_S)
        translated = switch.vcc(VICTIM)["translated"] - before
    return Counted("connections of the victim are translated", translated, CONNECTIONS)


def _syns(switch: Shared, name: str) -> Tool:
    """SYNs of an endpoint from many addresses, to nobody."""
    ends = ["--mac", switch.mac(name), "--ip", switch.guests[name].address]
    ends += ["--to-mac", NOBODY, "--to-ip", "10.9.0.9"]
    options = ["syns", "--device", name, *ends, "--per-s", str(UNBOUNDED_PER_S)]
    return Tool("syns", name, name, "costly", options)


def _syns_of_strangers(switch: Shared) -> Tool:
    """SYNs of many addresses outside to the victim's guest, which knows no way back."""
    ends = ["--mac", switch.mac(ROUTER), "--ip", STRANGERS]
    ends += ["--to-mac", switch.mac(VICTIM), "--to-ip", switch.guests[VICTIM].address]
    options = ["syns", "--device", UPLINK, *ends, "--per-s", str(STRANGERS_PER_S)]
    return Tool("strangers", ROUTER, VICTIM, "costly", options)


# --- all of them --------------------------------------------------------------------------


def _learning(lab: Lab) -> Levada:
    return Levada(lab, LEARNING)


#: The attacks on each host. Half-open connections stay for a minute.
HOSTS: tuple[tuple[Callable[[Lab], Levada], tuple[Callable[[Any], Round], ...]], ...] = (
    (_learning, (learned,)),
    (Shared, (held_first, open_connections, half_open_connections)),
)


def play(lab: Lab, core: int, rounds: int, say: Callable[[str], None]) -> Played:
    """All attacks, one after the other, `rounds` times, each time on daemons of their own."""
    played: Played = {}
    for _ in range(rounds):
        for make, attacks in HOSTS:
            switch = make(lab)
            with switch.running():
                pin(switch.daemon, core)
                for attack in attacks:
                    note(played, attack(switch), say)
    return played
