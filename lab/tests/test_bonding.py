"""NetPIPE's file, and what the bonding experiment makes of curves and a pulled cable."""

from __future__ import annotations

from lab import netpipe
from lab.experiments import bonding
from lab.experiments.bonding import NUMBERED, ONE, PLAIN, Connection, Curve, Pulled, Setup
from lab.netpipe import Point

FILE = """\
       1 0.414371   0.00001841
 1048576 92.701319   0.08629866
 8388608 91.547234   0.69909267
"""


PULLED = Pulled(gap_ms=4.9, broken=0, sent=6000, lost=0, failures=2, numbered=2, late=0)


def curve(setup: Setup, mbit: float) -> Curve:
    return Curve(setup, [Point(1 << 20, mbit * 1e6, 0.1), Point(8 << 20, mbit * 1e6, 0.8)])


def test_netpipes_mbit_is_a_power_of_two() -> None:
    points = netpipe.parse(FILE)
    assert [p.nbytes for p in points] == [1, 1 << 20, 8 << 20]
    assert points[1].bps == 92.701319 * (1 << 20)
    assert netpipe.best(points) == points[1].bps
    assert netpipe.plateau(points) == points[1].bps


def test_the_published_figure_is_all_that_two_links_carry() -> None:
    assert 100 < bonding.PUBLISHED_PERCENT < 100.5


def paced(setup: Setup, again: int, out_of_order: int) -> Connection:
    return Connection(setup, True, 17e7, 9000, again, out_of_order, held=30, late=0, lost=0)


def test_a_connection_is_judged_by_both_links() -> None:
    good = [curve(ONE, 90), curve(PLAIN, 150), curve(NUMBERED, 178)]
    # What is plain may be out of order.
    connections = [paced(PLAIN, 70, 3000), paced(NUMBERED, 1, 30)]
    claims = bonding.claims(good, connections, PULLED)
    assert [c.holds for c in claims] == [True] * 8
    assert round(claims[0].value or 0, 1) == 98.9
    assert not bonding.claims([curve(ONE, 90), curve(NUMBERED, 170)], [], PULLED)[0].holds
    broken = Pulled(gap_ms=5.1, broken=1, sent=6000, lost=3, failures=1, numbered=1, late=9)
    claims = bonding.claims(good, [paced(PLAIN, 70, 300), paced(NUMBERED, 1, 30)], broken)
    assert [c.holds for c in claims] == [True, *[False] * 7]


def test_a_connection_that_stalls_for_good_has_a_gap_to_the_end() -> None:
    before = [(t / 1000, 1) for t in range(1000)]
    assert bonding.gap_s(before, 1.0) > bonding.PULL_REST_S - 0.01
    assert bonding.gap_s([*before, (1.25, 2)], 1.0) == bonding.PULL_REST_S - 0.25


def test_tables_say_what_was_lost() -> None:
    curves = [curve(ONE, 90), curve(PLAIN, 150), curve(NUMBERED, 178)]
    text = bonding.summary_table(curves, {ONE: 96e6, NUMBERED: 190e6}, {NUMBERED: PULLED})
    assert "0 of 6000" in text and "98.9 % of both" in text
    assert "3000" in bonding.connections_table([paced(PLAIN, 70, 3000)])


def test_what_does_not_count_shows_nothing() -> None:
    good = [curve(ONE, 90), curve(PLAIN, 150), curve(NUMBERED, 178)]
    assert not any(c.holds for c in bonding.claims([], [], None))
    # Without the connection with numbers none of it is out of order.
    assert not bonding.claims(good, [paced(PLAIN, 70, 3000)], PULLED)[1].holds
    # One link alone was slow: more than two of it is no result.
    slow = [curve(ONE, 85), curve(NUMBERED, 178)]
    (claim, *_) = bonding.claims(slow, [], PULLED)
    assert (claim.value, claim.holds) == (None, False)
