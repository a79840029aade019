"""A victim under attacks on what a switch shares: its worker's time, its memory, its copies, its
addresses.

The victim is promised 500 of 1000 Mbit/s, and has one TCP connection paced at 400 and a ping, 100
a second, to a router behind the link. Each attack (`lab.attacked`) is played alone, in pairs of
windows, quiet and attacked in turn, with a connection of its own for each pair. The daemon's
worker has a processor of its own; everything else, the daemon's other threads too, has the
others, where attackers yield to the victim's programs: what harms the victim is what the switch
does.

A quiet window counts where it had processors to spare, was undisturbed (`lab.cell`) and had the
victim's whole rate; an attacked one where it was undisturbed: that the worker has no time to spare
is what many attacks are for; and where there was an attack, as attackers yield and a busy machine
may let them send next to nothing. Others are played again. A quiet window that lacks the victim's
rate or pings after an attack, and another had them before, shows harm that lasts (`lab.windows`):
that is judged, and does not hold. Where the machine cannot carry the victim's 400 Mbit/s even
alone, link, guarantee and rate are made smaller by a factor, which the report names.

Then what attackers fill, and what of the victim's is counted meanwhile (`lab.counted`): what is
remembered for services (`lab.remembered`), tables of endpoints (`lab.tables`), and where a daemon
lets others in (`lab.doors`); single frames, of which each has a verdict that it has to have
(`lab.gate`); a daemon that starts beside a stray file in a VDE directory; and a flood over a bond
of two links (`lab.bond_flood`). Each of these parts can be played alone: `--only windows`,
`services`, `tables`, `doors`, `frames`, `bond`.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab import bond_flood, counted, doors, gate, machine, remembered, stray, tables
from lab.attacked import (
    GUARANTEED,
    LINK_BPS,
    ROUTER,
    SCENES,
    VICTIM,
    Attack,
    Attacked,
    Scene,
    asker,
    prompt,
    visitor,
)
from lab.cell import ATTEMPTS
from lab.net import Failed, Lab
from lab.programs import program
from lab.report import Claim, Report, at_least, at_most, middle
from lab.stats import median, table
from lab.windows import WHOLE_PERCENT, Pair, Window, lasting, measured, with_lasting
from lab.workload import FIRST_PORT, Ping, Stream, Tool

SUMMARY = "a victim under attacks on the switch's time, memory, copies and addresses"

MBIT = 1_000_000
#: The victim's connection, of the link: under its guarantee.
PACED = 0.4
PING_INTERVAL_S = 0.01
#: What the link is made smaller by, in turn, until a quiet victim has its rate.
FACTORS = (1.0, 0.5, 0.25, 0.125)

KEPT_PERCENT = 98.0
MOST_TIMES_QUIET = 3.0
ANSWERED_PERCENT = 98.0
#: Of new connections to the victim's service.
SERVED_PERCENT = 99.9

#: Before the first window of a pair, and after an attack.
LEAD_S = 1.0
REST_S = 0.3
#: How much later than it should be a window may end: attacks go on for that long.
SLACK_S = 0.5
#: A victim's programs end by themselves after this, whatever happens to the lab.
LONGEST_S = 60


@dataclass(frozen=True)
class Plan:
    """How often and how long. Pairs are played again as long as all attacks together take no more
    than `budget_s`, of which each has the same part."""

    pairs: int
    window_s: float
    budget_s: float


FULL = Plan(pairs=3, window_s=4.0, budget_s=750.0)
QUICK = Plan(pairs=1, window_s=1.25, budget_s=110.0)


@dataclass
class Played:
    """The pairs of an attack, and what was dropped of the attacker's tenant over all of them."""

    scene: str
    attack: Attack
    rate_bps: float
    pairs: list[Pair] = field(default_factory=list)
    #: Pairs that have to count, those played again apart.
    planned: int = 1

    def judged(self) -> list[Pair]:
        """The pairs that count."""
        return [p for p in self.pairs if self.why_not(p) is None]

    def why_not(self, pair: Pair) -> str | None:
        """Why a pair does not count, or None."""
        return why_not(pair, self.rate_bps, self.attack.least_per_s)

    def was_made(self) -> bool:
        """Whether there was an attack in any pair, disturbed ones too."""
        return any(no_attack(pair, self.attack.least_per_s) is None for pair in self.pairs)

    def lasting(self) -> list[Window]:
        """Quiet windows that show harm of this attack."""
        return lasting(self.pairs, self.rate_bps)

    def as_rows(self) -> list[dict[str, Any]]:
        """For result.json."""
        return [
            {
                "labels": {"scene": self.scene, "attack": self.attack.name, "pair": number},
                "valid": self.why_not(pair) is None,
                "bound": pair.loaded.bound,
                "disturbed": self.why_not(pair),
                "kept_percent": pair.loaded.percent(self.rate_bps),
                "times_quiet": pair.times_quiet,
                **{k: v for k, v in asdict(pair).items() if k not in ("bound", "disturbed")},
            }
            for number, pair in enumerate(self.pairs)
        ]


