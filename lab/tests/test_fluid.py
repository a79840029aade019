"""The oracle is itself judged: by cases worked by hand, by properties, by a second method."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from fractions import Fraction as F
from pathlib import Path

import pytest

from lab.fluid import Endpoint, Malformed, Share, Tenant, by_weight, parse, render, solve

CASES = 400


def rates(shares: tuple[Share, ...]) -> list[F]:
    return [s.rate for s in shares]


def one(
    guarantee: int | None = None,
    limit: int | None = None,
    weight: int = 1,
    demand: int | None = None,
) -> Tenant:
    """A tenant with one endpoint that wants everything."""

    def rate(value: int | None) -> F | None:
        return None if value is None else F(value)

    return Tenant((Endpoint(),), rate(guarantee), rate(limit), F(weight), rate(demand))


def test_weights_share_a_backlogged_link() -> None:
    assert rates(solve(F(900), [one(weight=1), one(weight=2)])) == [300, 600]
    assert by_weight(900, [1, 2]) == [300, 600]


def test_what_one_does_not_want_goes_to_the_others_by_weight() -> None:
    tenants = [one(weight=1, demand=100), one(weight=1), one(weight=2)]
    assert rates(solve(F(1000), tenants)) == [100, 300, 600]


def test_floors_come_first_then_the_rest_by_weight() -> None:
    # 600 is promised; the 400 left are split 1:1.
    tenants = [one(guarantee=600), one()]
    assert rates(solve(F(1000), tenants)) == [800, 200]


def test_limit_holds_and_the_rest_is_lent() -> None:
    assert rates(solve(F(1000), [one(guarantee=600, limit=700), one()])) == [700, 300]


def test_an_idle_endpoints_guarantee_is_lent_inside_its_tenant_first() -> None:
    red = Tenant((Endpoint(guarantee=F(300), demand=F(0)), Endpoint(guarantee=F(300))))
    blue = Tenant((Endpoint(guarantee=F(400)),))
    assert solve(F(1000), [red, blue]) == (
        Share(F(600), (F(0), F(600))),
        Share(F(400), (F(400),)),
    )


def test_a_link_nobody_fills_is_left_idle() -> None:
    assert rates(solve(F(1000), [one(demand=10), one(demand=20)])) == [10, 20]


def test_guarantees_that_do_not_fit_shrink_in_proportion() -> None:
    red = Tenant((Endpoint(guarantee=F(200)), Endpoint(guarantee=F(400))))
    blue = Tenant((Endpoint(guarantee=F(400)),))
    assert solve(F(500), [red, blue]) == (
        Share(F(300), (F(100), F(200))),
        Share(F(200), (F(200),)),
    )


def random_problem(rng: random.Random) -> tuple[F, list[Tenant]]:
    """Guarantees that fit the link and their tenants, as admission would have it."""
    capacity = F(rng.randint(1, 10_000), rng.randint(1, 7))
    tenants = []
    budget = capacity
    for _ in range(rng.randint(1, 6)):
        promise = budget * rng.randint(0, 3) / 7
        budget -= promise
        endpoints = []
        inner = promise
        for _ in range(rng.randint(0, 5)):
            guarantee = inner * rng.randint(0, 3) / 5
            inner -= guarantee
            limit = rng.choice([None, guarantee + F(rng.randint(0, 3000))])
            endpoints.append(
                Endpoint(guarantee, limit, F(rng.randint(1, 1000)), random_rate(rng, capacity))
            )
        tenants.append(
            Tenant(
                tuple(endpoints),
                guarantee=rng.choice([None, promise]),
                limit=rng.choice([None, promise + F(rng.randint(0, 5000))]),
                weight=F(rng.randint(1, 1000)),
                demand=rng.choice([None, None, F(rng.randint(0, 9000))]),
            )
        )
    return capacity, tenants


def random_rate(rng: random.Random, capacity: F) -> F | None:
    return rng.choice([None, F(0), capacity * rng.randint(0, 12) / 10])


def least(*values: F | None) -> F | None:
    known = [v for v in values if v is not None]
    return min(known) if known else None


def endpoint_want(endpoint: Endpoint) -> F | None:
    return least(endpoint.demand, endpoint.limit)


def tenant_want(tenant: Tenant) -> F | None:
    inner = [endpoint_want(e) for e in tenant.endpoints]
    total = None if None in inner else sum((w for w in inner if w is not None), F(0))
    return least(total, tenant.demand, tenant.limit)


def promised(tenant: Tenant) -> F:
    if tenant.guarantee is not None:
        return tenant.guarantee
    return sum((e.guarantee for e in tenant.endpoints), F(0))


def capped(rate: F, want: F | None) -> F:
    return rate if want is None else min(rate, want)


@pytest.mark.parametrize("seed", range(CASES))
def test_the_promise_holds(seed: int) -> None:
    """Sum conserved, floors met, limits held, nothing idle while someone wants it, and what
    is above the floors shared by weight, at both levels."""
    capacity, tenants = random_problem(random.Random(seed))
    shares = solve(capacity, tenants)
    wants = [tenant_want(t) for t in tenants]
    floors = [capped(promised(t), w) for t, w in zip(tenants, wants, strict=True)]
    weights = [t.weight for t in tenants]
    check_level(capacity, rates(shares), floors, wants, weights)
    for tenant, share in zip(tenants, shares, strict=True):
        inner_wants = [endpoint_want(e) for e in tenant.endpoints]
        inner_floors = [
            capped(e.guarantee, w) for e, w in zip(tenant.endpoints, inner_wants, strict=True)
        ]
        if sum(inner_floors, F(0)) > share.rate:
            # Only a tenant's stated demand may keep it below its endpoints' floors.
            assert tenant.demand is not None
            assert sum(share.endpoints, F(0)) == share.rate
            continue
        inner_weights = [e.weight for e in tenant.endpoints]
        check_level(share.rate, list(share.endpoints), inner_floors, inner_wants, inner_weights)


def check_level(
    total: F, got: list[F], floors: list[F], wants: list[F | None], weights: list[F]
) -> None:
    hungry = [w is None or r < w for r, w in zip(got, wants, strict=True)]
    assert sum(got, F(0)) <= total
    if any(hungry):
        assert sum(got, F(0)) == total
    for rate, floor, want in zip(got, floors, wants, strict=True):
        assert rate >= floor
        assert want is None or rate <= want
    # Water levels: all who still want more stand equally high, and nobody stands higher.
    levels = [(r - f) / w for r, f, w in zip(got, floors, weights, strict=True)]
    high = [level for level, h in zip(levels, hungry, strict=True) if h]
    if high:
        assert len(set(high)) == 1
        assert max(levels) == high[0]


@pytest.mark.parametrize("seed", range(40))
def test_agrees_with_a_search_for_the_level(seed: int) -> None:
    """The level found by bisection in floats gives the same rates, to rounding."""
    capacity, tenants = random_problem(random.Random(10_000 + seed))
    wants = [tenant_want(t) for t in tenants]
    floors = [float(capped(promised(t), w)) for t, w in zip(tenants, wants, strict=True)]

    def poured(level: float) -> list[float]:
        return [
            min(float("inf") if w is None else float(w), f + float(t.weight) * level)
            for t, w, f in zip(tenants, wants, floors, strict=True)
        ]

    low, high = 0.0, float(capacity) + 1
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(poured(middle)) < capacity else (low, middle)
    expected = poured(high)
    for rate, guess in zip(rates(solve(capacity, tenants)), expected, strict=True):
        assert float(rate) == pytest.approx(guess, rel=1e-9, abs=1e-9)


def test_decimals_and_fractions_are_taken_exactly() -> None:
    capacity, tenants = parse('{"capacity": 0.3, "tenants": [{"weight": "1/3"}]}')
    assert capacity == F(3, 10)
    assert tenants[0].weight == F(1, 3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ('{"tenants": []}', "capacity is missing"),
        ('{"capacity": -1}', "problem.capacity: -1 is negative"),
        ('{"capacity": NaN}', "NaN is not a rate"),
        ('{"capacity": 1, "tenants": [{"wieght": 2}]}', "tenants[0]: unknown key 'wieght'"),
        ('{"capacity": 1, "tenants": [{"weight": 0}]}', "tenants[0].weight: must be above zero"),
        (
            '{"capacity": 1, "tenants": [{"endpoints": [{"limit": "fast"}]}]}',
            "tenants[0].endpoints[0].limit: 'fast' is not a number",
        ),
    ],
)
def test_a_malformed_problem_says_where(text: str, says: str) -> None:
    with pytest.raises(Malformed) as error:
        parse(text)
    assert says in str(error.value)


def test_render_keeps_the_exact_value() -> None:
    solution = json.loads(render(solve(F(1), [one(weight=1), one(weight=2)])))
    assert solution["tenants"][0]["exact"] == "1/3"
    assert solution["tenants"][1]["endpoints"][0]["rate"] == pytest.approx(2 / 3)


def test_the_program_reads_and_writes_json() -> None:
    root = Path(__file__).resolve().parents[2]
    problem = '{"capacity": 30, "tenants": [{"endpoints": [{}]}, {"endpoints": [{}, {}]}]}'
    done = subprocess.run(
        [sys.executable, "-m", "lab.fluid"],
        input=problem,
        capture_output=True,
        text=True,
        cwd=root,
        check=True,
    )
    assert [t["rate"] for t in json.loads(done.stdout)["tenants"]] == [15, 15]
