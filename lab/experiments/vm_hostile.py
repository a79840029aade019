"""A guest that works, and beside it a front end that writes nonsense into its rings.

One switch: a tenant has a virtual machine and a container, and TCP from the one to the other at a
steady rate; another tenant has a vhost-user port, whose front end (`ports/examples/mutated_rings`)
is hostile: it writes rings of which one to four words are wrong, while the switch reads them,
begins rings anew, and comes back when the switch ends its session. Quiet and attacked windows take
turns. What the container received in each is read from the switch's counters; the switch must not
end, and the guest's part must be the same in both. A pair counts where the guest had its rate in
the quiet window; where it had that before and has it no more, the harm lasts, and is judged.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import guest, machine
from lab.guest import iperf_report
from lab.machine import cpu_use, sample_cpu
from lab.net import Failed, Lab
from lab.programs import example
from lab.report import Claim, Report, at_least, at_most, middle
from lab.stats import table
from lab.switches.levada import knobs, toml_table
from lab.switches.levada_vm import LevadaVm
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.windows import WHOLE_PERCENT

SUMMARY = "a QEMU guest's TCP beside a front end that writes nonsense into its rings"

MBIT = 1_000_000
#: A part of what an emulated guest sends on a processor that it shares.
RATE_BPS = 8 * MBIT
HOSTILE = "hostile"
#: Pairs of windows, and how long each quiet and each attacked one lasts: an hour of attack in all.
WINDOWS = {False: (36, 20, 100), True: (4, 8, 8)}
#: After a change, before a window begins.
SETTLE_S = 1.0
#: What of its quiet rate the guest keeps, at least.
LEAST_KEPT = 0.99
#: Rings that a second of attack meets at least; fewer, and nothing was tried.
LEAST_RINGS_PER_S = 100


@dataclass(frozen=True)
class Pair:
    """A quiet and an attacked window, and what was tried in it."""

    labels: dict[str, Any]
    quiet_bps: float
    attacked_bps: float
    rings: int
    sessions: int
    idle: float
    disturbed: str | None

    @property
    def is_whole(self) -> bool:
        """Whether the guest had its rate in the quiet window; the wire's is more."""
        return 100 * self.quiet_bps >= WHOLE_PERCENT * RATE_BPS

    @property
    def valid(self) -> bool:
        return self.disturbed is None and self.is_whole

    @property
    def kept(self) -> float:
        """Of a quiet window without data nobody keeps a part."""
        return self.attacked_bps / self.quiet_bps if self.quiet_bps > 0 else math.nan

    def as_row(self) -> dict[str, Any]:
        """For result.json."""
        lacks = f"{100 * self.quiet_bps / RATE_BPS:.1f} % of the rate without an attack"
        why = self.disturbed or (None if self.is_whole else lacks)
        return {**asdict(self), "disturbed": why, "valid": self.valid}


class WithHostile(LevadaVm):
    """One endpoint is a port whose front end is not a machine, and comes and goes."""

    @property
    def hostile_socket(self) -> Path:
        return self.lab.dir / f"{HOSTILE}.sock"

    def _endpoint(self, endpoint: Endpoint, host: Host) -> str:
        if endpoint.name != HOSTILE:
            return super()._endpoint(endpoint, host)
        return toml_table(
            "[switch.tenant.endpoint]",
            name=HOSTILE,
            port=f"vhost-user://{self.hostile_socket}",
            listen=True,
            queues=2,
            **self._identity(endpoint),
            **(knobs(endpoint) if host.isolates else {}),
        )

    def received_bytes(self, name: str) -> int:
        """Bytes on the wire that an endpoint has received of neighbours so far."""
        tenants = [t for s in self.sample()["switches"] for t in s["tenants"]]
        found = (e for t in tenants for e in t["endpoints"] if e["name"] == name)
        return int(next(found)["local_ingress"]["wire_bytes"])


