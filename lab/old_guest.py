"""The demo's third act: a guest without ECN beside flows with it, on a network that marks.

Two hosts, and between them a network whose slow link marks what is ECN-capable above a threshold,
and drops the rest there. Who is marked halves its window each time; who is not loses a packet now
and then, and keeps the queue where the others are marked. (The queue is not the hosts' own: a
switch does not send faster than its link, so it has one of its own before that.) On each host is
an old guest, whose kernel has ECN off, and a new one, whose kernel has it on. The old guest sends
over one connection, the new one over several. Played without `vcc`, and with the switch speaking
ECN for the old guest. Nothing else differs, so claims are ratios of the two phases.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from lab import wire
from lab.bars import Bar, Bars
from lab.net import Lab, Received
from lab.report import Claim, at_least, at_most
from lab.stats import table
from lab.switches import Levada
from lab.switches.levada import rate_text, toml_table
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import FIRST_PORT, FlowResult, TcpFlow

MBIT = 1_000_000
#: What the slow link carries; those of the hosts carry twice as much.
LINK_BPS = 100 * MBIT
#: Connections of the new guest; the old one has one. The old one's fair share follows.
NEW = 4
FAIR_PERCENT = 100 / (NEW + 1)
#: The slow link's discipline; what DCTCP's paper has for ten times its rate.
AQM = {"kind": "step", "threshold": "30000 B"}
#: A phase, and what of it is left out: slow start, and the end.
PHASE_S = 8
SETTLE_S, TAIL_S = 2.0, 0.5
TICK_S = 0.25
#: With `vcc` the old guest's share is at most this part as far from the fair one as without, and
#: the new guest gets at least so many times as much.
UNFAIR_PERCENT, NEW_GAIN = 50.0, 2.0

TENANTS = (Tenant("old"), Tenant("new"))
TOPOLOGY = Topology(
    tenants=TENANTS,
    endpoints=(
        Endpoint("old1", "old", "h1"),
        Endpoint("new1", "new", "h1"),
        Endpoint("old2", "old", "h2"),
        Endpoint("new2", "new", "h2"),
    ),
    hosts=(Host("h1", 2 * LINK_BPS), Host("h2", 2 * LINK_BPS)),
)
TITLE = "An old guest beside ECN traffic"
INTRODUCTION = f"""\
A network with ECN, whose link of {LINK_BPS // MBIT} Mbit/s marks. A new guest sends over {NEW}
connections with ECN, an old one over one without. First as it is: the old guest is dropped where
the new one is marked, and they do not share. Then with `vcc = "echo"`: the switch speaks ECN for
the old guest.
"""


class MarkingNetwork(Levada):
    """Both hosts' switches, and two of the network with the slow link between them; `vcc` is the
    old tenant's."""

    def __init__(self, lab: Lab, topology: Topology, vcc: str) -> None:
        super().__init__(lab, topology)
        self.vcc = vcc

    def configuration(self) -> str:
        """As TOML."""
        parts = [toml_table("daemon", name=self._name)]
        for number, host in enumerate(self.topology.hosts, start=1):
            text = self._host(host, {"port": f"link://access{number}/a"})
            parts.append(text.replace('name = "old"\n', f'name = "old"\nvcc = "{self.vcc}"\n'))
            side = "ab"[number - 1]
            parts += [
                toml_table("[switch]", name=f"network{number}"),
                toml_table("[switch.tenant]", name="all"),
                *(
                    toml_table("[switch.tenant.endpoint]", name=name, port=port, trunk=True)
                    for name, port in (
                        ("host", f"link://access{number}/b"),
                        ("slow", f"link://slow/{side}"),
                    )
                ),
                self._link(f"access{number}", host.link_bps),
            ]
        slow = {"rate": rate_text(LINK_BPS), "delay": "500 us", "queue": "1 MiB"}
        parts.append(toml_table("[link]", name="slow", aqm=AQM, **slow))
        return "\n".join(parts)

    def _start(self) -> None:
        for guest in self.guests.values():
            ecn = "0" if guest.name.startswith("old") else "1"
            guest.namespace.sysctl("net.ipv4.tcp_ecn", ecn)
        super()._start()


@dataclass(frozen=True)
class Sample:
    """What the receivers' devices have received at one moment."""

    at_s: float
    received: dict[str, Received]


@dataclass
class Phase:
    """What was seen with one value of `vcc`."""

    vcc: str
    samples: list[Sample]
    settled: Sample
    flows: dict[str, FlowResult]

    def got_bps(self) -> dict[str, float]:
        """What each guest got, in wire bits a second."""
        return rates(self.settled, self.samples[-1])

    def old_percent(self) -> float:
        """The old guest's part of what both got."""
        got = self.got_bps()
        return 100 * got["old"] / sum(got.values())

    def unfairness(self) -> float:
        """By which factor the old guest's share is off, less one."""
        part = max(self.old_percent(), 0.01) / FAIR_PERCENT
        return max(part, 1 / part) - 1

    def series(self) -> dict[str, tuple[list[float], list[float]]]:
        """Each guest's rate over time, in seconds and Mbit/s."""
        pairs = list(itertools.pairwise(self.samples))
        times = [last.at_s - self.samples[0].at_s for _, last in pairs]
        got = [rates(first, last) for first, last in pairs]
        return {name: (times, [g[name] / MBIT for g in got]) for name in ("old", "new")}


def rates(first: Sample, last: Sample) -> dict[str, float]:
    """What the old and the new guest's receivers got between two samples."""
    seconds = last.at_s - first.at_s
    return {
        name: wire.wire_bits(last.received[name].since(first.received[name]), wire.TCP) / seconds
        for name in ("old", "new")
    }


def play(lab: Lab, vcc: str, bars: Bars) -> Phase:
    """One phase, shown while it runs."""
    network = MarkingNetwork(lab, TOPOLOGY, vcc)
    with network.running():
        network.introduce()
        flows = [TcpFlow("old", "old1", "old2"), TcpFlow("new", "new1", "new2", NEW)]
        for number, flow in enumerate(flows):
            src, dst = network.guests[flow.src], network.guests[flow.dst]
            flow.begin(src, dst, FIRST_PORT + number, PHASE_S)
        samples, settled = [_read(network)], None
        while (elapsed := time.monotonic() - samples[0].at_s) < PHASE_S - TAIL_S:
            time.sleep(TICK_S)
            samples.append(_read(network))
            if elapsed >= SETTLE_S and settled is None:
                settled = samples[-1]
            _draw(bars, vcc, elapsed, samples)
        bars.settle()
        assert settled is not None
        return Phase(vcc, samples, settled, {flow.name: flow.end() for flow in flows})


def _read(network: MarkingNetwork) -> Sample:
    received = {
        name: network.guests[f"{name}2"].namespace.received(f"{name}2") for name in ("old", "new")
    }
    return Sample(time.monotonic(), received)


def _draw(bars: Bars, vcc: str, elapsed: float, samples: Sequence[Sample]) -> None:
    got = rates(samples[max(0, len(samples) - 5)], samples[-1])
    fair = {"old": LINK_BPS * FAIR_PERCENT / 100, "new": LINK_BPS * (100 - FAIR_PERCENT) / 100}
    rows = [Bar(name, got[name] / MBIT, fair[name] / MBIT, wants=True) for name in got]
    bars.draw(f'vcc = "{vcc}", {elapsed:4.1f} s: old 1 TCP without ECN, new {NEW} with', rows)


def text(without: Phase, given: Phase) -> str:
    """What each got, as a table."""
    fair = {"old": FAIR_PERCENT, "new": 100 - FAIR_PERCENT}
    rows = []
    for name, title in (("old", "old, 1 TCP without ECN"), ("new", f"new, {NEW} TCP with ECN")):
        got = [f"{phase.got_bps()[name] / MBIT:.1f}" for phase in (without, given)]
        lost = [str(phase.flows[name].detail.get("retransmits")) for phase in (without, given)]
        rows.append([title, f"{LINK_BPS * fair[name] / 100 / MBIT:.0f}", *got, *lost])
    head = ["Mbit/s on the wire", "fair", "without", "with vcc", "retransmitted", "with vcc"]
    return f"{TITLE}\n{table(head, rows)}"


def claims(without: Phase, given: Phase) -> list[Claim]:
    """What the switch does for the old guest, against the same network without it."""
    unfair = 100 * given.unfairness() / max(without.unfairness(), 0.01)
    gain = given.got_bps()["new"] / max(without.got_bps()["new"], 1.0)
    return [
        at_most("old-guest: its unfairness with vcc, of that without", unfair, "%", UNFAIR_PERCENT),
        at_least("old-guest: what the new one gets with vcc, of that without", gain, "x", NEW_GAIN),
    ]


def cells(without: Phase, given: Phase) -> list[dict[str, object]]:
    """The rows of the report."""
    return [
        {
            "labels": {"act": "old-guest", "phase": f"vcc {phase.vcc}"},
            "got_bps": phase.got_bps(),
            "series": phase.series(),
            "retransmits": {n: f.detail.get("retransmits") for n, f in phase.flows.items()},
        }
        for phase in (without, given)
    ]
