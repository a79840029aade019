"""What a fault of a link costs: a pulled cable, one direction silent, and a cable that flaps.

The part `faults` of `lab/run bonding`. Two hosts with two links between them; one sends the other a
thousand datagrams a second, and has a TCP connection to it. Then the link that carries most fails.
What is counted: datagrams that never came, those that came twice, the longest time until one or a
later one had come, and connections that did not live. In modes without numbers what is on the
failed link is lost, as with any bond; with numbers nothing is, and no mode loses a connection.
A link that is silent takes no carrier away: only hosts that number their frames notice, so it is
played in these modes. (LACP notices too, after seconds: `lab/run lacp-vm`.)
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lab import watched
from lab.experiments.bonding_links import FAST_BPS, topology
from lab.kept import Kept, Key
from lab.net import Failed, Lab
from lab.pulse import longest_wait_ns
from lab.report import Claim, Report, at_most, middle
from lab.stats import table
from lab.switches.levada_bond import LevadaBond
from lab.watched import Watched
from lab.workload import FIRST_PORT, Pulse, Stream

LINKS = 2
PULLED, SILENT, FLAPPING = "pulled", "silent", "flapping"
INTERVAL_S = 0.001
#: Quiet before a fault, what is watched after it, and between the changes of a cable that flaps.
LEAD_S, WATCHED_S, FLAP_S = 1.0, 1.0, 0.15
#: What was on its way when the fault came, and for how long its cost is looked at.
LEAD_NS, WATCHED_NS = 50_000_000, 2_000_000_000
#: The connection's rate: little, so that it costs the datagrams nothing.
STREAM_BPS = 2_000_000
FLAPS = 3
READY_S = 10.0
#: A connection lives that carries something in so long, once the bond is whole again: longer than
#: the pauses of a retransmission timer that met each flap.
LIVES_S = 1.5
#: What a fault takes besides what is watched, and the start of a mode: by a quick run of two rounds
#: that took 190 s, beside builds (docs/results/bonding.md), less what is waited for no more.
OTHER_S, START_S = 2.3, 3.0
#: Rounds of a quick run, and of a full one.
ROUNDS = (2, 5)
#: The longest time until a datagram, or a later one, had come. The machine may let it be longer, so
#: the median over the rounds is judged.
MOST_WAIT_MS = {
    ("balance-rr", PULLED): 5.0,
    ("balance-rr", SILENT): 20.0,
    ("broadcast", PULLED): 5.0,
}
OTHERS_WAIT_MS = 10.0
NUMBERED = ("balance-rr", "broadcast")
PLAYED = (
    ("balance-rr", (PULLED, SILENT, FLAPPING)),
    ("broadcast", (PULLED, SILENT, FLAPPING)),
    ("active-backup", (PULLED, FLAPPING)),
    ("balance-xor", (PULLED, FLAPPING)),
    ("802.3ad", (PULLED, FLAPPING)),
)


@dataclass(frozen=True)
class Fault:
    """What one cost."""

    mode: str
    kind: str
    round: int
    sent: int
    lost: int
    twice: int
    wait_ms: float
    #: TCP connections that ended, or that carried nothing any more.
    broken: int


def seconds(kind: str) -> float:
    """For how long datagrams are sent."""
    return LEAD_S + WATCHED_S + (2 * FLAPS * FLAP_S if kind == FLAPPING else 0)


def plan_s(rounds: int) -> float:
    """How long so many rounds of each fault take."""
    kinds = [kind for _, kinds in PLAYED for kind in kinds]
    once_s = sum(math.ceil(seconds(kind)) + LIVES_S + OTHER_S for kind in kinds)
    return rounds * once_s + len(PLAYED) * START_S


def play(lab: Lab, quick: bool, report: Report, kept: Kept) -> None:
    """Plays the faults in all modes that are not kept, and adds what was found to a report."""
    rounds = ROUNDS[0 if quick else 1]
    report.parameters["faults"] = {"rounds": rounds, "datagrams_per_s": 1 / INTERVAL_S}
    parameters = report.parameters["faults"]
    mine = watched.part(kept, "faults", parameters, lambda row: Fault(**row))
    found: list[Watched[Fault]] = []
    for mode, kinds in PLAYED:
        keys = [(mode, kind, turn) for turn in range(rounds) for kind in kinds]
        found += _faults(LevadaBond(lab, topology(), [FAST_BPS] * LINKS, mode), keys, mine)
    report.cells += [
        {"labels": {"fault": f"{f.mode}, {f.kind}"}, **asdict(f), **one.marks}
        for one in found
        for f in (one.found,)
    ]
    report.tables.append(faults_table([one.found for one in found]))
    report.claims += claims(watched.valid(found), rounds)


def _faults(switch: LevadaBond, keys: Sequence[Key], kept: Kept) -> list[Watched[Fault]]:
    def play(_: None, key: Key) -> dict[str, Any]:
        _mode, kind, turn = key
        return asdict(_fault(switch, kind, turn))

    return watched.fill(kept, keys, switch.running, play)


def _fault(switch: LevadaBond, kind: str, turn: int) -> Fault:
    if not _are_whole(switch):
        _wait_until_whole(switch)
    src, dst = switch.guests["a0"], switch.guests["a1"]
    pulse = Pulse(f"{kind}-{turn}", "a0", "a1", INTERVAL_S)
    stream = Stream(f"tcp-{kind}-{turn}", "a0", "a1", STREAM_BPS)
    sent_s = math.ceil(seconds(kind))
    before = _sent(switch)
    stream.begin(src, dst, FIRST_PORT + 1, round(sent_s + READY_S + LIVES_S) + 2)
    pulse.begin(src, dst, FIRST_PORT, sent_s)
    time.sleep(LEAD_S)
    link = max(range(LINKS), key=lambda n: _sent(switch)[n] - before[n])
    begin = time.time_ns()
    _begin(switch, kind, link)
    detail = pulse.end().detail
    _end(switch, kind, link)
    _wait_until_whole(switch)
    whole = time.monotonic()
    time.sleep(LIVES_S)
    told = stream.end().detail
    lives = stream.goodput_bps(whole, whole + LIVES_S) > 0
    broken = len(told["broken"]) + told["ended_early"] or int(not lives)
    wait = longest_wait_ns(pulse.sent, pulse.came, begin - LEAD_NS, begin + WATCHED_NS)
    counts = detail["sent"], detail["lost"], detail["twice"]
    found = Fault(switch.mode, kind, turn, *counts, wait / 1e6, broken)
    print(
        f"  {found.mode}, {kind}: {found.lost} of {found.sent} datagrams lost, {found.twice} twice,"
        f" longest wait {found.wait_ms:.1f} ms, {found.broken} connections lost",
        file=sys.stderr,
    )
    return found


def _begin(switch: LevadaBond, kind: str, link: int) -> None:
    if kind == SILENT:
        switch.silence("h0", link)
        return
    switch.pull(link)
    for _ in range(FLAPS if kind == FLAPPING else 0):
        time.sleep(FLAP_S)
        switch.plug(link)
        time.sleep(FLAP_S)
        switch.pull(link)


def _end(switch: LevadaBond, kind: str, link: int) -> None:
    if kind == SILENT:
        switch.unsilence("h0", link)
    else:
        switch.plug(link)


def _bonds(switch: LevadaBond) -> list[dict[str, Any]]:
    return [s["uplink"]["bond"] for s in switch.sample()["switches"]]


def _sent(switch: LevadaBond) -> list[int]:
    """Segments that the first host has sent over each link."""
    return [member["sent"]["segments"] for member in _bonds(switch)[0]["members"]]


def _wait_until_whole(switch: LevadaBond) -> None:
    """Until all members are used, and frames have numbers where they may."""
    deadline = time.monotonic() + READY_S
    while not _are_whole(switch):
        if time.monotonic() > deadline:
            raise Failed(f"the bond is not whole: {_bonds(switch)}")
        time.sleep(0.05)
    # A member that was silent is used again a tenth of a second after it is heard.
    time.sleep(0.5)


def _are_whole(switch: LevadaBond) -> bool:
    return all(_is_whole(bond, switch.mode) for bond in _bonds(switch))


def _is_whole(bond: dict[str, Any], mode: str) -> bool:
    are_up = all(m["state"] == "distributing" and not m.get("peer") for m in bond["members"])
    return are_up and (mode not in NUMBERED or bond["order"]["numbered"])


# --- judging ------------------------------------------------------------------------------


def claims(faults: Sequence[Fault], rounds: int) -> list[Claim]:
    """Nothing lost with numbers, nothing twice, no connection lost, and nobody silent for long, of
    so many rounds of each."""
    found: list[Claim] = []
    for mode, kinds in PLAYED:
        for kind in kinds:
            these = [f for f in faults if (f.mode, f.kind) == (mode, kind)]
            name = f"{mode}, a link {kind}"
            if mode in NUMBERED:
                found.append(at_most(f"{name}: lost", _sum(f.lost for f in these), "", 0))
            found.append(at_most(f"{name}: came twice", _sum(f.twice for f in these), "", 0))
            broken = _sum(f.broken for f in these)
            found.append(at_most(f"{name}: connections lost", broken, "", 0))
            bound = MOST_WAIT_MS.get((mode, kind), OTHERS_WAIT_MS if kind == PULLED else None)
            if bound is not None:
                wait = middle([f.wait_ms for f in these], rounds)
                found.append(at_most(f"{name}: longest wait, median", wait, "ms", bound))
    return found


def _sum(counts: Iterable[int]) -> float | None:
    """None where there is nothing that counts."""
    found = list(counts)
    return float(sum(found)) if found else None


def faults_table(faults: Sequence[Fault]) -> str:
    """One row for each mode and fault."""
    rows = []
    for mode, kinds in PLAYED:
        for kind in kinds:
            these = [f for f in faults if (f.mode, f.kind) == (mode, kind)]
            if not these:
                continue
            waits = sorted(f.wait_ms for f in these)
            lost, sent = sum(f.lost for f in these), sum(f.sent for f in these)
            rows.append(
                [
                    mode,
                    kind,
                    f"{lost} of {sent}",
                    str(sum(f.twice for f in these)),
                    f"{statistics.median(waits):.1f}",
                    f"{waits[-1]:.1f}",
                    str(sum(f.broken for f in these)),
                ]
            )
    head = ["mode", "a link", "lost", "twice", "wait ms, median", "most"]
    return table([*head, "connections lost"], rows)
