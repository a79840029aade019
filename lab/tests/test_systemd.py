"""The walk through the unit's life: what is taken from the guest's words, without a guest."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lab.experiments import systemd
from lab.experiments.systemd import Unit
from lab.guest import Machine
from lab.net import Failed


class Played:
    """A guest that says what was prepared for a command, one word after the other."""

    def __init__(self, **words: list[str]) -> None:
        self.words = words

    def run(self, command: str, timeout_s: float = 0.0) -> str:
        """What it says; the last word again and again."""
        del timeout_s
        words = next(words for part, words in self.words.items() if part in command)
        return words.pop(0) if len(words) > 1 else words[0]


def unit(**words: list[str]) -> Unit:
    """With such a guest."""
    return Unit(cast(Machine, cast(Any, Played(**words))))


def test_connections_that_end_are_counted_once() -> None:
    state = ["d 4 0 {}\ns 24 {} {}\n"]
    words = [state[0].format(*n) for n in ((5, 0, 5), (5, 2, 5), (6, 2, 6), (6, 2, 6))]
    played = unit(cat=words)
    played.goes_on("a restart")
    assert played.rows == [["a restart", "28", "2"]]
    assert not played.claims[0].holds and played.claims[0].value == 2
    played.vm = unit(cat=["d 4 0 7\ns 24 2 9\n", "d 4 0 8\ns 24 2 9\n"]).vm
    played.goes_on("the next")
    assert played.rows[1] == ["the next", "26", "0"], "those that are open are looked at"
    assert played.claims[1].holds


def test_devices_are_there_and_the_same() -> None:
    link = "1: lo: <UP>\n{}: ta: <UP>\n5: tb: <UP>\n"
    servers = "".join(f"2: s{n}@if2: <UP>\n" for n in range(1, 7))
    before = unit(link=[link.format(3) + servers]).devices()
    assert before.split()[:3] == ["ta=3", "tb=5", "s1=2"]
    for after, holds in [(3, True), (7, False)]:
        seen = unit(cat=["d 4 0 1\n", "d 4 0 2\n"], link=[link.format(after) + servers])
        seen.goes_on("kill -9", before)
        assert seen.claims[1].holds is holds
    nothing = unit(cat=["d 4 0 1\n", "d 4 0 2\n"], link=[""])
    nothing.goes_on("kill -9", "")
    assert not nothing.claims[1].holds, "what is not there is not the same"


def test_what_does_not_come_ends_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "_PATIENCE_S", 0.0)
    with pytest.raises(Failed, match=r"answers after a reload(.|\n)*the log"):
        unit(cat=["d 4 0 1\n"], journalctl=["the log"]).goes_on("a reload")
