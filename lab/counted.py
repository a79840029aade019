"""Rounds of attacks that are counted: what an attack hit, and what of the victim's was as it has to
be.

Two attack at once, each where it can do most: an endpoint of another tenant, and one of the
victim's own. A round tells what the attack hit: a count that must have grown by what the bound is,
and more. One that did not hit is no attack, and shows nothing. Of the victim everything is counted,
and so judged on a busy machine too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lab.report import Claim, at_least
from lab.stats import table
from lab.workload import FlowResult, Guest, Tool

#: Who attacks: an endpoint of the victim's tenant, and one of another.
MATE, RIVAL = "mate0", "red0"
ATTACKERS = (MATE, RIVAL)
#: A flood ends by itself; it is watched until it has hit, for so long at most.
FLOOD_S, PATIENCE_S, LOOK_S = 20, 4.0, 0.1
ALL_PERCENT, MOST_PERCENT = 100.0, 98.0


@dataclass(frozen=True)
class Counted:
    """Something of the victim's: how many of all were as they have to be."""

    what: str
    good: int
    all: int
    least_percent: float = ALL_PERCENT

    @property
    def percent(self) -> float:
        return 100 * self.good / self.all if self.all else 0.0

    @property
    def holds(self) -> bool:
        return self.percent >= self.least_percent


@dataclass(frozen=True)
class Hit:
    """What an attack did to what it is aimed at, and how much of it makes it one."""

    what: str
    count: int
    least: int


@dataclass(frozen=True)
class Round:
    """An attack once."""

    attack: str
    hits: tuple[Hit, ...]
    counted: tuple[Counted, ...]

    @property
    def missed(self) -> list[Hit]:
        """What it was to hit, and did not."""
        return [hit for hit in self.hits if hit.count < hit.least]

    def __str__(self) -> str:
        told = [f"{c.good} of {c.all} {c.what}" for c in self.counted]
        told += [f"not hit: {h.count} {h.what} < {h.least}" for h in self.missed]
        return f"{self.attack}: {', '.join(told)}"

    def as_row(self) -> dict[str, Any]:
        """For result.json."""
        missed = "; ".join(f"not hit: {h.count} {h.what} < {h.least}" for h in self.missed)
        labels = {"attack": self.attack}
        return {"labels": labels, "valid": not missed, "disturbed": missed or None, **asdict(self)}


#: All rounds, by attack.
Played = dict[str, list[Round]]


# --- what is done -------------------------------------------------------------------------


@contextlib.contextmanager
def meanwhile(guests: Mapping[str, Guest], flows: Sequence[Tool]) -> Iterator[list[FlowResult]]:
    """Attackers' tools send meanwhile. What they sent is in the list afterwards. They do not yield:
    no rate is judged, and on a busy machine they would not start."""
    for flow in flows:
        flow.begin(guests[flow.src], guests[flow.dst], 0, FLOOD_S)
    sent: list[FlowResult] = []
    yield sent
    for flow in flows:
        flow.stop()
    sent += [flow.end() for flow in flows]


def until(is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
    """Waits until something is so, for as long as it may take; whether it is."""
    end = time.monotonic() + patience_s
    while not (so := is_so()) and time.monotonic() < end:
        time.sleep(LOOK_S)
    return so


def until_hit(look: Callable[[], Iterable[Hit]]) -> tuple[Hit, ...]:
    """Waits until an attack has hit, for as long as it may take: what it has hit."""
    hits: tuple[Hit, ...] = ()

    def has_hit() -> bool:
        nonlocal hits
        hits = tuple(look())
        return all(hit.count >= hit.least for hit in hits)

    until(has_hit)
    return hits


def note(played: Played, one: Round, say: Callable[[str], None]) -> None:
    """A round was played."""
    played.setdefault(one.attack, []).append(one)
    say(str(one))


# --- judging ------------------------------------------------------------------------------


def claims(played: Played) -> list[Claim]:
    """Of the rounds that hit. What is lost in others is lost, and what is kept there shows
    nothing."""
    made = []
    for attack, rounds in played.items():
        for number, first in enumerate(rounds[0].counted):
            counted = [one.counted[number] for one in rounds if not one.missed]
            counted = counted or [c for one in rounds if not (c := one.counted[number]).holds]
            good, all_ = (sum(getattr(c, key) for c in counted) for key in ("good", "all"))
            percent = Counted(first.what, good, all_).percent if counted else None
            made.append(at_least(f"{attack}: {first.what}", percent, "%", first.least_percent))
    return made


def rounds_table(what: str, played: Played) -> str:
    """What each attack on something hit, and what of the victim's was as it has to be."""
    rows = []
    for attack, rounds in played.items():
        for one in rounds:
            hits = "; ".join(f"{hit.count} {hit.what}" for hit in one.hits)
            counted = "; ".join(f"{c.good} of {c.all} {c.what}" for c in one.counted)
            rows.append([attack, hits, counted, "not hit" if one.missed else ""])
    return table([what, "hit", "of the victim", ""], rows)
