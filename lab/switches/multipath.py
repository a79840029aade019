"""Two hosts and links between them without a switch: Multipath TCP's place, and a control.

The links are those of `lab.switches.levada_bond`. Each has a network of its own. Programs run in
the hosts themselves. With Multipath TCP (RFC 8684) the kernel's path manager adds the further links
to each connection, which the first host begins over the first link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lab.net import Lab, Namespace
from lab.switches.levada_bond import cable
from lab.topology import Topology
from lab.workload import Guest

#: What has a program's TCP sockets be Multipath TCP's.
MPTCPIZE = ("mptcpize", "run")


@contextmanager
def hosts(lab: Lab, topology: Topology, rates: Sequence[int]) -> Iterator[dict[str, Guest]]:
    """The hosts by name; a guest's address is that over the first link."""
    with lab.stage():
        spaces = {host.name: lab.namespace(f"host-{host.name}") for host in topology.hosts}
        cable(lab, spaces, rates, topology.mtu, topology.fabric_queue_bytes)
        for number, space in enumerate(spaces.values(), start=1):
            _address(space, number, len(rates))
        yield {
            name: Guest(name, space, _ip(0, number))
            for number, (name, space) in enumerate(spaces.items(), start=1)
        }


def _address(space: Namespace, number: int, links: int) -> None:
    space.sysctl("net.mptcp.enabled", "1")
    space.ip(f"mptcp limits set subflows {links} add_addr_accepted {links}")
    for link in range(links):
        space.ip(f"address add {_ip(link, number)}/24 dev up{link}")
    # Who connects is told further addresses of whom it connects to, the second host.
    if number == 2:
        for link in range(1, links):
            space.ip(f"mptcp endpoint add {_ip(link, number)} dev up{link} signal")


def _ip(link: int, number: int) -> str:
    return f"10.{100 + link}.0.{number}"
