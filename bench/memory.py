"""What the daemon takes of the machine's memory with a hundred endpoints and full queues.

Buffers are made when they are first needed and kept, so a daemon that has just started would look
better than it is. Two switches with fifty endpoints each are joined by a slow link, and ten
tenants flood it with offloaded and with small frames until all that may wait does. Counted is
what is resident (RSS) and the part of it that is nobody else's (PSS; smaps_rollup in proc(5)).
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from bench.flood import FULL_PAYLOAD_BYTES, Flood
from lab.net import Lab
from lab.report import Report, at_most
from lab.stats import table
from lab.switches import Levada
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT

TENANTS = 10
ENDPOINTS = 100
LIMIT_MIB = 64
#: Slow, so that the queues are full at once.
LINK_BPS = 10_000_000
#: How long the floods last, and when within it is looked.
FLOOD_S = 4
LOOK_S = 3.0
#: What each flood asks for: many times the link, little for the CPU.
_OFFLOADED_BPS = 100_000_000
_SMALL_BPS = 1_000_000


def memory(lab: Lab, report: Report, quick: bool) -> None:
    """RSS and PSS after the start and under load."""
    del quick  # as short as it gets
    topology = _topology()
    switch = Levada(lab, topology)
    with switch.running():
        idle = resident_mib(switch.daemon.pid)
        flows = _floods(topology)
        for port, flow in enumerate(flows, start=FIRST_PORT):
            flow.begin(switch.guests[flow.src], switch.guests[flow.dst], port, FLOOD_S)
        time.sleep(LOOK_S)
        loaded = resident_mib(switch.daemon.pid)
        shown = switch.sample()
        for flow in flows:
            flow.end()
    waiting = sum(
        endpoint[direction]["backlog_bytes"]
        for host in shown["switches"]
        for tenant in host["tenants"]
        for endpoint in tenant["endpoints"]
        for direction in ("egress", "ingress")
    )
    report.claims.append(at_most("memory.100-endpoints-rss", loaded["Rss"], "MiB", LIMIT_MIB))
    report.parameters["memory_mib"] = {"idle": idle, "loaded": loaded}
    rows = [
        ["after the start", f"{idle['Rss']:.1f}", f"{idle['Pss']:.1f}", ""],
        ["queues full", f"{loaded['Rss']:.1f}", f"{loaded['Pss']:.1f}", f"{waiting / 1e6:.1f}"],
    ]
    title = f"memory of the daemon with {ENDPOINTS} endpoints; MiB"
    report.tables.append(f"{title}\n" + table(["", "RSS", "PSS", "waiting, MB"], rows))


def resident_mib(pid: int) -> dict[str, float]:
    """RSS and PSS of a process in MiB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.findall(r"^(Rss|Pss):\s+(\d+) kB", rollup, re.MULTILINE)
    return {name: int(kib) / 1024 for name, kib in found}


def _topology() -> Topology:
    tenants = [f"t{n}" for n in range(TENANTS)]
    return Topology(
        tuple(Tenant(t) for t in tenants),
        tuple(
            Endpoint(f"{t}e{n}", t, f"h{n % 2}")
            for t in tenants
            for n in range(ENDPOINTS // TENANTS)
        ),
        (Host("h0", LINK_BPS), Host("h1", LINK_BPS)),
    )


def _floods(topology: Topology) -> list[Flood]:
    """From each tenant's first endpoint to its second: offloaded messages; back: small ones."""
    offloaded = 43 * FULL_PAYLOAD_BYTES
    there = [
        Flood(t.name, f"{t.name}e0", f"{t.name}e1", offloaded, _OFFLOADED_BPS, FULL_PAYLOAD_BYTES)
        for t in topology.tenants
    ]
    back = [
        Flood(f"{t.name}-back", f"{t.name}e1", f"{t.name}e0", payload_bps=_SMALL_BPS)
        for t in topology.tenants
    ]
    return there + back
