"""How the bystander's windows are cut out and judged."""

from __future__ import annotations

import math
from typing import Any

from lab.experiments.bystander import (
    INSIDE,
    OUTSIDE,
    Played,
    attacks_table,
    claims,
    counted_percent,
    drops,
    holds,
    steps_table,
)
from lab.windows import Pair, Window, p99
from lab.workload import Stream, trips_between


def window(mbit: float = 100.0, p99_ms: float = 1.0, bound: str | None = None) -> Window:
    return Window(0, 1, (0, 1), 0.5, {"busy": 0.1}, bound, None, mbit * 1e6, p99_ms)


def pair(kept: float, times: float, bound: str | None = None, **sent: object) -> Pair:
    told: dict[str, Any] = {"per_s": 1000.0, "seconds": 1.0, **sent}
    return Pair(window(), window(kept, times, bound), told)


def test_medians_of_valid_pairs_are_judged() -> None:
    pairs = [pair(99.5, 2.0), pair(50.0, 9.0, bound="busy"), pair(99.2, 2.5), pair(98.0, 2.2)]
    told = {c.id: c for c in claims(Played("x", INSIDE, False, pairs))}
    assert told["inside: x: throughput kept"].value == 99.2
    assert told["inside: x: ping p99"].value == 2.2
    assert all(c.holds for c in told.values())


def test_without_a_valid_pair_nothing_holds() -> None:
    made = claims(Played("x", INSIDE, False, [pair(100, 1, bound="busy")]))
    assert made
    assert not any(c.holds for c in made)


def judged(*pairs: Pair, is_step: bool = False) -> list[bool]:
    played = Played("x", INSIDE, is_step, list(pairs))
    if is_step:
        return [holds(played)]
    return [claim.holds for claim in claims(played)]


def test_harm_that_lasts_is_in_the_quiet_windows_too_and_does_not_hold() -> None:
    harmed = Pair(window(20), window(20), {"per_s": 1000.0})
    first = Pair(window(100), window(20), {"per_s": 1000.0})
    kept = claims(Played("x", INSIDE, False, [first, harmed, harmed]))[0]
    assert (kept.value, kept.holds) == (20, False)
    # Where the first attacked window was whole still, and the harm came with its end.
    assert judged(pair(100, 1), harmed, harmed) == [False, True]
    assert judged(pair(100, 1), harmed, is_step=True) == [False]
    assert "harm lasts" in attacks_table([Played("x", INSIDE, False, [first, harmed])])
    # Who never had it shows nothing.
    told = claims(Played("x", INSIDE, False, [harmed, harmed]))
    assert [(claim.value, claim.holds) for claim in told] == [(None, False)] * 2


def test_pings_lost_after_an_attack_do_not_make_its_round_trips_short() -> None:
    lost = Pair(window(100, math.inf), window(100, 50), {"per_s": 1000.0})
    assert judged(pair(100, 1), lost) == [True, False]
    assert judged(lost, lost, lost) == [False, False]
    assert math.isnan(lost.times_quiet)


def test_a_quiet_window_without_data_is_no_measure() -> None:
    dead = Pair(window(0), window(0), {"per_s": 1000.0})
    assert judged(dead) == [False, False]
    (row,) = Played("x", INSIDE, False, [dead]).as_rows()
    assert (row["valid"], row["disturbed"]) == (False, "0.0 % of the rate without an attack")


def test_an_attack_that_was_not_made_shows_nothing() -> None:
    starved = [pair(100, 1, per_s=99.0), pair(100, 1, per_s=0.0)]
    swarm = pair(100, 1)
    swarm.sent = {"connections": 1}
    for pairs in (starved, [swarm]):
        played = Played("x", INSIDE, False, pairs, least_per_s=100)
        assert [(c.value, c.holds) for c in claims(played)] == [(None, False)] * 2
        assert played.played() == []
        assert str(played.as_rows()[0]["disturbed"]).startswith("no attack: ")


def test_what_is_counted_is_the_worst_counter() -> None:
    sent = {"malformed": 1000, "reserved": 100, "allowed": 5000}
    pairs = [pair(100, 1, by_reason=sent) for _ in range(2)]
    played = Played("x", INSIDE, False, pairs, {"malformed": 2000, "reserved": 150})
    assert counted_percent(played) == 75
    assert not claims(played)[-1].holds
    played.drops["reserved"] = 198
    assert claims(played)[-1].value == 99
    assert claims(played)[-1].holds


def test_what_may_be_flooded_need_not_be_dropped() -> None:
    played = Played("x", OUTSIDE, False, [pair(100, 1, by_reason={"flood-limit": 40_000})])
    played.drops = {"flood-limit": 15_000}
    assert counted_percent(played) == 100


def test_honest_floods_claim_no_counter() -> None:
    played = Played("x", INSIDE, False, [pair(100, 1, by_reason={"allowed": 100})])
    assert counted_percent(played) is None
    assert len(claims(played)) == 2


def test_the_promise_holds_up_to_the_first_step_that_fails() -> None:
    steps = [
        Played(f"{n}", INSIDE, True, [pair(kept, 1.0, per_s=float(n), bound="busy")])
        for n, kept in [(10, 100), (20, 99.9), (30, 80), (40, 100)]
    ]
    assert steps_table(steps).endswith("the promise holds up to 20 frames of 64 bytes a second")


def test_drops_of_the_attacker() -> None:
    def tenant(name: str, **count: int) -> dict[str, Any]:
        return {"name": name, "endpoints": [{"drops": count}]}

    tenants = [tenant("good", aqm=9), tenant("bad", malformed=2), tenant("open", malformed=1)]
    shown = {"switches": [{"uplink": {"drops": {"loop": 5}}, "tenants": tenants}]}
    assert drops(shown, INSIDE) == {"malformed": 3}
    assert drops(shown, OUTSIDE) == {"malformed": 3, "loop": 5}


def test_p99_counts_lost_pings_as_endless() -> None:
    assert p99([1.0] * 99 + [5.0]) == 1.0
    assert p99([1.0] * 98 + [math.inf] * 2) == math.inf
    assert math.isnan(p99([]))


def test_pings_of_a_window_by_when_they_were_sent() -> None:
    text = "\n".join(
        f"[{100 + n / 10 + 0.002:.6f}] 64 bytes from 10.0.0.2: icmp_seq={n} ttl=64 time=2.00 ms"
        for n in range(10)
        if n != 5
    )
    assert trips_between(text, 100.25, 100.75) == [2.0, 2.0, math.inf, 2.0, 2.0]
    assert trips_between(text, 200, 201) == []


def test_pings_after_the_last_answer_are_lost() -> None:
    answered = "[100.002] 64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=2.00 ms"
    missing = ["[100.01] no answer yet for icmp_seq=2", "[100.02] no answer yet for icmp_seq=3"]
    late = "[100.5] 64 bytes from 10.0.0.2: icmp_seq=3 ttl=64 time=490.0 ms"
    text = "\n".join([answered, *missing, late])
    assert trips_between(text, 99, 101) == [2.0, math.inf, 490.0]
    assert trips_between(missing[0], 99, 101) == [math.inf]


def test_goodput_of_a_stream_between_two_times() -> None:
    stream = Stream("s", "a", "b", 1)
    stream.arrivals = [[(10.0, 0), (11.0, 1000), (12.0, 3000)], [(11.0, 500), (12.0, 500)]]
    assert stream.goodput_bps(10.5, 11.5) == 8 * (2000 - 500 + 500)
