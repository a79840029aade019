"""What the experiment makes of a job, and how it judges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab import vcc_live
from lab.experiments import vcc_fig1
from lab.experiments.vcc_fig1 import Interval, Plan, floor_s, lines, placed, shortened
from lab.net import Failed
from lab.shuffle.generate import generate
from lab.shuffle.job import WIRE_OVER_PAYLOAD, Copy


def test_hosts_are_dealt_to_both_sides() -> None:
    job = generate(1, vcc_fig1.SHAPE)
    machines = list(placed(job).values())
    assert machines == [0, 8, 1, 9, 2, 10]


def test_a_job_has_a_line_for_each_copy_and_the_first_is_ready_at_once() -> None:
    job = generate(1, vcc_fig1.SHAPE)
    parallel, *copies = lines(job).splitlines()
    assert parallel == "parallel 5"
    assert len(copies) == len(job.copies) == 36
    assert min(int(copy.split()[4]) for copy in copies) == 0


def test_the_floor_is_that_of_the_busiest_link() -> None:
    job = generate(1, vcc_fig1.SHAPE)
    mapper, reducer = job.maps[0], job.reduces[1]
    one = replace(job, copies=(Copy(mapper.name, reducer.name, 125_000_000),))
    assert floor_s(one) == pytest.approx(WIRE_OVER_PAYLOAD)
    # Two copies from one side to the other meet between the switches.
    other = Copy(job.maps[2].name, job.reduces[3].name, 125_000_000)
    both = replace(one, copies=(*one.copies, other))
    assert floor_s(both) == pytest.approx(2 * WIRE_OVER_PAYLOAD)


def test_a_trace_that_is_too_long_keeps_the_size_of_its_copies() -> None:
    job = generate(1, replace(vcc_fig1.SHAPE, host_bytes=1_000_000_000))
    less = shortened(job)
    assert 0 < len(less.reduces) < len(job.reduces)
    assert set(less.copies) < set(job.copies)
    assert sum(copy.nbytes for copy in less.copies) <= vcc_fig1.MOST_BYTES + 1_100_000_000


@pytest.mark.parametrize("copies", [(), (Copy("m", "r", 1000),)])
def test_a_trace_that_copies_nothing_between_machines_is_named(
    copies: tuple[Copy, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = generate(1, vcc_fig1.SHAPE)
    mapper = job.maps[0]
    reducer = next(r for r in job.reduces if r.host == mapper.host)
    here = tuple(replace(c, mapper=mapper.name, reducer=reducer.name) for c in copies)
    path = tmp_path / "job_1_trace.json"
    path.write_text("")
    monkeypatch.setenv(vcc_fig1.TRACES_VARIABLE, str(tmp_path))
    monkeypatch.setattr("lab.shuffle.mremu.read", lambda _: replace(job, copies=here))
    with pytest.raises(Failed, match=r"job_1_trace\.json: nothing is copied from one machine"):
        vcc_fig1._traces()


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([1.0, 1.01, 1.02], "holds"), ([1.2, 1.21, 1.22], "fails"), ([0.9, 1.1, 1.3], "undecided")],
)
def test_a_claim_holds_fails_or_is_undecided(values: list[float], verdict: str) -> None:
    assert Interval.of_ratios(values).verdict(0.0, 1.06) == verdict


def test_live_cells_are_judged_against_the_natives() -> None:
    def cells(native: float | None, ours: float | None, again: int) -> list[vcc_live.Cell]:
        one = vcc_live.Cell("native", native, 10, 0, 4e7)
        return [one, replace(one, guests="echo", job_s=ours, again=again)]

    for given, holds in (
        (cells(3.0, 2.5, 0), [True, True]),
        (cells(3.0, 3.3, 10), [False, True]),
        (cells(3.0, 2.5, 11), [True, False]),
        (cells(3.0, None, 0), [False, True]),
    ):
        assert [claim.holds for claim in vcc_live.claims(given)] == holds


def test_half_of_a_live_jobs_hosts_are_at_each_side() -> None:
    shape = vcc_live.topology(generate(1, vcc_live.SHAPE))
    sides = [e.host for e in shape.endpoints if e.tenant == "job"]
    assert sides.count("h1") == sides.count("h2") == len(sides) / 2


def test_cells_are_taken_from_an_earlier_start_of_the_same_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, simulator = tmp_path / "levada", tmp_path / "levada-sim"
    program.write_bytes(b"")
    simulator.write_text("#!/bin/sh\ncat >/dev/null\necho '{\"job_ns\": 1}'\n")
    simulator.chmod(0o755)
    monkeypatch.setenv("LEVADA", str(program))
    plan = Plan(("native", "echo"), ("red1",), (2,), 2)
    jobs = [generate(1, vcc_fig1.SHAPE)]
    cells, resumed = vcc_fig1._play(plan, jobs, tmp_path / "out")
    assert (len(cells), resumed) == (4, {})
    same, resumed = vcc_fig1._play(plan, jobs, tmp_path / "out")
    assert same == cells
    assert resumed["resumed"].startswith("4 of 4 results are of an earlier start")
    monkeypatch.setattr("lab.kept.LAB", tmp_path)
    assert vcc_fig1._play(plan, jobs, tmp_path / "out") == (cells, {})
