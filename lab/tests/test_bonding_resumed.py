"""A run of all of bonding that was interrupted goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

import pytest

from lab.experiments import (
    bonding,
    bonding_faults,
    bonding_kernel,
    bonding_links,
    bonding_modes,
    bonding_netpipe,
    bonding_peers,
)
from lab.experiments.bonding import Connection, Curve, Pulled, Seen, Setup
from lab.experiments.bonding_faults import Fault
from lab.experiments.bonding_kernel import Disorder
from lab.experiments.bonding_links import Part, Tcp, Udp
from lab.experiments.bonding_peers import Found, Way
from lab.guest import Image
from lab.kept import Kept, Key
from lab.machine import CpuUse
from lab.net import Failed, Lab
from lab.netpipe import Point
from lab.programs import Missing
from lab.report import Report
from lab.switches import Switch
from lab.switches.levada_bond import LevadaBond

#: What is measured at a time, of a full run: setups, rounds of five parts, faults, curves of two
#: parts, rounds.
COUNTS = [3, 9, 9, 15, 9, 9, 60, 12, 45, 3, 3]
ALL = sum(COUNTS)
POINTS = [Point(size, 9.5e7, 8 * size / 9.5e7) for size in (1, 1 << 20, 4 << 20)]


class Machine:
    """Stands for the machine, and knows what was measured on it. It is interrupted before what has
    the number `stops`."""

    def __init__(self, stops: int | None = None) -> None:
        self.measured: list[tuple[Any, ...]] = []
        self.switches = 0
        self._stops = stops

    def _measures(self, *what: object) -> None:
        if len(self.measured) == self._stops:
            raise KeyboardInterrupt
        self.measured.append(what)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A switch."""
        self.switches += 1
        yield

    def setup(self, _lab: Lab, setup: Setup, times: int, _out: Path) -> Seen:
        """Of `bonding`."""
        self._measures("two", *setup)
        tcp = Connection(setup, True, 9e7, 9000, 1, 30, held=30, late=0, lost=0)
        pulled = Pulled(40.0, 0, 6000, 0, 2, numbered=2, late=0) if setup[0] > 1 else None
        return Seen([Curve(setup, POINTS)] * times, 9.6e7, [tcp, replace(tcp, again=9)], pulled)

    def round(self, _lab: Lab, part: Part, _quick: bool, turn: int) -> dict[str, list[Any]]:
        """Of `bonding_links`."""
        self._measures(part.name, turn)
        tcp = [
            Tcp(links, turn, n, 0.95 * sum(links.rates), 9000, 9, 30, 0, 0)
            for links in part.links
            for n in part.connections
        ]
        udp = [Udp(links, 9000, 5, 0, 0, 0) for links in part.links if part.udp and turn == 0]
        return {"tcp": [asdict(one) for one in tcp], "udp": [asdict(one) for one in udp]}

    def fault(self, switch: LevadaBond, kind: str, turn: int) -> Fault:
        """Of `bonding_faults`."""
        self._measures("faults", switch.mode, kind, turn)
        return Fault(switch.mode, kind, turn, 1000, 0, 0, 1.5, 0)

    def points(self, switch: LevadaBond, kind: str, _out: Path, _sizes: object) -> list[Point]:
        """Of `bonding_netpipe`."""
        self._measures("netpipe", switch.links, switch.options["order"], kind)
        return POINTS

    def mode(self, _switch: LevadaBond, _out: Path, _: None, key: Key) -> list[tuple[Any, ...]]:
        """Of `bonding_modes`."""
        self._measures("modes", *key)
        return [astuple(point) for point in POINTS]

    def found(self, _lab: Lab, way: Way, turn: int, _out: Path) -> Found:
        """Of `bonding_peers`."""
        if way == bonding_peers.WAYS[0]:
            self._measures("peers", turn)
        return Found(way, turn, 9.5e7 * way[1], 1e-4)

    def seen(self, _lab: Lab, way: Way, turn: int, *_: object) -> dict[str, dict[str, Any]]:
        """Of `bonding_kernel`."""
        if way == bonding_kernel.WAYS[0]:
            self._measures("kernel", turn)
        disorder = Disorder(way, 1000, 50, 10, 0)
        return {
            "found": asdict(Found(way, turn, 1.9e7 * way[1], 1e-4)),
            "disorder": asdict(disorder),
        }


PlayAll = Callable[..., Report]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayAll:
    """Plays bonding on a machine, with its report in `tmp_path`/NAME."""
    program = tmp_path / "levada"
    program.write_bytes(b"1")
    monkeypatch.setenv("LEVADA", str(program))
    monkeypatch.setattr(bonding, "missing_tools", lambda tools: [])
    monkeypatch.setattr("lab.container.check", lambda: None)
    image = Image(Path("kernel"), Path("initrd"), "6.1")
    monkeypatch.setattr("lab.guest.image", lambda lab, **more: image)
    monkeypatch.setattr("lab.machine.describe", lambda tools: {"cores": 2})
    monkeypatch.setattr("lab.watched.cpu_use", lambda *_: CpuUse(0.5, {}, strangers=0.0))
    # Drawing takes seconds.
    for drawn in (bonding_modes, bonding_netpipe):
        monkeypatch.setattr(drawn, "_draw", lambda curves, out: None)

    def all_of_it(machine: Machine, out: str = "out", only: str | None = None) -> Report:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Switch, "running", lambda switch: machine.running())
            patch.setattr(bonding, "_seen", machine.setup)
            patch.setattr(bonding_links, "_round", machine.round)
            patch.setattr(bonding_faults, "_fault", machine.fault)
            patch.setattr(bonding_netpipe, "_points", machine.points)
            patch.setattr(bonding_modes, "_points", machine.mode)
            patch.setattr(bonding_peers, "_found", machine.found)
            patch.setattr(bonding_kernel, "_seen", machine.seen)
            report = bonding.run(Lab(), False, tmp_path / out, only)
            report.write(tmp_path / out)
            return report

    return all_of_it