def topology() -> Topology:
    """A guest and its peer, and the hostile one."""
    tenants = (Tenant("red"), Tenant("blue"))
    ends = (
        Endpoint("vm0", "red", "h0"),
        Endpoint("peer", "red", "h0"),
        Endpoint(HOSTILE, "blue", "h0"),
    )
    return Topology(tenants, ends, (Host("h0", 100 * MBIT),))


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Boots the guest, plays the windows and judges."""
    report = Report("vm-hostile", quick, parameters=_parameters(quick))
    image = guest.image(lab)
    report.parameters["guest_kernel"] = image.version
    report.machine = machine.describe(["ip", "qemu-system-x86_64"])
    attacker = example("mutated_rings")
    switch = WithHostile(lab, topology(), image)
    count, quiet_s, attacked_s = WINDOWS[quick]
    with switch.running():
        _begin_tcp(switch, count * (quiet_s + attacked_s + 2 * SETTLE_S + 2) + 10)
        pairs = []
        for number in range(count):
            pairs.append(_pair(lab, switch, attacker, number, quiet_s, attacked_s))
            print(f"  {_progress(pairs[-1], count)}", file=sys.stderr)
        is_up = switch.daemon.alive()
        report.parameters["panics"] = switch.daemon.output().count("panicked")
    report.cells = [p.as_row() for p in pairs]
    report.tables = [pairs_table(pairs)]
    report.claims = claims(pairs, attacked_s, is_up, report.parameters["panics"])
    return report


def _begin_tcp(switch: WithHostile, seconds: float) -> None:
    """TCP from the guest, which nobody waits for: it ends with the machine."""
    peer = switch.guests["peer"].namespace
    peer.spawn("iperf3", "iperf3", "--server")
    vm = switch.machines["vm0"]
    address = switch.topology.address(
        next(e for e in switch.topology.endpoints if e.name == "peer")
    )
    deadline = time.monotonic() + 20
    probe = f"iperf3 --client {address} --time 1 --json"
    while True:
        try:
            iperf_report(vm.run(probe))
            break
        except Failed:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    vm.begin(f"iperf3 --client {address} --time {seconds:.0f} --bitrate {RATE_BPS} --interval 0")
    time.sleep(3)


def _pair(
    lab: Lab, switch: WithHostile, attacker: str, number: int, quiet_s: float, attacked_s: float
) -> Pair:
    cpu = sample_cpu(switch.processes)
    quiet_bps = _rate(switch, quiet_s)
    if quiet_bps == 0 and number == 0:
        raise Failed("the guest sends nothing, in the first quiet window")
    lasting = round(attacked_s + 2 * SETTLE_S)
    words = ("guest", str(switch.hostile_socket), str(lasting), str(1 + number))
    process = lab.spawn(f"hostile{number}", attacker, *words)
    time.sleep(SETTLE_S)
    attacked_bps = _rate(switch, attacked_s)
    process.popen.wait(lasting + 30)
    tried = json.loads(process.output().splitlines()[-1])
    use = cpu_use(cpu, sample_cpu(switch.processes))
    return Pair(
        {"pair": number + 1},
        quiet_bps,
        attacked_bps,
        tried["mutated_rings"],
        tried["sessions"],
        use.idle,
        use.disturbed(),
    )


def _rate(switch: WithHostile, seconds: float) -> float:
    """What the peer receives, in bit/s."""
    begun, before = time.monotonic(), switch.received_bytes("peer")
    time.sleep(seconds)
    return 8 * (switch.received_bytes("peer") - before) / (time.monotonic() - begun)


def claims(pairs: Sequence[Pair], attacked_s: float, is_up: bool, panics: int) -> list[Claim]:
    """The switch lives, rings were tried, and the guest has what it has without them."""
    kept = [p.kept for p in pairs if p.valid]
    part = middle(kept, len(pairs))
    harmed = [p.quiet_bps / RATE_BPS for p in lasting(pairs)]
    if harmed:
        part = min(harmed if part is None else [part, *harmed])
    rings = sum(p.rings for p in pairs) / (len(pairs) * attacked_s)
    return [
        at_least(
            "guest's rate beside hostile rings over quiet, median of pairs",
            part,
            "",
            LEAST_KEPT,
        ),
        at_least("mutated rings a second of attack", rings, "/s", LEAST_RINGS_PER_S),
        at_most("crashes and panics of the switch", panics + (0 if is_up else 1), "", 0),
    ]


def lasting(pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs whose quiet window lacks what an earlier one had, of those that were undisturbed."""
    told = [p for p in pairs if p.disturbed is None]
    first = next((n for n, p in enumerate(told) if p.is_whole), len(told))
    return [p for p in told[first:] if not p.is_whole]


def pairs_table(pairs: Sequence[Pair]) -> str:
    """What the guest got in each."""
    rows = [
        [
            str(p.labels["pair"]),
            f"{p.quiet_bps / MBIT:.3f}",
            f"{p.attacked_bps / MBIT:.3f}",
            f"{p.kept:.4f}",
            str(p.rings),
            str(p.sessions),
            f"{p.idle:.0%}",
        ]
        for p in pairs
    ]
    head = ["pair", "quiet Mbit/s", "attacked", "ratio", "rings", "sessions", "idle"]
    return table(head, rows)


def _progress(pair: Pair, count: int) -> str:
    return f"pair {pair.labels['pair']} of {count}: {pair.kept:.4f} of quiet, {pair.rings} rings"


def _parameters(quick: bool) -> dict[str, Any]:
    count, quiet_s, attacked_s = WINDOWS[quick]
    return {
        "accelerator": guest.ACCELERATOR,
        "rate_bps": RATE_BPS,
        "pairs": count,
        "quiet_s": quiet_s,
        "attacked_s": attacked_s,
    }