def why_not(pair: Pair, rate_bps: float, least_per_s: float) -> str | None:
    """Why a pair does not count, or None. What the victim had is known when its programs have
    ended."""
    if pair.disturbed or pair.quiet.bound:
        return pair.disturbed or pair.quiet.bound
    return no_attack(pair, least_per_s) or pair.quiet.lacks(rate_bps)


def no_attack(pair: Pair, least_per_s: float) -> str | None:
    """Why there was none: too little was sent, or it did not hit what it is aimed at."""
    if pair.sent["per_s"] < least_per_s:
        return f"no attack: {pair.sent['per_s']:.0f} frames/s < {least_per_s:.0f}"
    hits, least = pair.sent.get("hits", (0, 0))
    return f"no attack: {hits} hits < {least}" if hits < least else None


def run(lab: Lab, quick: bool, out: Path, only: str | None = None) -> Report:
    """Plays all attacks, each alone, or those of a part."""
    plan = QUICK if quick else FULL
    core = share_processors(lab)
    report = Report("attacks", quick)
    report.machine = machine.describe(["ip", "ping", "vde_plug", str(program())])
    for part in PARTS if only is None else [only]:
        _PLAYED[part](lab, plan, core, report)
    return report


def play_windows(
    lab: Lab, plan: Plan, core: int, report: Report, scenes: Sequence[Scene] = SCENES
) -> list[Played]:
    """Attacks beside a victim's connection and ping."""
    factor = _factor(lab, core)
    report.parameters |= _parameters(plan, factor)
    began, each_s = time.monotonic(), plan.budget_s / sum(len(s.attacks) for s in scenes)
    played: list[Played] = []
    for scene in scenes:
        until = [began + (len(played) + n) * each_s for n in range(1, 1 + len(scene.attacks))]
        played += _scene(lab, scene, factor, core, plan, until)
    report.cells += [row for p in played for row in p.as_rows()]
    report.tables.append(attacks_table(played, factor))
    report.claims += [c for p in played for c in claims(p)]
    return played


def play_services(
    lab: Lab,
    plan: Plan,
    core: int,
    report: Report,
    attacks: Sequence[remembered.Play] = remembered.ATTACKS,
) -> None:
    """What is remembered for services."""
    played = remembered.play(lab, core, plan.pairs, _say, attacks=attacks)
    _add(report, "what services remember", played)


def _add(report: Report, what: str, played: counted.Played) -> None:
    """Rounds of attacks that are counted."""
    report.cells += [one.as_row() for rounds in played.values() for one in rounds]
    report.tables.append(counted.rounds_table(what, played))
    report.claims += counted.claims(played)


def _rounds(
    what: str, play: Callable[[Lab, int, int, Callable[[str], None]], counted.Played]
) -> Callable[[Lab, Plan, int, Report], None]:
    """A part of such rounds."""

    def part(lab: Lab, plan: Plan, core: int, report: Report) -> None:
        _add(report, what, play(lab, core, plan.pairs, _say))

    return part


def _frames(lab: Lab, plan: Plan, core: int, report: Report) -> None:
    """Single frames, and a stray file."""
    verdicts = gate.play(lab)
    _say(f"frames: {sum(v.is_right for v in verdicts)} of {len(verdicts)} as they have to be")
    starts = stray.play(lab)
    _say(f"stray file: {starts}")
    report.cells += [v.as_row() for v in verdicts]
    report.tables.append(gate.verdicts_table(verdicts))
    report.claims += [*gate.claims(verdicts), *stray.claims(starts)]


