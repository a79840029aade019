"""What the experiment makes of a job, and how it judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab import vcc_live
from lab.experiments import vcc_fig1
from lab.experiments.vcc_fig1 import (
    Interval,
    Key,
    Plan,
    floor_s,
    lines,
    most_at_once,
    placed,
    shortened,
)
from lab.net import Failed, Lab
from lab.shuffle.generate import Shape, generate
from lab.shuffle.job import WIRE_OVER_PAYLOAD, Copy, Job
from lab.stats import mean


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


def at_once(job: Job) -> int:
    """Copies at once at most, as the simulator's replay begins them, where each has 100 Mbit/s."""
    where, ends = job.host_of(), job.map_ends()
    waiting = {r.name: [c for c in job.copies if c.reducer == r.name] for r in job.reduces}
    active: list[tuple[float, Copy]] = []
    now, most = min(ends.values()), 0
    while active or any(waiting.values()):
        active = [(end, copy) for end, copy in active if end > now]
        for reducer, copies in waiting.items():
            for copy in list(copies):
                mine = [c for _, c in active if c.reducer == reducer]
                source = where[copy.mapper]
                is_busy = any(where[c.mapper] == source for c in mine)
                if is_busy or len(mine) >= job.parallel_copies or ends[copy.mapper] > now:
                    continue
                copies.remove(copy)
                if source != where[reducer]:
                    active.append((now + copy.nbytes / 12.5e6, copy))
        most = max(most, len(active))
        later = [end for end, _ in active] + [end for end in ends.values() if end > now]
        now = min(later, default=now)
    return most


@pytest.mark.parametrize(
    "shape", [Shape(8, 4, 2, host_bytes=10**9), Shape(6, 4, 1, 3, host_bytes=10**9), Shape(4, 9)]
)
def test_a_trace_that_is_too_long_keeps_its_concurrency_and_the_size_of_its_copies(
    shape: Shape,
) -> None:
    job = generate(1, shape)
    less = shortened(job)
    assert [r.name for r in less.reduces] == [r.name for r in job.reduces]
    assert less.hosts == job.hosts
    assert set(less.copies) < set(job.copies)
    assert sum(c.nbytes for c in less.copies) <= vcc_fig1.MOST_BYTES
    before, after = at_once(job), at_once(less)
    assert before == most_at_once(job)
    assert 0.95 * before <= after <= before
    sizes = [mean([c.nbytes for c in one.copies]).value for one in (job, less)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)
    # Each reducer has as many waves.
    by_reducer = Counter(c.reducer for c in less.copies)
    assert len(by_reducer) == len(job.reduces)
    assert max(by_reducer.values()) - min(by_reducer.values()) < job.parallel_copies


def test_a_trace_of_which_one_wave_is_too_long_keeps_that_wave() -> None:
    job = generate(1, Shape(hosts=6, maps_per_host=3, host_bytes=10**10))
    less = shortened(job)
    assert sum(c.nbytes for c in less.copies) > vcc_fig1.MOST_BYTES
    assert len(less.copies) == len(job.reduces) * job.parallel_copies


def test_of_a_folder_three_traces_are_played_and_of_a_file_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (8, 3, 6, 4, 5):
        (tmp_path / f"job_{number}_trace.json").write_text("")
    monkeypatch.setattr(
        "lab.shuffle.mremu.read",
        lambda path: replace(generate(1, Shape(int(path.name[4]))), name=path.name),
    )
    monkeypatch.setenv(vcc_fig1.TRACES_VARIABLE, str(tmp_path))
    names = [job.name for job in vcc_fig1._traces()]
    assert names == [f"job_{number}_trace.json" for number in (3, 5, 8)]
    monkeypatch.setenv(vcc_fig1.TRACES_VARIABLE, str(tmp_path / "job_6_trace.json"))
    assert [job.name for job in vcc_fig1._traces()] == ["job_6_trace.json"]


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
    played = [(Plan(("native", "echo"), ("red1",), (2,), 2), generate(1, vcc_fig1.SHAPE))]
    cells, resumed = vcc_fig1._play(played, tmp_path / "out")
    assert (len(cells), resumed) == (4, {})
    same, resumed = vcc_fig1._play(played, tmp_path / "out")
    assert same == cells
    assert resumed["resumed"].startswith("4 of 4 results are of an earlier start")
    monkeypatch.setattr("lab.kept.LAB", tmp_path)
    assert vcc_fig1._play(played, tmp_path / "out") == (cells, {})


