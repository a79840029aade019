"""What httperf says is read, and the arithmetic of a shared link is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab import plot
from lab.balance import Calls, capacity_per_s, parse, shared_times_s
from lab.experiments import lb_fig2, lb_fig3, lb_fig4, lb_fig5
from lab.net import Failed
from lab.report import Claim
from lab.stats import mean, quantile
from lab.web_figure import (
    PLOTTED,
    WAYS,
    Cell,
    Figure,
    claims,
    cumulative,
    draw,
    most_times,
    shown,
)

SAID = """\
httperf --timeout=10 --client=0/1 --server=10.1.0.100 --port=80 --uri=/object --rate=5 ...
Maximum connect burst length: 1

Connection lifetime histogram (time in ms):
             :
            24.5 40
             :
            30.5 35
            31.5 20
             :
            80.5 1

Total: connections 100 requests 97 replies 96 test-duration 2.345 s

Connection rate: 50.5 conn/s (19.8 ms/conn, <=8 concurrent connections)
Connection time [ms]: min 24.1 avg 31.2 max 80.9 median 29.5 stddev 4.4
Connection time [ms]: connect 0.3
Connection length [replies/conn]: 1.000

Request rate: 50.5 req/s (19.8 ms/req)
Request size [B]: 68.0

Reply rate [replies/s]: min 0.0 avg 0.0 max 0.0 stddev 0.0 (0 samples)
Reply time [ms]: response 1.1 transfer 29.9
Reply size [B]: header 240.0 content 1000000.0 footer 0.0 (total 1000240.0)
Reply status: 1xx=0 2xx=95 3xx=0 4xx=1 5xx=0

CPU time [s]: user 0.41 system 1.93 (user 17.6% system 82.2% total 99.8%)
Net I/O: 42713.0 KB/s (349.9*10^6 bps)

