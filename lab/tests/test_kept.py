"""Results that are kept are those of the same program and lab, whole, and under their keys; a run
that was interrupted plays the rest and nothing else, and says so."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from lab import kept as module
from lab.cell import ATTEMPTS
from lab.kept import Kept, Key, digest, digest_with_lab
from lab.report import Report

KEYS: list[Key] = [("p2c", rate, n) for rate in (90, 500) for n in (0, 1)]


class Played:
    """Plays a key, and says which, and where; one with the number `stops` is interrupted."""

    def __init__(self, stops: int | None = None) -> None:
        self.keys: list[Key] = []
        self.starts = 0
        self._stops = stops

    @contextmanager
    def running(self) -> Iterator[str]:
        self.starts += 1
        yield "switch"

    def play(self, place: str, key: Key) -> dict[str, object]:
        assert place == "switch"
        if len(self.keys) == self._stops:
            raise KeyboardInterrupt
        self.keys.append(key)
        return {"key": key, "turn": len(self.keys)}

    def fill(self, kept: Kept) -> list[dict[str, object]]:
        """All of `KEYS`."""
        return kept.fill(KEYS, self.running, self.play)


def test_what_was_kept_is_there_again_for_the_same_program_only(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "results.jsonl"
    kept = Kept(path, "a")
    kept.add(("native", 2, "auto", 0), [[1, 2.5, 0.1]])
    kept.add(("guest", 1, "auto", 0), {"x": 1})
    assert Kept(path, "a").results == {
        ("native", 2, "auto", 0): [[1, 2.5, 0.1]],
        ("guest", 1, "auto", 0): {"x": 1},
    }
    assert Kept(path, "b").results == {}


def test_a_line_that_was_not_written_whole_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Kept(path, "a").add(("one",), 1)
    path.write_text(path.read_text() + '[]\n{}\n{"made_of": "a", "key": ["two"], "res')
    again = Kept(path, "a")
    assert again.results == {("one",): 1}
    again.add(("two",), 2)
    assert Kept(path, "a").results == {("one",): 1, ("two",): 2}


@pytest.mark.parametrize("stops", range(len(KEYS)))
def test_a_run_that_was_interrupted_plays_the_rest(tmp_path: Path, stops: int) -> None:
    path = tmp_path / "results.jsonl"
    first, rest = Played(stops), Played()
    with pytest.raises(KeyboardInterrupt):
        first.fill(Kept(path, "a"))
    results = rest.fill(Kept(path, "a"))
    assert (first.keys, rest.keys) == (KEYS[:stops], KEYS[stops:])
    # In the order of the keys, and as JSON has it, whoever has played it.
    assert [result["key"] for result in results] == [list(key) for key in KEYS]


def test_where_nothing_is_missing_nothing_is_started(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first, again, other = Played(), Played(), Played()
    results = first.fill(Kept(path, "a"))
    assert again.fill(Kept(path, "a")) == results
    assert (first.starts, again.starts, again.keys) == (1, 0, [])
    other.fill(Kept(path, "b"))
    assert other.keys == KEYS


def test_a_run_after_one_that_ended_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    whole, unended = Kept(path, "a"), Kept(path, "b")
    Played().fill(whole)
    Played().fill(whole.part("peers", {"rounds": 3}))
    Played().fill(unended)
    whole.end()
    again = Kept(path, "a")
    assert again.missing(KEYS) == KEYS
    assert again.part("peers", {"rounds": 3}).missing(KEYS) == KEYS
    assert Kept(path, "b").missing(KEYS) == []
    # What it has measured itself is kept as before.
    again.add(KEYS[1], 1)
    assert Kept(path, "a").results == {KEYS[1]: 1}


def test_parts_are_kept_apart_and_depend_on_their_parameters(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    whole = Kept(path, "a")
    whole.part("peers", {"rounds": 3}).add((0,), "of peers")
    whole.part("kernel", {"rounds": 3}).add((0,), "of kernel")
    again = Kept(path, "a")
    assert again.results == {}
    assert again.part("peers", {"rounds": 3}).results == {(0,): "of peers"}
    assert again.part("kernel", {"rounds": 3}).results == {(0,): "of kernel"}
    assert again.part("kernel", {"rounds": 5}).results == {}
    assert Kept(path, "b").part("peers", {"rounds": 3}).results == {}


def test_what_says_nothing_is_played_again_a_bounded_number_of_times(tmp_path: Path) -> None:
    def kept() -> Kept:
        path = tmp_path / "results.jsonl"
        return Kept(path, "a", is_void=lambda result: result["key"][1] == 500)

    runs = [Played() for _ in range(ATTEMPTS + 2)]
    for run in runs:
        run.fill(kept())
    void = [key for key in KEYS if key[1] == 500]
    assert [run.keys for run in runs] == [KEYS, *[void] * (ATTEMPTS - 1), [], []]
    # In one run each is played once, whatever comes of it.
    assert runs[1].starts == 1 and runs[-1].starts == 0
    # Those of a run that ended do not count.
    kept().end()
    anew, again = Played(), Played()
    anew.fill(kept())
    again.fill(kept())
    assert (anew.keys, again.keys) == (KEYS, void)


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = Kept(None, "a")
    assert len(Played().fill(kept)) == len(KEYS)
    Played().fill(kept.part("peers", {}))
    kept.end()
    assert list(tmp_path.iterdir()) == []
    assert Kept(None, "a").results == {}


def test_a_digest_is_of_what_is_in_a_file(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"1")
    one = digest(program, {"rounds": 3})
    assert one == digest(program, {"rounds": 3})
    assert one != digest(program, {"rounds": 5})
    program.write_bytes(b"2")
    assert one != digest(program, {"rounds": 3})


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the clock, to an hour of a day."""

    def hour(n: int) -> None:
        monkeypatch.setattr("lab.kept._now", lambda: f"2026-11-28T{n:02}:00:00Z")

    return hour


