"""What turns measurements into claims: pairs, shares, windows. No switch is started."""

from __future__ import annotations

import math
import os
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

import pytest

from bench import runner
from bench.core import flatness
from bench.flood import FULL_PAYLOAD_BYTES, SMALL_PAYLOAD_BYTES
from bench.latency import ratio as times
from bench.latency import trips_of
from bench.memory import resident_mib
from bench.pairs import ATTEMPTS, Measure, Pair, interleaved, ratio, row
from bench.peers import VccLevada
from bench.shares import MIXES, MTU_FRAME_WIRE_BYTES, Mix, judge, standing, two_hosts
from bench.throughput import ns_per_byte
from bench.vcc import MODES, ROUNDS, claims, topology
from lab.cell import Cell
from lab.net import Failed, Lab
from lab.report import Report
from lab.topology import Tenant
from lab.workload import FlowResult


def _cell(valid: bool = True) -> Cell:
    flows = {"ping": FlowResult("ping")}
    return Cell({}, 1.0, {}, flows, {}, 0.5, {}, 0.0, None, None, None, valid)


def _measure(who: str, value: float, order: list[str], invalid: int = 0) -> Measure:
    """A measurement that notes its turn; its first `invalid` cells do not count."""
    left = [invalid]

    def once() -> tuple[Cell, float]:
        order.append(who)
        left[0] -= 1
        return _cell(valid=left[0] < 0), value

    return once


def test_pairs_are_interleaved_and_take_turns_in_going_first() -> None:
    order: list[str] = []
    rows: list[Cell] = []
    peers = {"a": _measure("a", 2.0, order), "b": _measure("b", 4.0, order)}
    pairs = interleaved(2, _measure("us", 8.0, order), peers, rows)
    assert order == ["us", "a", "us", "b", "a", "us", "b", "us"]
    assert pairs == {"a": [Pair(8.0, 2.0)] * 2, "b": [Pair(8.0, 4.0)] * 2}
    assert len(rows) == 8


def test_a_disturbed_pair_is_played_again_and_its_rows_are_kept() -> None:
    order: list[str] = []
    rows: list[Cell] = []
    peers = {"a": _measure("a", 2.0, order, invalid=1)}
    assert interleaved(1, _measure("us", 8.0, order), peers, rows) == {"a": [Pair(8.0, 2.0)]}
    assert [cell.valid for cell in rows] == [True, False, True, True]


def test_a_pair_that_stays_disturbed_is_given_up_and_does_not_count() -> None:
    order: list[str] = []
    peers = {"a": _measure("a", 2.0, order, invalid=99)}
    pairs = interleaved(1, _measure("us", 8.0, order), peers, [])["a"]
    assert len(order) == 2 * ATTEMPTS
    assert ratio(pairs) is None
    assert row("a", pairs, ".1f")[-1] == "1, 1 disturbed"


def test_the_ratio_is_the_median_of_the_pairs_ratios() -> None:
    pairs = [Pair(1, 2), Pair(30, 10), Pair(100, 100), Pair(9000, 1, valid=False)]
    assert ratio(pairs) == 1.0
    assert Pair(1, 0).ratio == float("inf")
    assert ratio([Pair(1, 2), *[Pair(1, 2, valid=False)] * 2]) is None, "one of three"


def test_shares_may_be_off_by_a_thousandth_or_two_maximum_frames() -> None:
    tenants = [Tenant("much", 1000), Tenant("little", 1)]
    total = 1_001_000_000.0
    exact = judge([total * 1000 / 1001, total / 1001], tenants, 200_000_000)
    assert [share.error for share in exact] == [pytest.approx(0, abs=1e-6)] * 2
    assert exact[0].allowed == pytest.approx(1_000_000)
    # 100 us of 200 Mbit/s are 2500 bytes, more than a frame of the MTU.
    assert exact[1].allowed == 2 * 2500
    assert judge([1.0, 1.0], tenants, 50_000_000)[1].allowed == 2 * MTU_FRAME_WIRE_BYTES
    off = judge([total * 1000 / 1001 - 10_000, total / 1001 + 10_000], tenants, 200_000_000)
    assert off[1].error == pytest.approx(2.0)


def test_the_bottleneck_is_where_the_direction_says() -> None:
    egress = two_hosts([("t", 1)], 50, "egress").hosts
    ingress = two_hosts([("t", 1)], 50, "ingress").hosts
    assert [(h.egress_bps, h.ingress_bps) for h in egress] == [(50, None), (None, None)]
    assert [(h.egress_bps, h.ingress_bps) for h in ingress] == [(None, None), (None, 50)]


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix.name)
def test_everyone_asks_for_more_than_its_share(mix: Mix) -> None:
    weights = sum(s.weight for s in mix.senders)
    for sender in mix.senders:
        share_bps = mix.link_bps * sender.weight / weights
        segment = sender.frames.get("segment_bytes", sender.frames["payload_bytes"])
        wire_bps = sender.payload_bps * (segment + 70) / segment
        assert wire_bps > 1.3 * share_bps, sender.name


