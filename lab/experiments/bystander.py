"""A bystander beside a neighbour that floods, storms, lies and spoofs: is it harmed, and is what
was bad counted?

One host runs Levada behind a link; outside is a bare network (`OneHost`). The bystander, a tenant
under its guarantee, has one paced TCP connection and a ping over the link, 100 a second. A
neighbour of another tenant attacks: from an endpoint of the same switch ("inside"), then from the
network ("outside"), with the bystander's data in the direction of the attack.

Each attack is measured in pairs of windows, quiet and then loaded, one after the other, and judged
by the medians over the pairs: what slowly changes on the machine is in both windows of a pair. A
pair counts where both windows had CPU to spare and were undisturbed; others are played again. And
only where the bystander had its rate in the quiet one (`lab.windows`), which is known at the end:
where it had that before an attack and not after, the harm lasts, and no claim holds of it. Every
frame that is to be dropped is looked for under its counter in `levada show --json`.

The 64-byte frames, last, are honest and only many: no link is full, the CPU is what they use up. So
their rate is raised step by step, and what is reported is the rate up to which the promise holds on
this machine.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab import machine
from lab.cell import ATTEMPTS
from lab.net import Failed, Lab
from lab.programs import program
from lab.report import Claim, Report, at_least, at_most, middle
from lab.stats import median, table
from lab.switches import OneHost
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.windows import Pair, Window, lasting, measured, with_lasting
from lab.wire import FULL_BYTES
from lab.workload import FIRST_PORT, Flow, Hostile, Ping, Stream, Swarm, flood

SUMMARY = "a bystander beside floods, storms, lies and spoofing: unharmed, and all of it counted"

MBIT = 1_000_000
#: What two cores carry with time to spare.
LINK_BPS = 300 * MBIT
GUARANTEE_BPS = {"good": 150 * MBIT, "bad": 100 * MBIT}
#: The bystander's connection, payload and headers: well under its guarantee.
STREAM_BPS = 100 * MBIT
PING_INTERVAL_S = 0.01
#: Rate of bad frames, more than any host sends by mistake.
BAD_PER_S = 20_000
#: Rate of a storm from outside: above what the switch floods from an uplink (20 000 a second).
OUTSIDE_STORM_PER_S = 40_000
#: The UDP flood's rate over the link's.
FLOOD = 1.5
#: Short connections: this many at once, of so many bytes, so many a second. More, and the programs
#: that make and take them use up the CPU that the switch needs.
SWARM = 8
SWARM_BYTES = 4 << 10
SWARM_PER_S = 300
#: What an attacker has to send of its rate, or there was no attack. A busy machine lets it send
#: less than all, and that is an attack still.
LEAST_PART = 0.1
#: Rates of 64-byte frames, in turn.
STEPS_PER_S = (25_000, 50_000, 100_000, 150_000, 200_000, 250_000, 300_000)

KEPT_PERCENT = 99.0
MOST_TIMES_QUIET = 3.0
COUNTED_PERCENT = 99.0

#: Flooded frames a second that the switch allows an endpoint and an uplink
#: (docs/reference/configuration.md, "flood_per_second").
FLOOD_ALLOWED = {"inside": 1000, "outside": 20_000}
#: And at once, after a rest (datapath/src/flood.rs): a quarter second of them.
FLOOD_BURST_S = 0.25

INSIDE, OUTSIDE = "inside", "outside"
#: Before the first window, and between the start of an attack and its window.
LEAD_S = 1.5
SETTLE_S = 0.4
#: The switch asks devices for their drops every second.
TOLD_S = 1.2
#: The bystander's programs end by themselves after this, whatever happens to the lab.
LONGEST_S = 1800


@dataclass(frozen=True)
class Attack:
    """What the neighbour does."""

    name: str
    #: Makes it: (switch, where from) -> flow.
    make: Callable[[OneHost, str], Flow]
    sides: tuple[str, ...] = (INSIDE, OUTSIDE)
    #: Frames a second, connections of a swarm, that it is to make.
    per_s: float = BAD_PER_S


def _hostile(
    kind: str, per_s: float = BAD_PER_S, src: str | None = None
) -> Callable[[OneHost, str], Flow]:
    def make(switch: OneHost, side: str) -> Flow:
        near, far = _ends("bad", side)
        near = src or near
        ends = {"": near, "to-": far, "other-": "good0"}
        who = ["--device", switch.device(near)]
        for prefix, endpoint in ends.items():
            address = switch.guests[endpoint].address
            who += [f"--{prefix}mac", switch.mac(endpoint), f"--{prefix}ip", address]
        if side == OUTSIDE:
            who.append("--outside")
        return Hostile("attack", near, far, kind, per_s, who)

    return make


def _storm(switch: OneHost, side: str) -> Flow:
    return _hostile("storm", OUTSIDE_STORM_PER_S if side == OUTSIDE else BAD_PER_S)(switch, side)


def _udp(switch: OneHost, side: str) -> Flow:
    return flood("attack", *_ends("bad", side), FLOOD * LINK_BPS, offload=True)


def _swarm(switch: OneHost, side: str) -> Flow:
    return Swarm("attack", *_ends("bad", side), SWARM, SWARM_BYTES, SWARM_PER_S)


ATTACKS = (
    Attack("TCP swarm", _swarm, per_s=SWARM_PER_S),
    Attack("UDP flood", _udp, per_s=FLOOD * LINK_BPS / 8 / FULL_BYTES),
    Attack("MAC flood", _hostile("mac-flood")),
    Attack("MAC flood, undeclared", _hostile("mac-flood-learned", src="open0"), (INSIDE,)),
    Attack("storm", _storm),
    Attack("malformed", _hostile("malformed")),
    Attack("offload lies", _hostile("offload-lies")),
    Attack("fragments", _hostile("fragments")),
    Attack("spoofed", _hostile("spoofed")),
)
STEPS = tuple(
    Attack(f"64 bytes, {per_s // 1000}k/s", _hostile("small", per_s), (INSIDE,), per_s)
    for per_s in STEPS_PER_S
)


@dataclass(frozen=True)
class Plan:
    """How often and how long."""

    pairs: int
    step_pairs: int
    window_s: float


FULL = Plan(pairs=5, step_pairs=3, window_s=3.0)
QUICK = Plan(pairs=3, step_pairs=1, window_s=1.5)


def topology() -> Topology:
    """Endpoints with 0 are on the host, with 1 outside. `open` has an endpoint whose addresses are
    learned."""
    tenants = (*(Tenant(n, guarantee_bps=g) for n, g in GUARANTEE_BPS.items()), Tenant("open"))
    pairs = [Endpoint(f"{t}{n}", t, ("host", "out")[n]) for t in GUARANTEE_BPS for n in range(2)]
    alone = Endpoint("open0", "open", "host", declared=False)
    return Topology(tenants, (*pairs, alone), (Host("host", LINK_BPS), Host("out", LINK_BPS)))


def _ends(tenant: str, side: str) -> tuple[str, str]:
    """Sender and receiver of a tenant's traffic."""
    return (f"{tenant}0", f"{tenant}1") if side == INSIDE else (f"{tenant}1", f"{tenant}0")


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays all attacks from both sides."""
    plan = QUICK if quick else FULL
    report = Report("bystander", quick, parameters=_parameters(plan))
    report.machine = machine.describe(["iperf3", "ip", "ping", str(program())])
    played: list[Played] = []
    for side in (INSIDE, OUTSIDE):
        played += _side(lab, side, plan)
    report.cells = [row for p in played for row in p.as_rows()]
    report.tables = [attacks_table(played), steps_table(played)]
    report.claims = [c for p in played if not p.is_step for c in claims(p)]
    return report


# --- measuring ----------------------------------------------------------------------------


@dataclass
class Played:
    """An attack from one side, and what the switch counted from before its first pair to after its
    last."""

    attack: str
    side: str
    is_step: bool
    pairs: list[Pair] = field(default_factory=list)
    drops: dict[str, int] = field(default_factory=dict)
    #: What the attacker has to send for it to be an attack.
    least_per_s: float = 0.0
    #: Pairs that have to count, those played again apart.
    planned: int = 1

    def played(self) -> list[Pair]:
        """The pairs that need not be played again."""
        return [p for p in self.pairs if self.why_again(p) is None]

    def why_again(self, pair: Pair) -> str | None:
        """Why a pair has to be played again, or None. Of a step, pairs count although the CPU was
        used up: that is what it shows."""
        bound = None if self.is_step else pair.bound
        if pair.disturbed or bound:
            return pair.disturbed or bound
        per_s = _sent_per_s(pair)
        return f"no attack: {per_s:.0f} frames/s" if per_s < self.least_per_s else None

    def judged(self) -> list[Pair]:
        """Those of them that count."""
        return [p for p in self.pairs if self.why_not(p) is None]

    def why_not(self, pair: Pair) -> str | None:
        """Why a pair does not count, or None. What the bystander had is known when its programs
        have ended."""
        return self.why_again(pair) or pair.quiet.lacks(STREAM_BPS)

    def lasting(self) -> list[Window]:
        """Quiet windows that show harm of this attack."""
        return lasting(self.pairs, STREAM_BPS)

    def as_rows(self) -> list[dict[str, Any]]:
        """For result.json."""
        return [
            {
                "labels": {"side": self.side, "attack": self.attack, "pair": number},
                "valid": self.why_not(pair) is None,
                "kept_percent": pair.kept_percent,
                "times_quiet": pair.times_quiet,
                "drops_of_all_pairs": self.drops,
                **asdict(pair),
                "bound": pair.bound,
                "disturbed": self.why_not(pair),
            }
            for number, pair in enumerate(self.pairs)
        ]


def _side(lab: Lab, side: str, plan: Plan) -> list[Played]:
    """All attacks from one side, over one life of the bystander's connection and ping."""
    switch = OneHost(lab, topology())
    with switch.running():
        src, dst = (switch.guests[name] for name in _ends("good", side))
        stream = Stream("bystander", src.name, dst.name, STREAM_BPS, row_ms=2)
        ping = Ping("ping", src.name, dst.name, PING_INTERVAL_S)
        stream.begin(src, dst, FIRST_PORT, LONGEST_S)
        ping.begin(src, dst, 0, LONGEST_S)
        time.sleep(LEAD_S)
        played = list(_attacks(switch, side, plan))
        ping.stop()
        told = stream.end()
        if told.detail["broken"]:
            raise Failed(f"the bystander's connection broke: {told.detail['broken']}")
        ping.end()
    for attack in played:
        for pair in attack.pairs:
            for window in (pair.quiet, pair.loaded):
                window.fill(stream, ping)
    return played