def test_each_part_goes_on_where_it_was(play: PlayAll) -> None:
    whole = Machine()
    report = play(whole, "at once")
    assert len(whole.measured) == ALL and report.claims
    assert "resumed" not in report.parameters
    # In the midst of each part, and where each begins.
    begins = [sum(COUNTS[:n]) for n in range(len(COUNTS))]
    stops = sorted({*begins, *(begin + 2 for begin in begins)})
    measured: list[tuple[Any, ...]] = []
    for before, stop in zip([0, *stops], stops, strict=False):
        machine = Machine(stop - before)
        with pytest.raises(KeyboardInterrupt):
            play(machine)
        measured += machine.measured
    rest = Machine()
    resumed = play(rest)
    told = resumed.parameters.pop("resumed")
    assert told.startswith(f"{stops[-1]} of {ALL} results are of an earlier start, the oldest of 2")
    assert resumed == report
    assert measured + rest.measured == whole.measured
    assert len(rest.measured) == ALL - stops[-1]
    # Only rounds of machines are left, which start their own.
    own = len(bonding_faults.PLAYED) + len(bonding_modes.MODES) + 1 + 3
    assert (whole.switches, rest.switches) == (own, 0)


def test_what_others_disturb_is_shown_and_not_judged_and_played_again(
    play: PlayAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as busy:
        busy.setattr("lab.watched.cpu_use", lambda *_: CpuUse(0.5, {}, strangers=1.4))
        report = play(Machine(), "busy")
        with pytest.raises(KeyboardInterrupt):
            play(Machine(COUNTS[0] + 5))
    why = "other programs used 1.40 cores > 0.25"
    assert {(cell["valid"], cell["disturbed"]) for cell in report.cells} == {(False, why)}
    assert len(report.claims) > 50
    assert not any(claim.holds for claim in report.claims)
    calm = Machine()
    report = play(calm)
    assert len(calm.measured) == ALL
    assert all(cell["valid"] for cell in report.cells)


def test_a_run_that_ended_is_not_shown_again(play: PlayAll) -> None:
    play(Machine())
    again = Machine()
    play(again)
    assert len(again.measured) == ALL


def test_a_part_alone_is_a_run_of_its_own(play: PlayAll) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(Machine(COUNTS[0] + 5))
    part = Machine()
    play(part, only="links")
    assert len(part.measured) == COUNTS[1]
    rest = Machine()
    play(rest)
    assert len(rest.measured) == ALL - COUNTS[0] - 5


def test_another_program_measures_all(play: PlayAll, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(Machine(20))
    (tmp_path / "levada").write_bytes(b"2")
    again = Machine()
    play(again)
    assert len(again.measured) == ALL


def test_a_program_that_is_rebuilt_meanwhile_ends_the_run(play: PlayAll, tmp_path: Path) -> None:
    class Rebuilt(Machine):
        def _measures(self, *what: object) -> None:
            super()._measures(*what)
            if len(self.measured) == 20:
                (tmp_path / "levada").write_bytes(b"2")

    machine = Rebuilt()
    with pytest.raises(Failed, match="levada was rebuilt meanwhile"):
        play(machine)
    assert len(machine.measured) == 20
    # What was measured over the build is not kept.
    assert len((tmp_path / "out" / "cells.jsonl").read_text().splitlines()) == 19
    assert not (tmp_path / "out" / "result.json").exists()


def test_results_of_other_fields_are_measured_again(play: PlayAll, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(Machine(ALL - 1))
    file = tmp_path / "out" / "cells.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()
    for line in lines:
        other = {"found": [{"other": 1}], "disturbed": None}
        Kept(file, line["made_of"]).add(tuple(line["key"]), other)
    again = Machine()
    report = play(again)
    assert len(again.measured) == ALL
    assert "resumed" not in report.parameters


def test_another_lab_measures_all(
    play: PlayAll, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(Machine(20))
    monkeypatch.setattr("lab.kept.LAB", tmp_path)
    again = Machine()
    play(again)
    assert len(again.measured) == ALL


def test_a_tool_of_any_part_is_missed_before_the_first_is_played(
    play: PlayAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        bonding, "missing_tools", lambda tools: [t for t in tools if t == "mptcpize"]
    )
    machine = Machine()
    with pytest.raises(Missing, match="mptcpize"):
        play(machine)
    assert machine.measured == []
    play(machine, only="links")


def test_a_full_run_takes_two_hours_at_most() -> None:
    assert sum(bonding.MINUTES.values()) <= 115
    for part in bonding_links.PARTS.values():
        # Of a second is each set of links made and taken away.
        per_round = len(part.links) * (len(part.connections) * part.seconds + 1.2)
        assert per_round / 60 <= bonding.REPEATED[part.name][1]
    faults = bonding_faults
    assert faults.plan_s(faults.ROUNDS[1]) / 60 <= bonding.MINUTES["faults"]
    # A quick run of it. With what was measured it leaves some time for a machine that does more.
    assert faults.plan_s(faults.ROUNDS[0]) <= 170
    assert all(faults.seconds(kind) > faults.LEAD_S for kind in ("pulled", "silent", "flapping"))


def test_the_time_of_a_full_run_grows_with_each_parts_repetitions(play: PlayAll) -> None:
    report = play(Machine())
    for part, (times, minutes) in bonding.REPEATED.items():
        played = report.parameters[part]
        assert times == played.get("rounds", played.get("times"))
        assert bonding.MINUTES[part] == times * minutes
