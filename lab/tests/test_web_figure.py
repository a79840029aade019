"""A published figure whose run was interrupted goes on where it was."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lab import web_figure
from lab.balance import Calls
from lab.experiments import lb_fig3
from lab.kept import Kept
from lab.net import Lab
from lab.report import Report
from lab.web_figure import BESIDE, OPENFLOW, Cell, Plan, Play, Services

FIGURE = replace(lb_fig3.FIGURE, full=Plan(runs=2, connections=10, rates=(90, 500)))
#: In the order in which they are played.
KEYS = [
    (way, rate, number)
    for ways in (BESIDE, *((way,) for way in OPENFLOW))
    for rate in FIGURE.full.rates
    for number in range(FIGURE.full.runs)
    for way in ways
]


class Machine:
    """Stands for the machine: what is played on it, and what is started for that. It is interrupted
    before the cell with the number `stops`, and other programs disturb the ways `disturbed`."""

    def __init__(self, stops: int | None = None, disturbed: tuple[str, ...] = ()) -> None:
        self.keys: list[tuple[str, int, int]] = []
        self.started: list[str] = []
        self._stops, self._disturbed = stops, disturbed

    def _play(self, way: str, rate: int, number: int) -> Cell:
        if len(self.keys) == self._stops:
            raise KeyboardInterrupt
        self.keys.append((way, rate, number))
        calls = Calls(10, 9, 85.5, 85.5, 90.0, {"other": 1}, 0, 1.5, [(85, 8), (90, 1)])
        labels = {"way": way, "rate": rate, "run": number}
        why = "strangers" if way in self._disturbed else None
        return Cell(labels, calls, [5, 5], 0.5, 0.0, None, why)

    @contextmanager
    def over_levada(self, *_: object) -> Iterator[Play]:
        """In the place of web_figure's."""
        self.started.append("levada")
        yield self._play

    @contextmanager
    def over_ovs(self, _lab: object, _figure: object, _plan: object, way: str) -> Iterator[Play]:
        """In the place of web_figure's."""
        self.started.append(way)
        yield self._play


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the report would be, of a machine without programs."""
    program = tmp_path / "levada"
    program.write_bytes(b"1")
    monkeypatch.setenv("LEVADA", str(program))
    monkeypatch.setattr(web_figure, "missing_tools", lambda tools: [])
    monkeypatch.setattr(web_figure, "write_files", lambda root, size: None)
    # Drawing takes seconds, and has a test of its own.
    monkeypatch.setattr(web_figure, "draw", lambda *_: None)
    monkeypatch.setattr("lab.machine.describe", lambda tools: {"cores": 2})
    return tmp_path / "out"


def play(out: Path, machine: Machine, quick: bool = False, only: str | None = None) -> Report:
    """The whole figure on that machine, or a part of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web_figure, "_over_levada", machine.over_levada)
        patch.setattr(web_figure, "_over_ovs", machine.over_ovs)
        report = web_figure.run(FIGURE, Lab(), quick, out, only)
        report.write(out)
        return report


def rows(report: Report) -> list[tuple[Any, ...]]:
    """Which cells a report has, in its order."""
    return [tuple(cell["labels"].values()) for cell in report.cells]


