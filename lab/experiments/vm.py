"""Two virtual machines behind Levada, and somebody beside them who floods.

Two hosts of one daemon and a link between them. A tenant has a virtual machine on each, with a
guarantee; another tenant floods the same link with UDP that does not react, in each direction in
turn. The machines' network cards are vhost-user ports, so this shows that a guest boots, that its
rings carry offloaded TCP, and that what is promised to it holds. Rates are scaled to what two
emulated machines carry on two processors beside all else.

Then, with a connection between the guests: the daemon is killed (SIGKILL) and started again, and
replaced by one that takes over. The longest time in which the receiver got nothing is the gap; how
long after the new daemon is ready it has passed on data again, its counters tell. In another
takeover numbered datagrams go from guest to guest, and those that do not come are counted. Last, a
guest reboots, and a QEMU is killed and started again; both must be reached afterwards. FS-VDE's
tables follow, with machines at the host that shares its link out (`vm_tables.py`).
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import guest, machine, wire
from lab.experiments import vm_tables
from lab.guest import Machine, iperf_report
from lab.machine import cpu_use, sample_cpu
from lab.net import Lab
from lab.programs import program
from lab.report import Claim, Report, at_least, at_most
from lab.stats import table
from lab.switches.levada_vm import LevadaVm
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, flood

SUMMARY = "two QEMU guests over vhost-user: their TCP alone, and beside a flood with a guarantee"

MBIT = 1_000_000
LINK_BPS = 40 * MBIT
GUARANTEE_BPS = 24 * MBIT
#: What the flood offers: twice what there is.
FLOOD_BPS = 2 * LINK_BPS
#: What arrives of it for there to be one: a tenth of the least that did (docs/results/vm.md).
LEAST_FLOOD_BPS = 0.7 * MBIT
#: Seconds of TCP, after what it takes to begin.
SECONDS = {False: 20, True: 6}
OMIT_S = 1
#: What of a wire's rate full segments of TCP carry with timestamps: 1448 of 1542 bytes.
GOODPUT = 1448 / wire.FULL_BYTES
#: What TCP gets of its guarantee at least, beside a flood; and alone, when it may have the link.
#: How much of that it takes is QEMU's affair: an emulated guest sends in fits and starts.
LEAST_BESIDE = 0.9
LEAST_ALONE = 1.0


#: A connection over a restart: so long in all, and so long before it.
RESTART_S = 10
BEFORE_S = 3.0
#: What the datagrams carry that are counted over a takeover: a part of what a guest can send.
DATAGRAMS_BPS = 4 * MBIT
DATAGRAM_BYTES = 1000
#: How finely the receiver's bytes are counted, in seconds.
ROW_S = 0.1
#: What is data that flow again: some full frames, and no question by ARP.
RESUMED_BYTES = 10_000
#: How long after a killed daemon's successor is ready data flow again, at most.
RESUMED_S = 0.1


@dataclass(frozen=True)
class Restart:
    """A connection over a restart of the daemon."""

    way: str
    #: From the old daemon's end, or the new one's beginning, until the new one is ready.
    away_s: float
    #: The longest time without data, and bytes that came in the last second.
    gap_s: float
    last_bytes: float
    #: From then until the new one has passed on data of the connection.
    resumed_s: float


@dataclass(frozen=True)
class Cell:
    """One TCP connection between the guests."""

    labels: dict[str, Any]
    goodput_bps: float
    retransmits: int
    flood_bps: float
    idle: float
    strangers: float
    disturbed: str | None
    bound: str | None = None

    @property
    def valid(self) -> bool:
        return self.why_not is None

    @property
    def why_not(self) -> str | None:
        """Why it does not count, or None."""
        if self.labels["flood"] == "yes" and self.flood_bps < LEAST_FLOOD_BPS:
            return self.disturbed or f"no flood: {self.flood_bps / MBIT:.2f} Mbit/s"
        return self.disturbed


def topology() -> Topology:
    """A guest and a flooder on each host."""
    tenants = (Tenant("red", guarantee_bps=GUARANTEE_BPS), Tenant("blue"))
    ends = [Endpoint(f"vm{i}", "red", f"h{i}") for i in (0, 1)]
    ends += [Endpoint(f"b{i}", "blue", f"h{i}") for i in (0, 1)]
    return Topology(tenants, tuple(ends), (Host("h0", LINK_BPS), Host("h1", LINK_BPS)))


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Boots the guests, plays and judges."""
    report = Report("vm", quick, parameters=_parameters(quick))
    image = guest.image(lab)
    report.parameters["guest_kernel"] = image.version
    report.machine = machine.describe(["ip", "qemu-system-x86_64", str(program())])
    switch = LevadaVm(lab, topology(), image)
    with switch.running():
        vms = list(switch.machines.values())
        print(f"  booted in {max(m.boot_s for m in vms):.1f} s", file=sys.stderr)
        vms[1].run("iperf3 --server --daemon")
        cells, before = [], _drops(switch)
        for sender in (0, 1):
            for floods in (False, True):
                cells.append(_play(switch, sender, floods, SECONDS[quick]))
                print(f"  {_progress(cells[-1])}", file=sys.stderr)
        drops = dict(_drops(switch) - before)
        restarts = [_restart(switch, way) for way in ("kill -9", "takeover")]
        for restart in restarts:
            print(f"  {restart.way}: gap {restart.gap_s:.1f} s", file=sys.stderr)
        sent, lost = _datagrams(switch)
        print(f"  takeover: {lost} of {sent} datagrams lost", file=sys.stderr)
        back = _machines_return(switch)
    report.cells = [asdict(c) | {"valid": c.valid, "disturbed": c.why_not} for c in cells]
    report.parameters["boot_s"] = [m.boot_s for m in vms]
    report.parameters["drops"] = drops
    report.parameters["restarts"] = [asdict(r) for r in restarts]
    report.parameters["datagrams"] = {"sent": sent, "lost": lost}
    report.tables = [cells_table(cells), restarts_table(restarts)]
    report.claims = claims(cells, drops) + restart_claims(restarts, back)
    report.claims.append(at_most("datagrams lost in a takeover", lost if sent else None, "", 0))
    vm_tables.play(lab, image, quick, report)
    return report


