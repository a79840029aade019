"""The live cells of `vcc-fig1`: a job beside ECN flows, with the kernel's TCP.

As in the simulation, half of the job's hosts and one end of each background connection are at each
side of a network whose link marks what is ECN-capable and drops the rest. Its rate is a tenth of
the simulation's and its delay ten times as long, so that bytes stay (of windows and copies).
Other than there, only the link between the sides is slow and marks, each side is one host with
Levada, and the background is one guest a side with a connection for each pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.net import Lab
from lab.report import Claim, at_most
from lab.shuffle.generate import Shape, generate
from lab.shuffle.job import Job
from lab.shuffle.replay import Place, Replay
from lab.stats import table
from lab.switches import Levada
from lab.switches.levada import rate_text, toml_table
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, Guest, TcpFlow

#: Rate and delay of the slow link, each way.
LINK_BPS, DELAY_US = 100_000_000, 500
#: Of the job: copies as long as the simulation's, and fewer, so that a cell takes some seconds.
SHAPE = Shape(hosts=4, maps_per_host=1, map_s=0.05, reduce_s=0.0, host_bytes=16_000_000)
#: Background connections, and the discipline: RED1 of vCC's experiments.
PAIRS = 2
AQM = {"kind": "red", "preset": "vcc-red1"}
#: The job's time against the natives' is this at most.
ECHO_MOST = 1.05
#: The job may take so long; the background runs a second longer.
MOST_S = 20
#: What the job's hosts are: whether their kernels have ECN, and what their switches do for them.
GUESTS: Mapping[str, tuple[bool, str]] = {
    "native": (True, "off"),
    "legacy": (False, "off"),
    "published": (False, "echo-published"),
    "echo": (False, "echo"),
}


@dataclass(frozen=True)
class Cell:
    """What became of the job with one kind of guests."""

    guests: str
    job_s: float | None
    #: Segments that the job's kernels sent again, SYNs among them, and their timeouts.
    again: int
    timeouts: int
    background_bps: float


def topology(job: Job) -> Topology:
    """The job's hosts dealt to both sides, and the background's two guests."""
    sides = ("h1", "h2")
    hosts = [Endpoint(name, "job", sides[n % 2]) for n, name in enumerate(job.hosts)]
    background = [Endpoint(f"back{side}", "background", side) for side in sides]
    return Topology(
        tenants=(Tenant("job"), Tenant("background")),
        endpoints=(*hosts, *background),
        hosts=tuple(Host(side, 10 * LINK_BPS) for side in sides),
    )


class Network(Levada):
    """Both sides' switches, and two of the network with the slow link between them: `slow` are its
    queue's keys, `vcc` those of the tenant `job`."""

    def __init__(
        self,
        lab: Lab,
        shape: Topology,
        vcc: Mapping[str, str | bool],
        slow: Mapping[str, Any],
        has_ecn: bool = False,
    ) -> None:
        super().__init__(lab, shape)
        self._has_ecn, self._vcc, self._slow = has_ecn, vcc, slow

    def configuration(self) -> str:
        """As TOML."""
        parts = [toml_table("daemon", name=self._name)]
        for number, host in enumerate(self.topology.hosts, start=1):
            text = self._host(host, {"port": f"link://access{number}/a"})
            job = toml_table("[switch.tenant]", name="job")
            vcc = toml_table("[switch.tenant]", name="job", **self._vcc)
            parts.append(text.replace(job, vcc))
            ports = {"host": f"link://access{number}/b", "slow": f"link://slow/{'ab'[number - 1]}"}
            parts += [
                toml_table("[switch]", name=f"network{number}"),
                toml_table("[switch.tenant]", name="all"),
                *(
                    toml_table("[switch.tenant.endpoint]", name=name, port=port, trunk=True)
                    for name, port in ports.items()
                ),
                self._link(f"access{number}", host.link_bps),
            ]
        slow = {"rate": rate_text(LINK_BPS), "delay": f"{DELAY_US} us", **self._slow}
        parts.append(toml_table("[link]", name="slow", **slow))
        return "\n".join(parts)

    def _start(self) -> None:
        for guest in self.guests.values():
            ecn = self._has_ecn or guest.name.startswith("back")
            guest.namespace.sysctl("net.ipv4.tcp_ecn", "1" if ecn else "0")
            guest.namespace.sysctl("net.ipv4.tcp_congestion_control", "reno")
        super()._start()


def play(lab: Lab, guests: str) -> Cell:
    """One cell."""
    job = generate(1, SHAPE)
    has_ecn, vcc = GUESTS[guests]
    slow = {"queue": "1 MiB", "aqm": AQM}
    network = Network(lab, topology(job), {"vcc": vcc}, slow, has_ecn)
    with network.running():
        network.introduce()
        flow = TcpFlow("background", "backh1", "backh2", PAIRS)
        src, dst = network.guests[flow.src], network.guests[flow.dst]
        flow.begin(src, dst, FIRST_PORT, MOST_S + 1)
        before = dst.namespace.received(dst.name)
        spaces = {name: network.guests[name] for name in job.hosts}
        places = {n: Place(n, guest.address, guest.namespace.name) for n, guest in spaces.items()}
        told: dict[str, Any] = Replay(job, places).play(MOST_S)
        got = dst.namespace.received(dst.name).since(before)
        flow.abort()
        counted = [counters(guest) for guest in spaces.values()]
    return Cell(
        guests,
        told["completion_s"],
        sum(c["TcpRetransSegs"] for c in counted),
        sum(c["TcpExtTCPTimeouts"] for c in counted),
        8 * got.nbytes / told["played_s"],
    )


def counters(guest: Guest) -> dict[str, int]:
    """What a guest's kernel has counted of IP and TCP."""
    text = guest.namespace.run("nstat", "-az")
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {line[0]: int(line[1]) for line in lines}


def text(cells: list[Cell]) -> str:
    """What was seen, as a table."""
    rows = [
        [
            cell.guests,
            "-" if cell.job_s is None else f"{cell.job_s:.2f}",
            f"{cell.background_bps / 1e6:.1f}",
            str(cell.again),
            str(cell.timeouts),
        ]
        for cell in cells
    ]
    head = ["job's hosts, live", "job, s", "background, Mbit/s", "sent again", "timeouts"]
    return table(head, rows)


def claims(cells: list[Cell]) -> list[Claim]:
    """As of the simulation, but of one run each; a job that did not end has no time."""
    by = {cell.guests: cell for cell in cells}
    native, ours = by["native"], by["echo"]
    ratio = ours.job_s / native.job_s if native.job_s and ours.job_s else None
    name = "live, red1, 2 pairs: echo"
    more = float(ours.again - native.again)
    return [
        at_most(f"{name}, job time / native", ratio, "x", ECHO_MOST),
        at_most(f"{name}, segments sent again more than native", more, "segments", 0),
    ]