Errors: total 4 client-timo 1 socket-timo 0 connrefused 2 connreset 1
Errors: fd-unavail 0 addrunavail 0 ftab-full 0 other 0
"""


def test_httperf_is_read_and_failures_count_as_their_time_out() -> None:
    calls = parse(SAID)
    assert (calls.connections, calls.answered, calls.failed) == (100, 95, 5)
    assert (calls.mean_ms, calls.median_ms, calls.max_ms) == (31.2, 29.5, 80.9)
    assert calls.failures == {"client-timo": 1, "connrefused": 2, "connreset": 1}
    assert calls.replies_bad == 1
    assert calls.seconds == 2.345
    assert calls.times == [(24, 40), (30, 35), (31, 20), (80, 1)]
    # The one with a bad answer has a time as well, and counts once.
    assert calls.honest_times == [(24, 39), (30, 35), (31, 20), (80, 1), (10_000, 5)]
    assert quantile(calls.honest_times, 0.95) == 80
    assert quantile(calls.honest_times, 0.99) == 10_000
    assert calls.honest_mean_ms == pytest.approx((31.2 * 95 + 5 * 10_000) / 100)
    with pytest.raises(Failed, match="Reply status"):
        parse(SAID.replace("Reply status", "Replies"))


def test_a_connection_of_many_requests_fails_once() -> None:
    pages = SAID.replace("2xx=95 3xx=0 4xx=1", "2xx=1960 3xx=0 4xx=0")
    # Two of them had no answer at all: each of four errors may have cost as many as 20.
    assert parse(pages, 20).failed == 4
    # Beyond 80 answers, each one missing is another connection: nobody said that it ended.
    assert parse(pages.replace("2xx=1960", "2xx=1917"), 20).failed == 7
    assert parse(pages.replace("2xx=1960", "2xx=0"), 20).failed == 100


def test_the_arithmetic_of_the_published_link() -> None:
    assert capacity_per_s(1e9, 1_000_000) == pytest.approx(117.6, rel=0.01)
    # Pages: the head of each answer is carried as well.
    assert capacity_per_s(1e9, 10_240, 20) == pytest.approx(558, rel=0.01)
    # One after the other, below what the link carries.
    assert shared_times_s(100, 10, 20) == pytest.approx([1 / 20] * 100)
    # All at once: they share to the end.
    assert mean(shared_times_s(100, 1e9, 20)).value == pytest.approx(100 / 20, rel=0.01)
    # Two at once, and the second halfway through the first: 1.5 and 1.5 times the time alone.
    assert shared_times_s(2, 2, 1) == pytest.approx([1.5, 1.5])


@pytest.mark.parametrize(
    ("figure", "rate", "mean_ms"),
    [(lb_fig4.FIGURE, 500, 6519.787), (lb_fig2.FIGURE, 1000, 801.218)],
)
def test_the_simulator_has_the_same_mean_of_a_shared_link(
    figure: Figure, rate: int, mean_ms: float
) -> None:
    # The same cells through the simulated switch: sim/src/scenario/published.rs.
    assert mean(figure.inevitable_ms(figure.full, rate)).value == pytest.approx(mean_ms, rel=1e-6)


@pytest.mark.parametrize("figure", [lb_fig2.FIGURE, lb_fig3.FIGURE, lb_fig4.FIGURE, lb_fig5.FIGURE])
def test_a_figure_made_smaller_has_the_published_loads(figure: Figure) -> None:
    for plan in (figure.quick, figure.full):
        assert set(figure.quick.rates) <= set(figure.full.rates)
        for rate in plan.rates:
            here = figure.load(rate) * figure.capacity
            published = capacity_per_s(1e9, figure.size, figure.calls)
            assert here / figure.capacity == pytest.approx(rate / published)
        # A cell ends before httperf gives anything up, where the link alone decides.
        assert max(figure.inevitable_ms(plan, plan.rates[-1])) < 10_000
    quick, full = (
        sum(plan.runs * len(WAYS) * figure.cell_s(plan, rate) for rate in plan.rates)
        for plan in (figure.quick, figure.full)
    )
    assert quick < 130
    assert full < 4 * 3600


def cell(way: str, rate: int, calls: Calls, shares: list[int]) -> Cell:
    return Cell({"way": way, "rate": rate, "run": 0}, calls, shares, 0.5, 0.0, None, None)


def all_cells(figure: Figure) -> list[Cell]:
    return [
        cell(way, rate, parse(SAID), [95, 0] if way == "loadavg" else [48, 47])
        for rate in figure.quick.rates
        for way in WAYS
    ]


def test_a_refusal_below_the_knee_does_not_hold() -> None:
    made = {c.id: c for c in claims(lb_fig3.FIGURE, True, all_cells(lb_fig3.FIGURE), WAYS)}
    assert not made["p2c: failed below 95 % of the link"].holds
    # Five at each of the two rates that the link carries.
    assert made["p2c: failed below 95 % of the link"].value == 10
    assert made["p2c: mean at 90/s"].value == pytest.approx(1.0)
    assert made["loadavg: to one server in a burst"].value == 100
    assert made["round-robin: servers differ by"].holds


def test_a_mean_that_the_model_of_the_link_does_not_give_does_not_hold() -> None:
    cells, figure = all_cells(lb_fig3.FIGURE), lb_fig3.FIGURE
    model = mean(figure.inevitable_ms(figure.quick, 500)).value
    for one in cells:
        one.calls = replace(one.calls, answered=one.calls.connections, mean_ms=model * 1.06)
    made = {c.id: c for c in claims(figure, True, cells, WAYS)}
    claim = made["round-robin: mean at 500/s, off the model"]
    assert claim.value is not None
    assert 5 < claim.value < 7
    assert not claim.holds
    assert made["p2c: mean at 500/s"].holds


def test_only_undisturbed_cells_say_anything_of_times() -> None:
    cells = all_cells(lb_fig4.FIGURE)
    for one in cells:
        if one.labels["way"] == "p2c":
            one.disturbed = "strangers"
    made = {c.id: c for c in claims(lb_fig4.FIGURE, True, cells, WAYS)}
    assert made["p2c: mean at 500/s"].value is None
    assert not made["p2c: mean at 500/s"].holds
    assert made["least-inflight: mean at 500/s"].holds
    # Nothing is promised of refusals where the link does not carry what is asked.
    assert not [name for name in made if "failed" in name]


def test_runs_are_judged_by_the_upper_end_of_their_interval() -> None:
    def runs(ours_ms: list[float], disturbed: int = 0) -> Claim:
        cells = []
        for way, times in (("round-robin", [100.0] * len(ours_ms)), ("p2c", ours_ms)):
            for run, ms in enumerate(times):
                calls = replace(parse(SAID), mean_ms=ms, connections=9, answered=9, failures={})
                cells.append(cell(way, 90, calls, [48, 47]))
                cells[-1].labels["run"] = run
                if way == "p2c" and run < disturbed:
                    cells[-1].disturbed = "strangers"
        return most_times(cells, "p2c", "round-robin", 90)

    assert runs([100.0, 101.0, 100.0, 101.0]).holds
    # In the mean just as fast: but nobody knows.
    assert not runs([80.0, 120.0, 80.0, 120.0]).holds
    # Slower by 3 % each time, which a bound of 1.25 let pass.
    assert not runs([103.0] * 4).holds
    assert runs([100.0] * 4, disturbed=2).value is None
    # A quick run of each has no interval.
    assert runs([120.0]).holds and not runs([126.0]).holds


def test_a_distribution_ends_at_its_last_value() -> None:
    assert cumulative([(30, 1), (20, 3), (10_000, 0)]) == ([20.0, 30.0], [75.0, 100.0])


def test_the_table_and_the_plot_have_each_way_and_what_is_inevitable(tmp_path: Path) -> None:
    for figure, name in ((lb_fig3.FIGURE, "mean"), (lb_fig4.FIGURE, "times")):
        cells = all_cells(figure)
        lines = shown(figure, figure.quick, cells, WAYS).splitlines()
        assert len(lines) == 3 + len(figure.quick.rates) * (1 + len(WAYS))
        # Failures: those that were counted, and the kinds that httperf names.
        assert "5 (client-timo 1, connrefused 2, connreset 1)" in lines[-1]
        draw(figure, figure.quick, cells, tmp_path, WAYS)
        drawn = (tmp_path / name).with_suffix(".svg").read_text()
        assert all(f">{way}<" in drawn for way in ("inevitable", *PLOTTED))
    assert len(PLOTTED) < len(plot.COLOURS)