def _attacks(switch: OneHost, side: str, plan: Plan) -> Iterator[Played]:
    for attack in (*ATTACKS, *STEPS):
        if side not in attack.sides:
            continue
        least_per_s = LEAST_PART * attack.per_s
        wanted = plan.step_pairs if attack in STEPS else plan.pairs
        played = Played(attack.name, side, attack in STEPS, least_per_s=least_per_s, planned=wanted)
        before = drops(switch.sample(), side)
        for _ in range(wanted * ATTEMPTS):
            played.pairs.append(_pair(switch, attack.make(switch, side), plan.window_s))
            if len(played.played()) == wanted:
                break
        time.sleep(TOLD_S)
        after = drops(switch.sample(), side)
        played.drops = {reason: n - before.get(reason, 0) for reason, n in after.items()}
        print(f"  {side}: {_progress(played)}", file=sys.stderr)
        yield played


def _pair(switch: OneHost, attack: Flow, window_s: float) -> Pair:
    quiet = measured(switch, window_s, SETTLE_S)
    seconds = math.ceil(window_s + 2 * SETTLE_S)
    attack.begin(switch.guests[attack.src], switch.guests[attack.dst], FIRST_PORT + 1, seconds)
    time.sleep(SETTLE_S)
    loaded = measured(switch, window_s, SETTLE_S)
    sent = attack.end().detail
    time.sleep(SETTLE_S)
    return Pair(quiet, loaded, sent)