def test_the_part_that_has_what_was_published_decides_each_direction_with_ten_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Virtualised, the job is faster than legacy under RED1, slower under RED2 with p = 0.02, and
    with p = 1 faster or slower by the seed."""

    def job_ns(queue: str, guests: str, pairs: int, seed: int) -> int:
        spread = 1 + seed / 1000
        swing = 0.5 if seed % 2 else 2.0
        ratio = {"red1": 0.5, "red2": 1.5}.get(queue, swing) if guests == "published" else 1.0
        return round(1e9 * pairs * ratio * spread)

    def play(
        played: Sequence[tuple[Plan, Job]], out: Path
    ) -> tuple[dict[Key, Any], dict[str, str]]:
        ((plan, job),) = played
        assert (plan.guests, plan.pairs) == (("native", "legacy", "published"), (2, 4, 8))
        assert plan.queues == ("red1", "red2", "red3", "auto")
        return {
            (job.name, queue, guests, pairs, seed): {
                "job_ns": job_ns(queue, guests, pairs, seed),
                "background_bytes": 1,
                "timeouts": 0,
                "background_timeouts": 0,
                "job_lost": [0, pairs, 0, 3 if queue == "red1" else 1],
                "job_sent": [1, 1, 1, 1],
            }
            for queue in plan.queues
            for guests in plan.guests
            for pairs in plan.pairs
            for seed in range(1, 11)
        }, {}

    monkeypatch.setattr(vcc_fig1, "_play", play)
    monkeypatch.setattr("lab.machine.describe", lambda tools: {})
    report = vcc_fig1.run(Lab(), False, tmp_path, "published")
    claims = {claim.id.partition(": ")[2]: claim for claim in report.claims}
    for direction, is_decided, found in (
        ("published, 8 pairs, red1: slower than legacy", True, "denied"),
        ("published, 8 pairs, red2: slower than legacy", True, "reproduced"),
        ("published, 8 pairs, red3: slower than legacy", False, "undecided"),
        ("legacy, red1: loss grows from 2 to 8 pairs", True, "reproduced"),
        ("legacy, 4 pairs: red2 loses more than red1", True, "denied"),
        ("legacy, 4 pairs: red3 loses more than red1", True, "denied"),
        ("legacy, red1: so does the time, 2 to 8 pairs", True, "reproduced"),
    ):
        claim = claims[direction]
        assert claim.holds == is_decided, direction
        assert claim.unit.endswith(f": {found})"), direction
    # As fast as the other is no direction.
    assert not claims["natives, 8 pairs: red2 slower than red1"].holds
    assert not report.holds()


def test_a_full_run_plays_traces_with_fewer_seeds_and_the_part_plays_them_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job_4_trace.json").write_text("")
    monkeypatch.setattr("lab.shuffle.mremu.read", lambda _: generate(2, Shape(4)))
    monkeypatch.setenv(vcc_fig1.TRACES_VARIABLE, str(tmp_path))
    seen: list[tuple[str, int]] = []

    def play(played: Sequence[tuple[Plan, Job]], out: Path) -> None:
        seen.extend((job.name, plan.seeds) for plan, job in played)
        raise Failed("enough")

    monkeypatch.setattr(vcc_fig1, "_play", play)
    for part, expected in (
        (None, [("generated-1", 10), ("generated-2", 5)]),
        ("trace", [("generated-2", 5)]),
        ("echo", [("generated-1", 10)]),
    ):
        seen.clear()
        with pytest.raises(Failed, match="enough"):
            vcc_fig1.run(Lab(), False, tmp_path, part)
        assert seen == expected