def _bond(lab: Lab, plan: Plan, core: int, report: Report) -> None:
    """A flood over a bond."""
    flooded = bond_flood.play(lab, min(plan.window_s, bond_flood.WINDOW_S))
    _say(str(flooded))
    report.cells.append(bond_flood.as_row(flooded))
    report.tables.append(bond_flood.flood_table(flooded))
    report.claims += bond_flood.claims(flooded)


_PLAYED: dict[str, Callable[[Lab, Plan, int, Report], object]] = {
    "windows": play_windows,
    "services": play_services,
    "tables": _rounds("tables of endpoints", tables.play),
    "doors": _rounds("where a daemon lets others in", doors.play),
    "frames": _frames,
    "bond": _bond,
}
PARTS = tuple(_PLAYED)


def share_processors(lab: Lab) -> int:
    """Leaves one processor to the worker: its number. The lab and all that it starts have the
    others, and so have the kernel's threads, as far as they may be moved."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        raise Failed("attacks need two processors: one for the worker, one for all else")
    lab.defer(lambda: os.sched_setaffinity(0, mine))
    os.sched_setaffinity(0, mine[1:])
    lab.move_kernel_threads(mine[0])
    return mine[0]


# --- measuring ----------------------------------------------------------------------------


def _factor(lab: Lab, core: int) -> float:
    """The largest of `FACTORS` at which the victim alone has its rate, and the machine time to
    spare. What others disturbed does not say that it has not."""
    had = "nothing"
    for factor in FACTORS:
        switch = Attacked(lab, Scene("alone", ()), factor)
        rate_bps = factor * PACED * LINK_BPS
        with switch.running():
            switch.pin(core)
            windows = []
            for _ in range(ATTEMPTS):
                windows += _watch(switch, rate_bps, _quiet)
                last = windows[-1]
                had = f"{last.goodput_bps / MBIT:.0f} of {rate_bps / MBIT:.0f} Mbit/s"
                why = last.disturbed or last.bound or "time to spare"
                _say(f"alone: {had}; {why}")
                if is_whole(last, rate_bps):
                    return factor
        if all(w.disturbed for w in windows):
            return factor
    raise Failed(f"this machine is too weak for the smallest link: a victim alone had {had}")


def is_whole(window: Window, rate_bps: float) -> bool:
    """Whether a victim without attacks had its rate, and all had time to spare."""
    return window.told and window.percent(rate_bps) >= WHOLE_PERCENT


def _quiet(switch: Attacked) -> list[Window]:
    return [measured(switch, QUICK.window_s, SLACK_S)]


def _scene(
    lab: Lab, scene: Scene, factor: float, core: int, plan: Plan, until: Sequence[float]
) -> list[Played]:
    """All attacks of a scene, each with the time `until` its pairs are played again. After a theft
    tables may hold what the thief said, so each such pair has a daemon of its own."""
    rate_bps = factor * PACED * LINK_BPS
    played = [Played(scene.name, a, rate_bps, planned=plan.pairs) for a in scene.attacks]
    while any(wants(p, plan, end) for p, end in zip(played, until, strict=True)):
        switch = Attacked(lab, scene, factor)
        with switch.running():
            switch.pin(core)
            for p, end in zip(played, until, strict=True):
                while wants(p, plan, end):
                    p.pairs.append(_pair(switch, p, plan.window_s))
                    _say(_progress(p))
                    if p.attack.is_theft:
                        break
    return played


def wants(p: Played, plan: Plan, until_s: float) -> bool:
    """Whether an attack needs one more pair."""
    tried = len(p.pairs)
    if tried < plan.pairs:
        return True
    may_retry = time.monotonic() < until_s and tried < plan.pairs * ATTEMPTS
    return may_retry and len(p.judged()) < plan.pairs


def _pair(switch: Attacked, p: Played, window_s: float) -> Pair:
    sent: dict[str, Any] = {}

    def body(switch: Attacked) -> list[Window]:
        quiet = _quiet_window(switch, p.attack, window_s)
        seconds = math.ceil(p.attack.settle_s + window_s + 2 * SLACK_S)
        before = p.attack.hits(switch) if p.attack.hits else 0
        # Some of the victim's connections are open before the attack begins.
        visits = _begin(switch, visitor(switch), seconds) if p.attack.is_served else None
        flow = _begin(switch, p.attack.make(switch), seconds)
        asks = _begin(switch, p.attack.asks(switch), seconds) if p.attack.asks else None
        time.sleep(p.attack.settle_s)
        loaded = measured(switch, window_s, SLACK_S)
        if not visits:
            flow.stop()
        sent.update(flow.end().detail)
        if visits:
            sent["visits"] = visits.end().detail
        if asks:
            asks.stop()
            told = asks.end().detail
            sent.update({key: told[key] for key in ("asked", "answered")})
        if p.attack.hits:
            sent["hits"] = p.attack.hits(switch) - before, p.attack.least_hits
        return [quiet, loaded]

    quiet, loaded = _watch(switch, p.rate_bps, body)
    p.attack.after(switch)
    time.sleep(REST_S)
    return Pair(quiet, loaded, sent)


def _begin(switch: Attacked, flow: Tool, seconds: int) -> Tool:
    """The same, begun."""
    flow.begin(switch.guests[flow.src], switch.guests[flow.dst], FIRST_PORT, seconds)
    return flow


def _quiet_window(switch: Attacked, attack: Attack, window_s: float) -> Window:
    """A window without the attack; where that comes with questions, with these."""
    if not attack.is_asked:
        return measured(switch, window_s, SLACK_S)
    flow = _begin(switch, (attack.asks or asker)(switch), math.ceil(window_s))
    window = measured(switch, window_s, SLACK_S)
    flow.stop()
    flow.end()
    return window


def _watch(
    switch: Attacked, rate_bps: float, body: Callable[[Attacked], list[Window]]
) -> list[Window]:
    """What `body` measures beside a new connection and ping of the victim."""
    victim, router, far = switch.guests[VICTIM], switch.guests[ROUTER], switch.far()
    stream = Stream("victim", VICTIM, ROUTER, round(rate_bps), row_ms=2)
    ping = Ping("victim", VICTIM, far.name, PING_INTERVAL_S, prompt())
    stream.begin(victim, router, FIRST_PORT + 1, LONGEST_S)
    ping.begin(victim, far, 0, LONGEST_S)
    time.sleep(LEAD_S)
    windows = body(switch)
    ping.stop()
    stream.end()
    ping.end()
    for window in windows:
        window.fill(stream, ping)
    return windows


# --- judging ------------------------------------------------------------------------------


def claims(p: Played) -> list[Claim]:
    """That the victim had its rate and its round trips, its frames reached nobody else, and it was
    found by who asked."""
    name, pairs = p.attack.name, p.judged()

    def middle_of(of: Callable[[Pair], float]) -> float | None:
        return middle([of(pair) for pair in pairs], p.planned)

    rate = f"% of {p.rate_bps / MBIT:.0f} Mbit/s"
    kept = middle_of(lambda pair: pair.loaded.percent(p.rate_bps))
    times = middle_of(lambda pair: pair.times_quiet)
    kept, times = with_lasting(kept, times, p.lasting(), p.rate_bps)
    made = [
        at_least(f"{name}: throughput", kept, rate, KEPT_PERCENT),
        at_most(f"{name}: ping p99", times, "x quiet", MOST_TIMES_QUIET),
    ]
    if p.attack.is_theft:
        # One that is stolen in a disturbed window is stolen all the same.
        stolen = sum(pair.sent["stolen"] for pair in p.pairs)
        told = stolen if stolen or p.was_made() else None
        made.append(at_most(f"{name}: stolen", told, "frames", 0))
    # In disturbed windows too: nobody else's work may cost an answer or a connection.
    if p.attack.is_asked:
        answered, asked = questions(p)
        made.append(_part_of(p, f"{name}: ARP answered", answered, asked, ANSWERED_PERCENT))
    if p.attack.is_served:
        answered, asked, lost = visited(p.pairs)
        what = f"{name}: new connections answered"
        made.append(_part_of(p, what, answered, asked, SERVED_PERCENT))
        told = lost if lost or p.was_made() else None
        made.append(at_most(f"{name}: open ones lost", told, "connections", 0))
    return made


def _part_of(p: Played, what: str, good: int, of: int, least: float) -> Claim:
    """That so much of what was counted is good. What fails without an attack fails; what holds
    shows nothing."""
    percent = 100 * good / of if of else None
    if percent is not None and percent >= least and not p.was_made():
        percent = None
    return at_least(what, percent, "%", least)


def questions(p: Played) -> tuple[int, int]:
    """Of questions by ARP: those that were answered, and all; of pairs with an attack, if any."""
    made = [pair for pair in p.pairs if no_attack(pair, p.attack.least_per_s) is None]
    sent = [pair.sent for pair in made or p.pairs]
    return sum(one["answered"] for one in sent), sum(one["asked"] for one in sent)


def visited(pairs: Sequence[Pair]) -> tuple[int, int, int]:
    """Of the victim's visits to its service: new connections that were answered, all of them, and
    lost ones of those that stayed open."""
    visits = [pair.sent["visits"] for pair in pairs]
    answered, failed = (sum(sum(v[k].values()) for v in visits) for k in ("answered", "failed"))
    return answered, answered + failed, sum(v["kept_failed"] for v in visits)


# --- showing ------------------------------------------------------------------------------


def attacks_table(played: Sequence[Played], factor: float) -> str:
    """What was done, and what the victim had. Where no pair counts, what the others show, marked as
    such."""
    rows = [[_marked(p), *_figures(p)] for p in played]
    head = ["attack", "sent/s", "Mbit/s quiet", "attacked", "p99 ms quiet", "attacked", "x"]
    link = f"link of {factor * LINK_BPS / MBIT:.0f} Mbit/s ({factor:g} x {LINK_BPS / MBIT:.0f})"
    return f"{link}\n{table([*head, 'worker', 'besides', ''], rows)}"


def _marked(p: Played) -> str:
    if p.lasting():
        return f"{p.attack.name} (harm lasts)"
    return p.attack.name if p.judged() else f"{p.attack.name} (not valid)"


def _figures(p: Played) -> list[str]:
    pairs = p.judged() or p.pairs

    def shown(of: Callable[[Pair], float], spec: str) -> str:
        return format(median([of(pair) for pair in pairs]), spec)

    besides = ""
    if p.attack.is_theft:
        besides = f"{sum(pair.sent['stolen'] for pair in p.pairs)} stolen"
    if p.attack.is_asked:
        besides = "{} of {} answered".format(*questions(p))
    if p.attack.is_served:
        besides = "{} of {} visits answered, {} open ones lost".format(*visited(p.pairs))
    return [
        shown(lambda pair: pair.sent["per_s"], ".0f"),
        shown(lambda pair: pair.quiet.goodput_bps / MBIT, ".1f"),
        shown(lambda pair: pair.loaded.goodput_bps / MBIT, ".1f"),
        shown(lambda pair: pair.quiet.rtt_p99_ms, ".2f"),
        shown(lambda pair: pair.loaded.rtt_p99_ms, ".2f"),
        shown(lambda pair: pair.times_quiet, ".1f"),
        shown(lambda pair: 100 * pair.loaded.worker["busy"], ".0f") + " %",
        besides,
        "holds" if all(c.holds for c in claims(p)) else "does not hold",
    ]


def _progress(p: Played) -> str:
    last = p.pairs[-1]
    rates = [w.goodput_bps / MBIT for w in (last.quiet, last.loaded)]
    trips = [w.rtt_p99_ms for w in (last.quiet, last.loaded)]
    text = "{}: {:.1f} -> {:.1f} Mbit/s".format(p.attack.name, *rates)
    text += ", ping p99 {:.2f} -> {:.2f} ms".format(*trips)
    why = p.why_not(last)
    return f"{text}; {why}" if why else text


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _parameters(plan: Plan, factor: float) -> dict[str, Any]:
    return {
        **asdict(plan),
        "factor": factor,
        "link_bps": factor * LINK_BPS,
        "guarantee_bps": factor * GUARANTEED * LINK_BPS,
        "stream_bps": factor * PACED * LINK_BPS,
        "ping_interval_s": PING_INTERVAL_S,
        "ping_is_real_time": bool(prompt()),
    }
