"""Two hosts with links between them, a virtual machine on each, and Linux's bonding driver in the
machines: each link is a card of its own there. No switch of ours takes part.

The links are those of `lab.switches.levada_bond`. On a host a Linux bridge a link joins it to the
machine's card, a TAP of QEMU's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lab.guest import Image, Machine, Tap
from lab.net import Lab, bridge, tap
from lab.switches.levada_bond import cable
from lab.topology import Topology

#: What the machines' kernel needs beside the usual modules.
MODULES = ("tls", "bonding")
_BOND = "/sys/class/net/bond0/bonding"


@contextmanager
def machines(
    lab: Lab, topology: Topology, rates: Sequence[int], image: Image
) -> Iterator[list[tuple[Machine, str]]]:
    """A machine on each host of the topology, and its address. With several links they are one bond
    in balance-rr; with one there is no bond."""
    with lab.stage():
        spaces = {host.name: lab.namespace(f"host-{host.name}") for host in topology.hosts}
        cable(lab, spaces, rates, topology.mtu, topology.fabric_queue_bytes)
        found = []
        for number, space in enumerate(spaces.values(), start=1):
            cards = []
            for link in range(len(rates)):
                tap(space, f"tap{link}", topology.mtu)
                bridge(space, f"br{link}", (f"tap{link}", f"up{link}"))
                cards.append((Tap(f"tap{link}"), f"02:00:00:00:{number:02x}:{link:02x}"))
            name = f"vm{number}"
            machine = Machine(lab, name, image, *cards[0], more=tuple(cards[1:]), space=space)
            machine.start()
            found.append((machine, f"10.9.0.{number}"))
        for machine, address in found:
            machine.await_boot()
            for command in _set_up(len(rates), address):
                machine.run(command)
        found[0][0].run(f"ping -c1 -w10 {found[1][1]} >/dev/null")
        yield found


def _set_up(links: int, address: str) -> list[str]:
    """What is to be run in a machine."""
    if links == 1:
        return [f"ip addr add {address}/24 dev eth0"]
    cards = [f"eth{link}" for link in range(links)]
    return [
        f"echo balance-rr > {_BOND}/mode",
        f"echo 100 > {_BOND}/miimon",
        *(f"ip link set {card} down" for card in cards),
        *(f"echo +{card} > {_BOND}/slaves" for card in cards),
        f"ip link set bond0 up; ip addr add {address}/24 dev bond0",
    ]
