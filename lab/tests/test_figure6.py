"""The judge of figures 6 and 7 is judged: made-up cells whose claims are known, and the testbed's
shape."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from lab import figure6, wire
from lab.experiments import gatekeeper_fig6, gatekeeper_fig7
from lab.figure6 import (
    ALONE,
    AT_RATE,
    BY_GUARANTEE,
    GUARANTEES_PERCENT,
    LINK_BPS,
    MBIT,
    PEERS,
    Cell,
    guarantee_bps,
    neighbours,
    topology,
)
from lab.net import Failed, Lab
from lab.switches import Levada
from lab.workload import Blast, TcpFlow

SIX, SEVEN = gatekeeper_fig6.FIGURE, gatekeeper_fig7.FIGURE
Key = tuple[str, int | None]

#: How long the job takes, where all is as promised.
JOB_S: dict[Key, float] = {(ALONE, None): 14.0, ("bridge", None): 25.0}
#: What a pair of the neighbour gets, in Mbit/s.
PAIR_MBIT: dict[Key, float] = {("bridge", None): 20.0}
for _percent, _at_rate in zip(GUARANTEES_PERCENT, (40.0, 24.0, 18.0), strict=True):
    JOB_S[AT_RATE, _percent] = _at_rate
    for _peer in BY_GUARANTEE:
        JOB_S[_peer, _percent] = _at_rate
        PAIR_MBIT[_peer, _percent] = 0.3 * (100 - _percent)
    JOB_S["rate", _percent] = 0.9 * _at_rate
    PAIR_MBIT["rate", _percent] = 24.0


def cell(key: Key, job_s: float, pair_mbit: float, repetition: int = 0, **other: Any) -> Cell:  # noqa: ANN401
    """A valid cell."""
    peer, guarantee = key
    pairs = [] if peer in (ALONE, AT_RATE) else [pair_mbit * MBIT] * 13
    made = Cell(
        labels={"peer": peer, "guarantee": guarantee, "repetition": repetition, "attempt": 0},
        job={"floor": {"job_s": 12.0}},
        job_s=job_s,
        finished=True,
        pairs_bps=pairs,
        window_s=job_s,
        idle=0.3,
        cores={},
        strangers=0.0,
        worker=None,
        bound=None,
        disturbed=None,
    )
    return dataclasses.replace(made, **other)


def all_cells(
    instead: dict[Key, float] | None = None, pairs: dict[Key, float] | None = None
) -> list[Cell]:
    """Cells as promised but for those times and rates."""
    jobs, rates = {**JOB_S, **(instead or {})}, {**PAIR_MBIT, **(pairs or {})}
    return [cell(key, took, rates.get(key, 0.0)) for key, took in jobs.items()]


def broken(cells: list[Cell], figure: figure6.Figure = SEVEN) -> list[str]:
    return [c.id for c in figure6.claims(figure, cells, GUARANTEES_PERCENT) if not c.holds]


def test_everything_as_promised_holds() -> None:
    assert broken(all_cells(), SIX) == broken(all_cells(), SEVEN) == []


def test_a_job_slower_than_under_rigid_limits_is_found() -> None:
    slow = all_cells({("rate", 50): 24.5})
    assert broken(slow) == ["guarantee 50 %: the job over rigid limits"]


def test_a_job_slower_than_alone_at_its_rate_is_found() -> None:
    # Rigid limits are as slow here, which is no excuse.
    slow = all_cells({("rate", 75): 19.0, ("rigid", 75): 19.0})
    assert broken(slow) == ["guarantee 75 %: the job over itself alone at that rate"]
    assert broken(slow, SIX) == []


def test_a_neighbour_that_gets_less_than_under_rigid_limits_is_found() -> None:
    mean_ = all_cells(pairs={("rate", 25): 22.0})
    assert broken(mean_) == ["guarantee 25 %: its neighbour over rigid limits"]


def test_a_best_effort_that_harms_nobody_shows_that_nothing_is_tested() -> None:
    assert broken(all_cells({("bridge", None): 15.0})) == ["best effort makes the job longer"]


def test_a_job_that_was_given_up_counts_as_long_as_it_was_played() -> None:
    cells = [
        c if (c.labels["peer"], c.labels["guarantee"]) != ("rate", 75)
        else dataclasses.replace(c, job_s=72.0, finished=False)
        for c in all_cells()
    ]  # fmt: skip
    assert "guarantee 75 %: the job over rigid limits" in broken(cells)
    assert "> 72.0" in figure6.jobs_table(SEVEN, cells, GUARANTEES_PERCENT)


def given_up(*keys: Key) -> list[Cell]:
    """All cells, of which some were given up after the same time."""
    return [
        dataclasses.replace(c, job_s=72.0, finished=False)
        if (c.labels["peer"], c.labels["guarantee"]) in keys
        else c
        for c in all_cells()
    ]


def test_two_jobs_that_were_given_up_are_not_as_fast_as_each_other() -> None:
    both = given_up(("rate", 75), ("rigid", 75), (AT_RATE, 75))
    over = ["over rigid limits", "over itself alone at that rate"]
    assert broken(both) == [f"guarantee 75 %: the job {what}" for what in over]
    # Where only the other one was, it is no measure.
    found = figure6.claims(SEVEN, given_up(("rigid", 75), (AT_RATE, 75)), GUARANTEES_PERCENT)
    assert [c.value for c in found if not c.holds] == [None, None]
    assert broken(given_up(("bridge", None))) == []
    assert broken(given_up(("bridge", None), (ALONE, None))) == ["best effort makes the job longer"]


def test_a_cell_that_does_not_count_voids_its_claims() -> None:
    cells = [
        dataclasses.replace(c, valid=False) if c.labels["peer"] == "rate" else c
        for c in all_cells()
    ]
    found = figure6.claims(SEVEN, cells, GUARANTEES_PERCENT)
    assert [c.value is None for c in found] == [True] * (len(found) - 1) + [False]
    assert "no valid cell" in figure6.jobs_table(SEVEN, cells, GUARANTEES_PERCENT)
    assert "no valid cell" in figure6.pairs_table(cells, GUARANTEES_PERCENT)


def test_the_mean_of_the_repetitions_counts() -> None:
    cells = [*all_cells(), cell(("rate", 75), 25.0, 22.0, repetition=1)]
    assert "guarantee 75 %: the job over rigid limits" in broken(cells)
    more = [*cells, *(cell(("rate", 75), 10.0, 22.0, repetition=n) for n in (2, 3))]
    assert broken(more) == []
    # Two runs or more have an interval, which the table shows.
    assert "±" in figure6.jobs_table(SEVEN, more, GUARANTEES_PERCENT)


def test_plots_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    figure6._draw(SEVEN, all_cells(), GUARANTEES_PERCENT, tmp_path)
    few = [c for c in all_cells() if c.labels["peer"] not in ("rate", AT_RATE)]
    figure6._draw(SIX, few, (75,), tmp_path / "few")
    for folder in (tmp_path, tmp_path / "few"):
        assert {p.name for p in folder.glob("*.png")} == {"job.png", "neighbour.png"}


def test_the_job_is_made_or_a_trace_and_given_up_late_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(figure6.TRACE_VARIABLE, raising=False)
    made = figure6.work(figure6.FULL)
    assert len(made.job.hosts) == 26
    sent = sum(c.nbytes for c in made.job.copies) / 26
    # 2.5 GB at 1 Gbit/s would take as long, were it not for the job's own factor.
    assert sent == pytest.approx(2.5e9 * 0.03 * figure6.JOB_FACTOR, rel=0.02)
    slowest = 8 * sent / guarantee_bps(25)
    assert 2.5 * slowest < made.bound_s < 5 * slowest
    assert figure6.work(figure6.QUICK).bound_s < made.bound_s / 2
    monkeypatch.setenv(figure6.TRACE_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(Failed, match=r"SHUFFLE_TRACE: .*none: No such file"):
        figure6.work(figure6.FULL)


def test_the_testbed_is_the_published_one() -> None:
    shape = topology(75)
    assert len(shape.hosts) == 26
    assert {len(shape.on(h)) for h in shape.hosts} == {2}
    assert {h.link_bps for h in shape.hosts} == {LINK_BPS}
    job, net = shape.tenants
    assert (job.name, net.name) == ("job", "net")
    assert job.guarantee_bps == pytest.approx(0.98 * 0.75 * LINK_BPS)
    assert (job.guarantee_bps or 0) + (net.guarantee_bps or 0) <= 0.98 * LINK_BPS
    assert [t.guarantee_bps for t in topology(0).tenants] == [None, None]
    assert {h.link_bps for h in topology(0, guarantee_bps(25)).hosts} == {7_350_000}


def test_pairs_send_from_the_first_half_to_the_second() -> None:
    for figure, kind in ((SIX, TcpFlow), (SEVEN, Blast)):
        flows = neighbours(figure)
        assert len(flows) == 13
        assert {type(f) for f in flows} == {kind}
        assert [(f.src, f.dst) for f in flows][::12] == [("net1", "net14"), ("net13", "net26")]
    blast = neighbours(SEVEN)[0]
    assert isinstance(blast, Blast)
    assert blast.segments == 1
    assert blast.per_s * wire.FULL_BYTES * 8 == pytest.approx(1.5 * LINK_BPS)


def test_only_the_cells_that_need_agents_ask_for_them(tmp_path: Path) -> None:
    lab = Lab()  # not entered: nothing is made
    controllers = {}
    for peer in BY_GUARANTEE:
        switch = PEERS[peer](lab, topology(50))
        controllers[peer] = switch.controller if isinstance(switch, Levada) else None
    assert {p for p, c in controllers.items() if c is not None} == set(figure6.NEED_AGENTS)
    assert controllers["rate"] == "rate"