def drops(shown: dict[str, Any], side: str) -> dict[str, int]:
    """What the switch dropped of the attacker's so far, by reason: at its endpoints, or at the
    uplink."""
    switch = shown["switches"][0]
    total: dict[str, int] = {}
    places = [switch["uplink"]] if side == OUTSIDE else []
    places += [e for t in switch["tenants"] if t["name"] != "good" for e in t["endpoints"]]
    for place in places:
        for reason, frames in place["drops"].items():
            total[reason] = total.get(reason, 0) + frames
    return total


# --- judging ------------------------------------------------------------------------------


def claims(played: Played) -> list[Claim]:
    """That the bystander was not harmed, and what was bad is counted as what it was."""
    name = f"{played.side}: {played.attack}"
    kept, times = judged(played)
    made = [
        at_least(f"{name}: throughput kept", kept, "%", KEPT_PERCENT),
        at_most(f"{name}: ping p99", times, "x quiet", MOST_TIMES_QUIET),
    ]
    counted = counted_percent(played)
    if counted is not None:
        made.append(at_least(f"{name}: counted by name", counted, "%", COUNTED_PERCENT))
    return made


def expected_drops(played: Played) -> dict[str, int]:
    """Frames of each counter that were sent in all pairs, less what a switch may flood of them."""
    expected: dict[str, int] = {}
    for pair in played.pairs:
        for reason, sent in pair.sent.get("by_reason", {}).items():
            floodable_s = pair.sent["seconds"] + FLOOD_BURST_S if reason == "flood-limit" else 0
            bad = sent - FLOOD_ALLOWED[played.side] * floodable_s
            if reason != "allowed":
                expected[reason] = expected.get(reason, 0) + max(0, int(bad))
    return expected