def test_a_run_that_goes_on_says_how_much_it_has_taken_and_since_when(
    tmp_path: Path, at: Callable[[int], None]
) -> None:
    path = tmp_path / "results.jsonl"
    for hour, stops in ((8, 1), (10, 2)):
        at(hour)
        with pytest.raises(KeyboardInterrupt):
            Played(stops).fill(Kept(path, "a"))
    at(12)
    first = Kept(path, "a")
    Played().fill(first)
    told = "3 of 4 results are of an earlier start, the oldest of 2026-11-28T08:00:00Z"
    assert first.resumed() == {"resumed": told}
    # Only what this run asks for counts, with its parts.
    part = first.part("peers", {})
    part.add(("late",), 1)
    part.missing([("late",), ("other",)])
    again = Kept(path, "a")
    again.fill(KEYS[2:], Played().running, Played().play)
    again.part("peers", {}).missing([("late",), ("other",)])
    told = "3 of 4 results are of an earlier start, the oldest of 2026-11-28T10:00:00Z"
    assert again.resumed() == {"resumed": told}
    assert first.resumed() == {"resumed": told.replace("of 4", "of 6").replace("T10", "T08")}


def test_a_run_that_takes_nothing_says_nothing(tmp_path: Path, at: Callable[[int], None]) -> None:
    at(8)
    for path in (tmp_path / "results.jsonl", None):
        whole = Kept(path, "a")
        Played().fill(whole)
        Played().fill(whole.part("peers", {}))
        assert whole.resumed() == {}
        whole.end()
    anew = Kept(tmp_path / "results.jsonl", "a")
    Played().fill(anew)
    assert anew.resumed() == {}


def test_what_is_played_again_is_not_of_an_earlier_start(
    tmp_path: Path, at: Callable[[int], None]
) -> None:
    path = tmp_path / "results.jsonl"
    for hour in (8, 9):
        at(hour)
        kept = Kept(path, "a", is_void=lambda result: result["key"][1:] == [90, 0])
        Played().fill(kept)
    told = "3 of 4 results are of an earlier start, the oldest of 2026-11-28T08:00:00Z"
    assert kept.resumed() == {"resumed": told}


def test_a_time_is_utc_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Kept(path, "a").add(("one",), 1)
    time.strptime(json.loads(path.read_text())["at"], "%Y-%m-%dT%H:%M:%SZ")


def test_a_report_prints_that_it_was_resumed() -> None:
    report = Report("bonding", quick=False)
    assert "resumed" not in report.text()
    report.parameters["resumed"] = "1 of 2"
    assert "\n\nresumed: 1 of 2" in report.text()


@dataclass
class Row:
    """A result."""

    rate: int
    name: str

    @classmethod
    def of(cls, row: dict[str, object]) -> Row:
        return cls(**row)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "row", [{"rate": 1}, {"rate": 1, "name": "a", "more": 2}, {}, [1, "a"], None, "a", 5]
)
def test_a_result_whose_fields_do_not_fit_is_missing(
    tmp_path: Path, row: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    before = Kept(path, "a")
    before.add(("good",), asdict(Row(1, "a")))
    before.add(("bad",), row)
    kept = Kept(path, "a", Row.of)
    assert kept.results == {("good",): Row(1, "a")}
    assert kept.missing([("good",), ("bad",)]) == [("bad",)]
    assert f"lines of {path} left out: 1" in capsys.readouterr().err
    kept.add(("bad",), asdict(Row(2, "b")))
    assert Kept(path, "a", Row.of).results[("bad",)] == Row(2, "b")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"rate": 10', '"rate": 11'),
        ('"rate": 10', '"rate": "ten"'),
        ('"rate": 10, ', ""),
        ('"key": ["one"]', '"key": ["two"]'),
        ('"key": ["one"]', '"key": 1'),
        ('"at": "2', '"at": "1'),
        ('"at"', '"then"'),
        ('"result"', '"results"'),
        ('"name": "a"', '"name": "\udcff"'),
    ],
)
def test_a_line_that_was_changed_by_hand_is_left_out(
    tmp_path: Path, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    Kept(path, "a").add(("one",), asdict(Row(10, "a")))
    Kept(path, "a").add(("three",), asdict(Row(10, "a")))
    line, other = path.read_text().splitlines()
    assert old in line
    path.write_text(f"{line.replace(old, new)}\n{other}\n", errors="surrogateescape")
    assert Kept(path, "a", Row.of).results == {("three",): Row(10, "a")}
    assert f"lines of {path} left out: 1" in capsys.readouterr().err


def test_results_depend_on_the_lab_but_not_on_its_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (module.LAB / "experiments" / "bonding.py").is_file()
    monkeypatch.setattr("lab.kept.LAB", tmp_path)
    source = tmp_path / "experiments" / "one.py"
    for folder in ("experiments", "tests"):
        (tmp_path / folder).mkdir()
    source.write_text("TCP_S = 4\n")
    one = digest_with_lab("a")
    assert one == digest_with_lab("a") != digest_with_lab("b")
    (tmp_path / "tests" / "test_one.py").write_text("")
    (tmp_path / "experiments" / "one.pyc").write_text("")
    assert one == digest_with_lab("a")
    source.write_text("TCP_S = 5\n")
    assert one != digest_with_lab("a")
    source.write_text("TCP_S = 4\n")
    assert one == digest_with_lab("a")
    source.rename(tmp_path / "one.py")
    assert one != digest_with_lab("a")
