"""What the bonding experiment makes of more links, unequal ones and lossy ones."""

from __future__ import annotations

import subprocess
from unittest import mock

from lab.experiments import bonding_links as parts
from lab.experiments.bonding_links import LINKS, LOSS, UNEQUAL, Links, Tcp, Udp
from lab.switches import levada_bond


def tcp(links: Links, mbit: float, turn: int = 0, connections: int = 1, again: int = 9) -> Tcp:
    return Tcp(links, turn, connections, mbit * 1e6, 9000, again, 30, late=0, lost=0)


def test_ratios_are_those_within_a_round() -> None:
    one, two = LINKS.links[:2]
    # A machine that is twice as slow for a round changes nothing.
    found = [tcp(one, 47), tcp(two, 93, 0), tcp(one, 20, 1), tcp(two, 39.8, 1), tcp(one, 47, 2)]
    share = parts.percent(found, two, [one] * 2, found)
    assert share is not None
    assert round(share, 1) == 99.2
    assert parts.percent(found, two, [one] * 2, found, connections=64) is None
    assert parts.percent([tcp(two, 90)], two, [one] * 2, found) is None
    # Of four rounds two are not enough.
    assert parts.percent(found, two, [one] * 2, [*found, tcp(two, 9, 3)]) is None


def test_more_links_are_judged_by_so_many_times_one() -> None:
    udp = [Udp(links, 9000, 5, 0, late=0, given_up=0) for links in LINKS.links]
    good = [tcp(links, 47 * len(links.rates)) for links in LINKS.links]
    assert [c.holds for c in parts._links_claims(good, udp, good)] == [True] * 5
    bad = [tcp(links, 47 * len(links.rates) ** 0.9) for links in LINKS.links]
    wrong = [Udp(links, 9000, 5, 1, late=0, given_up=2) for links in LINKS.links]
    assert [c.holds for c in parts._links_claims(bad, wrong, bad)] == [False] * 5
    assert not any(c.holds for c in parts._links_claims([], [], [])[:4])


def test_unequal_links_are_judged_by_the_sum_of_each_alone() -> None:
    fast, slow, both = UNEQUAL.links
    found = [tcp(fast, 94), tcp(slow, 9.4), tcp(both, 100.5)]
    assert parts._unequal_claims(found, [], found)[0].holds
    # Twice the slower is what plain round robin has.
    found[2] = tcp(both, 18.8)
    assert not parts._unequal_claims(found, [], found)[0].holds


def test_under_loss_two_links_are_judged_by_one_that_loses_as_much() -> None:
    one, two = LOSS.links
    assert [
        c.holds
        for c in parts._loss_claims([tcp(one, 90), tcp(two, 86)], [], [tcp(one, 90), tcp(two, 86)])
    ] == [True, True]
    assert not parts._loss_claims([tcp(one, 90), tcp(two, 85)], [], [tcp(one, 90), tcp(two, 85)])[
        0
    ].holds
    # Where nothing is lost, nothing is shown.
    assert not parts._loss_claims(
        [tcp(one, 90), tcp(two, 90, again=0)], [], [tcp(one, 90), tcp(two, 90, again=0)]
    )[1].holds


def test_more_than_there_is_says_that_what_it_is_measured_by_was_slow() -> None:
    one, two = LINKS.links[:2]
    for mbit, holds in ((92, False), (93.5, True), (96.5, True), (97.8, False)):
        claim = parts._links_claims(
            [tcp(one, 47), tcp(two, mbit)], [], [tcp(one, 47), tcp(two, mbit)]
        )[0]
        assert claim.holds == holds
    assert claim.value is None
    lossy, both = LOSS.links
    assert not parts._loss_claims(
        [tcp(lossy, 80), tcp(both, 86)], [], [tcp(lossy, 80), tcp(both, 86)]
    )[0].holds


def test_without_a_round_that_counts_nothing_holds() -> None:
    for claims in parts.CLAIMS.values():
        assert not any(claim.holds for claim in claims([], [], []))


def test_a_link_loses_by_a_program_that_throws_dice() -> None:
    space = mock.Mock()
    levada_bond.lose(space, "p0", 1000)
    space.tc.assert_called_once_with("qdisc add dev p0 clsact")
    *_, program = space.run.call_args.args
    lines = program.split(",")
    assert lines[0] == "5" and len(lines) == 6
    assert lines[2].split() == ["148", "0", "0", "1000"]


def test_an_unknown_part_is_refused() -> None:
    done = subprocess.run(
        ["lab/run", "bonding", "--only", "nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "its parts are two, links, unequal, loss" in done.stderr