def counted_percent(played: Played) -> float | None:
    """Of the counter that is worst: how much of what was sent it shows. What finds the device's
    ring full is refused to the sender, which does not count it as sent. None where nothing bad
    was sent."""
    expected = expected_drops(played)
    parts = [
        100 * played.drops.get(reason, 0) / max(1, frames) for reason, frames in expected.items()
    ]
    return min(parts, default=None)


def judged(played: Played) -> tuple[float | None, float | None]:
    """What is judged: throughput kept, in percent, and how many times the quiet round trip."""
    pairs = played.judged()
    kept = middle([p.kept_percent for p in pairs], played.planned)
    times = middle([p.times_quiet for p in pairs], played.planned)
    return with_lasting(kept, times, played.lasting(), STREAM_BPS)


def holds(played: Played) -> bool:
    """Whether the promise held in a step."""
    kept, times = judged(played)
    return (
        kept is not None
        and times is not None
        and kept >= KEPT_PERCENT
        and times <= MOST_TIMES_QUIET
    )


# --- showing ------------------------------------------------------------------------------


def attacks_table(played: Sequence[Played]) -> str:
    """What was done, what the bystander kept, and what was counted. Where no pair counts, what the
    others show, marked as such."""
    rows = []
    for p in played:
        if not p.is_step:
            mark = " (harm lasts)" if p.lasting() else "" if p.judged() else " (not valid)"
            counted = ", ".join(f"{r} {n}" for r, n in sorted(p.drops.items()) if n)
            rows.append([f"{p.side}: {p.attack}{mark}", *_figures(p), counted or "none"])
    head = ["attack", "sent/s", "kept %", "p99 us quiet", "loaded", "x", "worker", "drops"]
    return table(head, rows)


def steps_table(played: Sequence[Played]) -> str:
    """64-byte frames by rate, and up to which the promise held."""
    steps = [p for p in played if p.is_step]
    rows = [[p.attack, *_figures(p), "holds" if holds(p) else "does not hold"] for p in steps]
    last = 0.0
    for p in steps:
        if not holds(p):
            break
        last = median([pair.sent["per_s"] for pair in p.judged()])
    head = ["honest frames", "sent/s", "kept %", "p99 us quiet", "loaded", "x", "worker", "promise"]
    return f"{table(head, rows)}\nthe promise holds up to {last:.0f} frames of 64 bytes a second"


def _figures(p: Played) -> list[str]:
    pairs = p.judged() or p.pairs

    def middle(of: Callable[[Pair], float], spec: str) -> str:
        return format(median([of(pair) for pair in pairs]), spec)

    return [
        middle(_sent_per_s, ".0f"),
        middle(lambda pair: pair.kept_percent, ".2f"),
        middle(lambda pair: 1000 * pair.quiet.rtt_p99_ms, ".0f"),
        middle(lambda pair: 1000 * pair.loaded.rtt_p99_ms, ".0f"),
        middle(lambda pair: pair.times_quiet, ".2f"),
        middle(lambda pair: 100 * pair.loaded.worker["busy"], ".0f") + " %",
    ]


def _sent_per_s(pair: Pair) -> float:
    """Frames of an attack, connections of a swarm."""
    told = pair.sent
    seconds = pair.loaded.end_s - pair.loaded.start_s + 2 * SETTLE_S
    if "connections" in told:
        return float(told["connections"] / seconds)
    return float(told["per_s"] if "per_s" in told else told["sent_per_s"])


def _progress(p: Played) -> str:
    why = next(filter(None, map(p.why_again, p.pairs)), None)
    text = f"{p.attack}: {len(p.played())} of {len(p.pairs)} pairs valid"
    return f"{text}; {why}" if why else text


def _parameters(plan: Plan) -> dict[str, Any]:
    return {
        **asdict(plan),
        "link_bps": LINK_BPS,
        "guarantee_bps": GUARANTEE_BPS,
        "stream_bps": STREAM_BPS,
        "bad_per_s": BAD_PER_S,
        "flood_over_link": FLOOD,
    }