def _play(switch: LevadaVm, sender: int, floods: bool, seconds: int) -> Cell:
    """TCP from guest `sender` to the other, and a flood the same way."""
    client: Machine = switch.machines["vm0"]
    server = next(e for e in switch.topology.endpoints if e.name == "vm1")
    flow = None
    if floods:
        src, dst = f"b{sender}", f"b{1 - sender}"
        flow = flood("flood", src, dst, FLOOD_BPS, offload=True)
        flow.begin(switch.guests[src], switch.guests[dst], FIRST_PORT, seconds + OMIT_S + 2)
        time.sleep(0.5)
    reverse = "--reverse" if sender == 1 else ""
    before = sample_cpu(switch.processes)
    client.begin(
        f"iperf3 --client {switch.topology.address(server)} --time {seconds} --omit {OMIT_S}"
        f" --interval 0 --json {reverse}"
    )
    text = client.end(seconds + OMIT_S + 30)
    use = cpu_use(before, sample_cpu(switch.processes))
    end = iperf_report(text)["end"]
    flood_bps = 0.0
    if flow is not None:
        flood_bps = flow.end().goodput_bps(1, seconds)
    return Cell(
        {"from": f"vm{sender}", "flood": "yes" if floods else "no"},
        float(end["sum_received"]["bits_per_second"]),
        int(end["sum_sent"]["retransmits"]),
        flood_bps,
        use.idle,
        use.strangers,
        use.disturbed(),
    )


#: Reasons that speak of a guest's rings or offloads, and not of a full queue.
_FAULTS = ("malformed", "bad-offload", "port-down", "spoofed-mac", "spoofed-arp", "bad-source")


def _drops(switch: LevadaVm) -> Counter[str]:
    """Frames of the machines that were dropped so far, by reason."""
    tenants = [t for s in switch.sample()["switches"] for t in s["tenants"]]
    endpoints = [e for t in tenants for e in t["endpoints"] if e["name"] in switch.machines]
    return sum((Counter(e["drops"]) for e in endpoints), Counter())


def _restart(switch: LevadaVm, way: str) -> Restart:
    """The daemon is killed, or replaced, under a connection from guest to guest."""
    client = switch.machines["vm0"]
    server = next(e for e in switch.topology.endpoints if e.name == "vm1")
    client.begin(
        f"iperf3 --client {switch.topology.address(server)} --time {RESTART_S}"
        f" --interval {ROW_S} --json --reverse"
    )
    time.sleep(BEFORE_S)
    begun = time.monotonic()
    if way == "takeover":
        switch.take_over()
    else:
        switch.kill()
    away_s = time.monotonic() - begun
    # One that took over goes on counting; a new one counts from none.
    before = _received(switch, "vm0") if way == "takeover" else 0
    resumed_s = _resumed(switch, "vm0", before)
    report = iperf_report(client.end(RESTART_S + 30))
    rows = [float(row["sum"]["bytes"]) for row in report["intervals"]]
    last = sum(rows[-round(1 / ROW_S) :])
    return Restart(way, away_s, ROW_S * longest_silence(rows), last, resumed_s)


def _received(switch: LevadaVm, name: str) -> int:
    """Bytes on the wire that the daemon has passed on to a guest."""
    tenants = [t for s in switch.sample()["switches"] for t in s["tenants"]]
    endpoints = {e["name"]: e for t in tenants for e in t["endpoints"]}
    return int(endpoints[name]["ingress"]["wire_bytes"])


