"""LACP with Linux's bonding driver: a virtual machine with two network cards, a bond of them in
802.3ad, and Levada at their other ends (vhost-user ports, which are the members of its uplink).

The machine is emulated and slow; LACP's times are seconds. Both ends are to be up, and each to know
the other as that describes itself. Then one of the machine's cards is set down, which no driver of
ours is told: it falls silent. It comes back; and another daemon takes over. Frames are pings to an
endpoint.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from lab import guest, machine
from lab.guest import Image, Machine
from lab.net import Failed, Lab
from lab.programs import program
from lab.report import Report, at_least, at_most
from lab.stats import table
from lab.switches.levada import Levada, rate_text, toml_table
from lab.topology import Endpoint, Host, Tenant, Topology

SUMMARY = "LACP with Linux's bonding driver in a QEMU guest: up, a silent member, a takeover"

RATE_BPS = 1_000_000_000
MEMBERS = 2
#: What both ends say of a member that carries frames, with lacp_rate fast: all but defaulted and
#: expired.
ALL_WELL = 0x3F
#: The bits of an end's state, from the lowest (docs/howto/bonding.md, `show bonds`).
STATE = (
    "activity",
    "short-timeout",
    "aggregation",
    "synchronization",
    "collecting",
    "distributing",
    "defaulted",
    "expired",
)
#: Longest for both members to be up, and for a silent one to be given up, in seconds.
UP_S = 3.5
SILENT_S = 3.2
ENDS = ("actor", "partner")
PINGS = 20
#: And so many while its links come up: for 10 s at most.
ASKED = 40
PATIENCE_S = 60.0
_BOND = "/sys/class/net/bond0/bonding"
#: In the guest, before its cards are in the bond.
_SET_UP = (
    f"echo 802.3ad > {_BOND}/mode",
    f"echo fast > {_BOND}/lacp_rate",
    f"echo 100 > {_BOND}/miimon",
    f"echo layer3+4 > {_BOND}/xmit_hash_policy",
    "ip link set eth0 down",
    "ip link set eth1 down",
)


class LevadaLacp(Levada):
    """A host whose uplink is a bond in 802.3ad, and the machine at its other end."""

    name = "levada-lacp"
    ready_s: ClassVar[float] = 20.0

    def __init__(self, lab: Lab, image: Image) -> None:
        red = Endpoint("red0", "red", "h0")
        guests_own = Endpoint("vm0", "red", "h0")
        super().__init__(lab, Topology((Tenant("red"),), (red,), (Host("h0", RATE_BPS),)))
        sockets = [lab.dir / f"up{n}.sock" for n in range(MEMBERS)]
        cards = [(socket, f"02:00:00:00:01:{n:02x}") for n, socket in enumerate(sockets)]
        self._sockets = sockets
        self.machine = Machine(lab, guests_own.name, image, *cards[0], more=tuple(cards[1:]))

    def configuration(self) -> str:
        """One switch, and its uplink."""
        host = self.topology.hosts[0]
        return "\n".join([toml_table("daemon", name=self._name), self._host(host, {})])

    def _uplink_table(self, host: Host, uplink: dict[str, str]) -> str:
        options = {"lacp_rate": "fast", "xmit_hash_policy": "layer3+4"}
        bond = toml_table("switch.uplink.bond", mode="802.3ad", **options)
        member = "[switch.uplink.bond.member]"
        rate = rate_text(host.link_bps)
        members = [toml_table(member, port=f"vhost-user://{s}", rate=rate) for s in self._sockets]
        return "\n".join([bond, *members])

    def _vlan(self, tenant: Tenant) -> int | str:
        return "untagged"

    def _start(self) -> None:
        super()._start()
        self.machine.start()
        self.machine.await_boot()

    def _meet(self) -> None:
        """Nobody is there yet."""

    def take_over(self) -> None:
        """Another daemon takes over, and is ready when this returns."""
        self.daemon = self._begin("--takeover")

    def bond(self) -> dict[str, Any]:
        """What is known of the bond."""
        shown: dict[str, Any] = self.sample()["switches"][0]["uplink"]["bond"]
        return shown


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Boots the guest, plays and judges."""
    del out
    report = Report("lacp-vm", quick)
    image = guest.image(lab, more=("tls", "bonding"))
    report.parameters |= {"guest_kernel": image.version, "accelerator": guest.ACCELERATOR}
    report.machine = machine.describe(["ip", "qemu-system-x86_64", str(program())])
    switch = LevadaLacp(lab, image)
    with switch.running():
        vm = switch.machine
        for command in _SET_UP:
            vm.run(command)
        address = "10.1.0.200"
        to = switch.topology.address(switch.topology.endpoints[0])
        # Its links come up with this, and not before: from here on it counts, with what the serial
        # line takes. Somebody asks all the time.
        begun = time.monotonic()
        vm.begin(
            f"for card in eth0 eth1; do echo +$card > {_BOND}/slaves; done;"
            f" ip link set bond0 up; ip addr add {address}/24 dev bond0;"
            # Else ARP would ask once a second only, and so late that pings behind it are lost.
            f" arp -s {to} {switch.topology.mac(switch.topology.endpoints[0])};"
            f" (ping -c {ASKED} -i 0.2 -w 10 {to} > /dev/null 2>&1 &)"
        )
        up_s, carried = _until(switch, ["distributing"] * MEMBERS, begun)
        vm.end()
        differences = _agree(switch)
        first = _ping(switch)
        begun = time.monotonic()
        vm.begin("ip link set eth1 down")
        silent_s, _ = _until(switch, ["standby"], begun, of=1)
        vm.end()
        beside = _ping(switch)
        begun = time.monotonic()
        vm.begin("ip link set eth1 up")
        again_s, _ = _until(switch, ["distributing"] * MEMBERS, begun)
        vm.end()
        switch.take_over()
        over = _ping(switch)
        failures = sum(member["failures"] for member in switch.bond()["members"])
        differences += _agree(switch)
        text = vm.run("cat /proc/net/bonding/bond0")
    report.cells = [
        {"what": "both members up", "value": up_s, "unit": "s"},
        {"what": "frames over members before both ends were in sync", "value": carried},
        {"what": "a silent member given up", "value": silent_s, "unit": "s"},
        {"what": "both up again", "value": again_s, "unit": "s"},
        {"what": "pings answered: both, one, after a takeover", "value": [first, beside, over]},
    ]
    report.parameters["proc"] = text
    report.parameters["differences"] = differences
    rows = [[c["what"], str(c["value"]), str(c.get("unit", ""))] for c in report.cells]
    report.tables = [table(["what", "value", "unit"], rows)]
    report.claims = [
        at_most("LACP up with Linux's bonding driver", up_s, "s", UP_S),
        at_most("frames over members before both ends were in sync", float(carried), "", 0),
        at_most("what the ends say of each other differently", float(len(differences)), "", 0),
        at_most("a silent member given up", silent_s, "s", SILENT_S),
        at_least("pings answered of 60", float(first + beside + over), "", 3 * PINGS),
        at_most("members that ceased to carry frames at a takeover", float(failures), "", 0),
    ]
    return report