def test_standing_queues_are_judged_at_the_emptiest() -> None:
    def shown(waiting: int) -> dict[str, Any]:
        endpoint = {"egress": {"backlog_bytes": waiting}}
        tenant = {"name": "t", "endpoints": [endpoint, endpoint]}
        return {"switches": [{"name": "other", "tenants": []}, {"name": "h", "tenants": [tenant]}]}

    assert standing([shown(7), shown(3)], "h", "egress") == {"t": 6}


def test_a_lost_ping_is_the_longest() -> None:
    some = trips_of([1.0] * 98 + [math.inf] * 2, True, False)
    assert (some.p50_us, some.p99_us, some.lost, some.valid) == (1000, math.inf, 2, True)
    all_lost = trips_of([math.inf] * 5, True, False)
    assert (all_lost.p99_us, all_lost.valid) == (math.inf, True)
    fine = trips_of([1.0] * 100, True, False)
    assert times([some], [fine]) == math.inf
    assert times([fine], [some]) == 0
    # Neither is the longer one.
    assert times([some], [all_lost]) is None


def test_a_quiet_link_that_loses_pings_is_no_measure() -> None:
    lost = trips_of([1.0] * 98 + [math.inf] * 2, True, True)
    assert not lost.valid
    assert times([trips_of([50.0] * 100, True, False)], [lost]) is None
    assert trips_of([1.0] * 199 + [math.inf], True, True).valid


def test_without_a_ping_in_the_window_nothing_is_told() -> None:
    none = trips_of([], True, False)
    assert math.isnan(none.p99_us)
    assert not none.valid


@pytest.mark.parametrize("error", [Failed("no"), ValueError("odd"), OSError(28, "full")])
def test_a_section_that_fails_costs_no_other(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def section(*_: object) -> None:
        raise error

    class Staged:
        stage = staticmethod(nullcontext)

    monkeypatch.setitem(runner.SECTIONS, "core", section)
    assert not runner._section("core", cast(Lab, Staged), Report("bench", True), True)
    assert f"bench: core could not be measured: {error}" in capsys.readouterr().err


def test_small_frames_are_of_64_bytes_and_full_ones_of_1518() -> None:
    assert (SMALL_PAYLOAD_BYTES, FULL_PAYLOAD_BYTES) == (18, 1472)


def test_flatness_is_most_over_least() -> None:
    assert flatness({10: 100.0, 100: 110.0, 1000: 99.0}) == pytest.approx(110 / 99)


def test_resident_memory_of_this_process_is_plausible() -> None:
    mib = resident_mib(os.getpid())
    assert 1 < mib["Pss"] <= mib["Rss"] < 4096


class _Nowhere:
    """A guest whose namespace is only a name."""

    def __init__(self, name: str) -> None:
        self.namespace = self
        self.name = f"ns-{name}"


def test_vcc_is_of_three_tenants_of_one_switch_and_all_are_scheduled() -> None:
    levada = VccLevada(Lab(), topology())  # not entered: nothing is made
    levada.guests = {e.name: _Nowhere(e.name) for e in topology().endpoints}  # type: ignore[misc]
    (switch,) = tomllib.loads(levada.configuration())["switch"]
    modes = {tenant["name"]: tenant["vcc"] for tenant in switch["tenant"]}
    assert modes == {mode: mode for mode in ("off", *MODES)}
    ends = [end for tenant in switch["tenant"] for end in tenant["endpoint"]]
    assert len(ends) == 6
    assert all("limit" in end for end in ends)


def test_vcc_has_to_leave_99_percent_in_each_mode_with_95_percent_confidence() -> None:
    judged = claims({"echo": [Pair(9.95, 10.0)] * 6, "dctcp": [Pair(9.8, 10.0)] * 6})
    ids = [f"vcc.{mode}, lower end of 95 %" for mode in MODES]
    assert [(c.id, c.holds) for c in judged] == [(ids[0], True), (ids[1], False)]
    # The median alone would hold.
    wide = [Pair(ours, 10.0) for ours in (8.5, 9.9, 10.0, 10.2, 12.0, 14.5)]
    assert not claims({"echo": wide})[0].holds
    # Five pairs have no interval.
    disturbed = Pair(9.95, 10.0, valid=False)
    assert claims({"echo": [*[Pair(9.95, 10.0)] * 5, disturbed]})[0].value is None
    assert min(ROUNDS.values()) >= 6


def test_processor_time_for_a_byte_is_the_ends_and_the_switch_s() -> None:
    # The ends took 0.2 ns for a byte. The switch had half a core, for 4 bytes in a nanosecond.
    flows = {"flow": FlowResult("flow", [], {"cpu_s_per_byte": 0.2e-9})}
    cell = replace(_cell(), flows=flows, cores={"levada": 0.5}, goodput_bps={"flow": 32e9})
    assert ns_per_byte(cell) == pytest.approx(0.2 + 0.125)
    assert ns_per_byte(replace(cell, goodput_bps={"flow": 0.0})) == float("inf")