@pytest.mark.parametrize("stops", [0, 1, 36, 37, 40, 47])
def test_what_is_missing_is_played_and_nothing_else(out: Path, stops: int) -> None:
    first, rest = Machine(stops), Machine()
    with pytest.raises(KeyboardInterrupt):
        play(out, first)
    report = play(out, rest)
    assert (first.keys, rest.keys) == (KEYS[:stops], KEYS[stops:])
    assert rows(report) == KEYS
    resumed = report.parameters.pop("resumed", "")
    assert resumed.startswith(f"{stops} of {len(KEYS)} result" if stops else "")
    assert bool(resumed) == bool(stops)
    assert report == play(out / "at once", Machine())
    # 36 cells are played over Levada, four over each of the others.
    assert rest.started == ["levada", *OPENFLOW][0 if stops < 36 else (stops - 36) // 4 + 1 :]


@pytest.mark.parametrize("part", web_figure.PARTS)
def test_a_part_plays_and_judges_its_own_ways_alone(out: Path, part: str) -> None:
    machine, ways = Machine(), web_figure.PARTS[part]
    report = play(out, machine, only=part)
    assert machine.keys == [key for key in KEYS if key[0] in ways]
    assert {claim.id.partition(":")[0] for claim in report.claims} <= set(ways)
    whole = play(out / "whole", Machine())
    assert [c for c in whole.claims if c.id.partition(":")[0] in ways] == report.claims
    first = [line.split("  ")[0] for line in report.tables[0].splitlines()]
    assert set(ways) <= set(first) and not set(first) & ({*BESIDE, *OPENFLOW} - {*ways})


def test_another_program_plays_all(out: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(out, Machine(5))
    (out.parent / "levada").write_bytes(b"2")
    again = Machine()
    play(out, again)
    assert again.keys == KEYS


def test_another_lab_plays_all(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(out, Machine(5))
    monkeypatch.setattr("lab.kept.LAB", out)
    again = Machine()
    assert "resumed" not in play(out, again).parameters
    assert again.keys == KEYS


def test_a_cell_of_other_fields_is_played_again(out: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(out, Machine(5))
    file = out / "cells.jsonl"
    (made_of,) = {json.loads(line)["made_of"] for line in file.read_text().splitlines()}
    Kept(file, made_of).add(KEYS[2], {"labels": {}})
    Kept(file, made_of).add(KEYS[5], {"labels": {}, "calls": {"times": []}, "more": 1})
    rest = Machine()
    report = play(out, rest)
    # Of the third there is a whole line, too.
    assert rest.keys == KEYS[5:]
    assert rows(report) == KEYS


def test_a_run_that_ended_is_not_shown_again(out: Path) -> None:
    play(out, Machine())
    again = Machine()
    play(out, again)
    assert again.keys == KEYS


def test_a_run_has_not_ended_until_its_result_is_on_disk(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr("os.fsync", no_room)
        with pytest.raises(OSError, match="No space"):
            play(out, Machine())
    rest = Machine()
    assert rows(play(out, rest)) == KEYS
    assert rest.keys == []


def no_room(_: int) -> None:
    """In the place of fsync(2)."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_quick_run_is_measured_anew_and_leaves_a_full_one_alone(out: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(out, Machine(5))
    kept = (out / "cells.jsonl").read_text()
    for _ in range(2):
        quick = Machine(7)
        with pytest.raises(KeyboardInterrupt):
            play(out, quick, quick=True)
        assert len(quick.keys) == 7
    play(out, Machine(), quick=True)
    assert (out / "cells.jsonl").read_text() == kept
    rest = Machine()
    play(out, rest)
    assert rest.keys == KEYS[5:]


def test_cells_that_do_not_count_are_played_again_when_the_run_goes_on(out: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(out, Machine(20, disturbed=("p2c",)))
    before = [key for key in KEYS[:20] if key[0] == "p2c"]
    assert len(before) == 2
    calm = Machine()
    report = play(out, calm)
    assert sorted(calm.keys) == sorted([*before, *KEYS[20:]])
    assert all(cell["valid"] for cell in report.cells)


def test_progress_says_how_many_cells_of_those_that_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(runs=1, connections=1000, rates=(90, 500))
    services: Services = {("p2c", "random"): Machine().over_levada}
    kept = Kept(tmp_path / "cells.jsonl", "a")
    kept.add(("p2c", 90, 0), asdict(Machine()._play("p2c", 90, 0)))
    web_figure.measure(FIGURE, plan, services, kept)
    said = [line.partition(":")[0].strip() for line in capsys.readouterr().err.splitlines()]
    # 11.8 connections a second fit; of the rate 90, 10.6 come.
    assert said == ["1 of 3, 3 min left", "2 of 3, 1 min left", "3 of 3, 0 min left"]