def _until(switch: LevadaLacp, wanted: list[str], begun: float, of: int = 0) -> tuple[float, int]:
    """How long it took since `begun` until the members' states are so, from member number `of` on;
    and the most frames that a member was seen to have carried while an end was not in sync."""
    early = 0

    def is_so() -> bool:
        nonlocal early
        members = switch.bond()["members"]
        early = max(early, carried_early(members))
        return [member["state"] for member in members][of:] == wanted

    _await(is_so, f"members {wanted}", switch)
    took = time.monotonic() - begun
    print(f"  {' '.join(wanted)}: after {took:.2f} s", file=sys.stderr)
    return took, early


def carried_early(members: list[dict[str, Any]]) -> int:
    """Frames that have passed over members of which an end is not in sync."""
    return sum(
        member["sent"]["segments"] + member["received"]["segments"]
        for member in members
        if not all("synchronization" in member["lacp"][end]["state"] for end in ENDS)
    )


def _await(is_so: Callable[[], bool], what: str, switch: LevadaLacp) -> None:
    begun = time.monotonic()
    while not is_so():
        if time.monotonic() - begun > PATIENCE_S:
            raise Failed(f"{what}: not after {PATIENCE_S:g} s:\n{switch.bond()}")
        time.sleep(0.05)


def _agree(switch: LevadaLacp) -> list[str]:
    """What the ends say of each other that they do not say of themselves; after a while, since a
    word takes a second."""
    found: list[str] = []

    def is_alike() -> bool:
        found[:] = differences(
            switch.bond()["members"], switch.machine.run("cat /proc/net/bonding/bond0")
        )
        return not found

    begun = time.monotonic()
    while not is_alike() and time.monotonic() - begun < 10:
        time.sleep(0.5)
    return found


def differences(members: list[dict[str, Any]], proc: str) -> list[str]:
    """Where /proc/net/bonding/bond0 of the other end and ours do not say the same."""
    theirs = proc_members(proc)
    if len(theirs) != len(members):
        return [f"{len(theirs)} members there, {len(members)} here"]
    found = []
    by_port = {int(one["actor"]["port number"]): one for one in theirs}
    for member in members:
        lacp = member["lacp"]
        other = by_port.get(lacp["partner"]["port"])
        if other is None:
            found.append(f"{member['name']}: no port {lacp['partner']['port']} there")
            continue
        for end, seen in (("actor", "partner"), ("partner", "actor")):
            ours, said = _own(lacp[end]), {k: other[seen].get(k) for k in _own(lacp[end])}
            if ours != said:
                found.append(f"{member['name']}, {end}: {ours} here, {said} there")
            if int(ours["port state"]) != ALL_WELL:
                found.append(f"{member['name']}, {end}: state {ours['port state']}")
    return found


def _own(end: dict[str, Any]) -> dict[str, str]:
    """An end as `show` has it, in the words of /proc/net/bonding."""
    state = sum(1 << bit for bit, name in enumerate(STATE) if name in end["state"])
    return {
        "system priority": str(end["system_priority"]),
        "system mac address": end["system"],
        "port key": str(end["key"]),
        "port priority": str(end["port_priority"]),
        "port number": str(end["port"]),
        "port state": str(state),
    }


def proc_members(text: str) -> list[dict[str, dict[str, str]]]:
    """Of each slave in /proc/net/bonding/bond0: what is said of actor and partner."""
    members = []
    for part in text.split("Slave Interface:")[1:]:
        ends = {}
        for end in ("actor", "partner"):
            found = re.search(rf"details {end} lacp pdu:\n((?:    .*\n?)+)", part)
            lines = found.group(1).splitlines() if found else []
            said = dict(line.strip().split(": ", 1) for line in lines if ": " in line)
            # The partner's names are others.
            said = {key.replace("oper key", "port key"): value for key, value in said.items()}
            ends[end] = said
        members.append(ends)
    return members


def _ping(switch: LevadaLacp) -> int:
    """Pings from the guest that are answered."""
    to = switch.topology.address(switch.topology.endpoints[0])
    said = switch.machine.run(f"ping -c {PINGS} -i 0.2 -w 30 {to} || true", timeout_s=40)
    found = re.search(r"(\d+) packets received", said)
    return int(found.group(1)) if found else 0