def _resumed(switch: LevadaVm, receiver: str, before: int) -> float:
    """Seconds from now until the daemon has passed on data to a guest, beyond `before` bytes."""
    begun = time.monotonic()
    while _received(switch, receiver) < before + RESUMED_BYTES:
        if time.monotonic() - begun > RESTART_S:
            return math.inf
        time.sleep(0.002)
    return time.monotonic() - begun


def _datagrams(switch: LevadaVm) -> tuple[int, int]:
    """Numbered datagrams from guest to guest over a takeover: how many were sent, and are lost."""
    client = switch.machines["vm0"]
    server = next(e for e in switch.topology.endpoints if e.name == "vm1")
    client.begin(
        f"iperf3 --client {switch.topology.address(server)} --udp --time {RESTART_S} --json"
        f" --bitrate {DATAGRAMS_BPS} --length {DATAGRAM_BYTES} --interval 0 --reverse"
    )
    time.sleep(BEFORE_S)
    switch.take_over()
    total = iperf_report(client.end(RESTART_S + 30))["end"]["sum"]
    return int(total["packets"]), int(total["lost_packets"])


def longest_silence(rows: Sequence[float]) -> int:
    """The most rows in a row in which nothing came."""
    longest = run = 0
    for row in rows:
        run = run + 1 if row == 0 else 0
        longest = max(longest, run)
    return longest


def _machines_return(switch: LevadaVm) -> int:
    """Of a guest that reboots, and of a QEMU that is killed and started again: how many are reached
    afterwards."""
    pinging, returning = switch.machines["vm0"], switch.machines["vm1"]
    endpoint = next(e for e in switch.topology.endpoints if e.name == "vm1")
    back = 0
    for way in (returning.reboot, returning.restart):
        way()
        returning.run(f"ip addr add {switch.topology.address(endpoint)}/24 dev eth0")
        ping = f"ping -c1 -w10 {switch.topology.address(endpoint)} >/dev/null; echo status $?"
        back += "status 0" in pinging.run(ping)
    return back


def restart_claims(restarts: Sequence[Restart], back: int) -> list[Claim]:
    """A connection lives through each restart, and machines come back."""
    alive = sum(r.last_bytes > 0 for r in restarts)
    resumed = max(r.resumed_s for r in restarts if r.way == "kill -9")
    return [
        at_most("kill -9: data flow again after the new daemon is ready", resumed, "s", RESUMED_S),
        at_least("connections that live through kill -9 and takeover", alive, "", len(restarts)),
        at_least("machines reached after a guest's reboot and QEMU's restart", back, "", 2),
    ]


def restarts_table(restarts: Sequence[Restart]) -> str:
    """What each restart cost a connection."""
    times = [(r.way, (r.away_s, r.gap_s, r.resumed_s)) for r in restarts]
    rows = [[way, *(f"{1000 * s:.0f}" for s in seconds)] for way, seconds in times]
    return table(["restart", "ready after ms", "gap ms", "data ms after ready"], rows)


def claims(cells: Sequence[Cell], drops: dict[str, int]) -> list[Claim]:
    """Each direction: the guarantee, alone and beside a flood; nothing of a guest's was wrong. A
    disturbed cell does not count, whatever it shows."""
    found = []
    for cell in cells:
        floods = cell.labels["flood"] == "yes"
        least = LEAST_BESIDE if floods else LEAST_ALONE
        part = cell.goodput_bps / (GUARANTEE_BPS * GOODPUT)
        value = part if cell.valid else None
        where = f"from {cell.labels['from']}, {'beside a flood' if floods else 'alone'}"
        found.append(at_least(f"{where}: TCP over its guarantee", value, "", least))
    wrong = sum(drops.get(reason, 0) for reason in _FAULTS)
    found.append(at_most("frames of guests that were wrong or had no port", wrong, "", 0))
    return found


def cells_table(cells: Sequence[Cell]) -> str:
    """What each connection got."""
    rows = [
        [
            str(c.labels["from"]),
            str(c.labels["flood"]),
            f"{c.goodput_bps / MBIT:.1f}",
            f"{c.flood_bps / MBIT:.1f}",
            str(c.retransmits),
            f"{c.idle:.0%}",
            f"{c.strangers:.2f}",
        ]
        for c in cells
    ]
    head = ["from", "flood", "TCP Mbit/s", "flood", "retransmits", "idle", "strangers"]
    return table(head, rows)


def _progress(cell: Cell) -> str:
    what = "beside a flood" if cell.labels["flood"] == "yes" else "alone"
    return f"from {cell.labels['from']} {what}: {cell.goodput_bps / MBIT:.1f} Mbit/s"


def _parameters(quick: bool) -> dict[str, Any]:
    return {
        "accelerator": guest.ACCELERATOR,
        "link_bps": LINK_BPS,
        "guarantee_bps": GUARANTEE_BPS,
        "flood_bps": FLOOD_BPS,
        "seconds": SECONDS[quick],
    }
