"""The ideal: who gets what of a link if frames were a fluid.

One direction of one link of capacity C is shared by tenants, and each tenant's part by
its endpoints. At both levels a child has a guarantee, a limit, a weight and a demand:

* an endpoint's floor is min(guarantee, demand, limit); its ceiling min(demand, limit);
* a tenant's demand is what its endpoints could take together (or less, where stated), its
  guarantee by default the sum of theirs; its floor and ceiling follow as for an endpoint;
* tenants get min(ceiling, floor + weight * lambda), with lambda such that the sum is
  min(C, what is demanded); endpoints likewise, with the sum what their tenant got.

So floors first, then what is left by weight, never above a limit, nothing idle while
someone wants it. SPECIFICATION.md promises this; it is written here
a second time, on its own, in exact rational arithmetic, so that it can judge the switch.

Guarantees that do not fit (the link is slower than configured) shrink in proportion:
tenants' to the link, endpoints' to what their tenant got.

As a program it reads a problem from standard input and writes the solution:

    echo '{"capacity": 1000, "tenants": [
             {"weight": 1, "endpoints": [{}]},
             {"weight": 2, "guarantee": 100, "endpoints": [{"demand": 300}, {}]}]}' |
        python -m lab.fluid

Rates are numbers or "p/q" in any one unit; what is absent is unlimited (demand, limit), zero
(an endpoint's guarantee) or one (weight). Each node of the solution has `rate`, a float,
and `exact`, a fraction as text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

ZERO = Fraction(0)


@dataclass(frozen=True)
class Endpoint:
    """One NIC of a tenant. Rates in the problem's unit; None is unlimited."""

    guarantee: Fraction = ZERO
    limit: Fraction | None = None
    weight: Fraction = Fraction(1)
    demand: Fraction | None = None


@dataclass(frozen=True)
class Tenant:
    """The owner of endpoints. `guarantee` None is the sum of the endpoints'."""

    endpoints: tuple[Endpoint, ...]
    guarantee: Fraction | None = None
    limit: Fraction | None = None
    weight: Fraction = Fraction(1)
    demand: Fraction | None = None


@dataclass(frozen=True)
class Share:
    """What one tenant and each of its endpoints gets, in the problem's unit."""

    rate: Fraction
    endpoints: tuple[Fraction, ...]


@dataclass(frozen=True)
class _Claimant:
    """A child at either level, reduced to what the filling needs."""

    floor: Fraction
    ceiling: Fraction | None
    weight: Fraction


class Malformed(ValueError):
    """A problem that does not say what it should; the text names where and what."""


def solve(capacity: Fraction, tenants: Sequence[Tenant]) -> tuple[Share, ...]:
    """The ideal shares of a link of `capacity`, in the order of `tenants`."""
    promised = sum((_guarantee(t) for t in tenants), ZERO)
    shrink = min(Fraction(1), capacity / promised) if promised else Fraction(1)
    claimants = [_tenant_claim(t, shrink) for t in tenants]
    rates = fill(capacity, claimants)
    return tuple(
        Share(rate, tuple(fill(rate, [_endpoint_claim(e, shrink) for e in tenant.endpoints])))
        for tenant, rate in zip(tenants, rates, strict=True)
    )


def by_weight(total: float, weights: Sequence[float]) -> list[float]:
    """The ideal where everyone is backlogged and has a weight only: what experiments
    compare a measured total with."""
    tenants = [Tenant((Endpoint(),), weight=Fraction(w)) for w in weights]
    return [float(share.rate) for share in solve(Fraction(total), tenants)]


def fill(total: Fraction, claimants: Sequence[_Claimant]) -> list[Fraction]:
    """Raises all water levels together until `total` is poured or all are at their ceiling.

    Exact: between two breakpoints (levels at which a claimant reaches its ceiling) the sum
    is linear, so the last level is found by one division.
    """
    floors = sum((c.floor for c in claimants), ZERO)
    if floors > total:
        return [c.floor * total / floors for c in claimants]
    left = total - floors
    rates = [c.floor for c in claimants]
    # (level at which it is full, who), lowest first; the unbounded never fill.
    full_at = sorted(
        ((c.ceiling - c.floor) / c.weight, i)
        for i, c in enumerate(claimants)
        if c.ceiling is not None
    )
    weight = sum((c.weight for c in claimants), ZERO)
    level = ZERO
    full: set[int] = set()
    for next_level, i in full_at:
        if (next_level - level) * weight > left:
            break
        left -= (next_level - level) * weight
        level = next_level
        weight -= claimants[i].weight
        full.add(i)
    if weight:
        level += left / weight
    for i, c in enumerate(claimants):
        if i in full:
            assert c.ceiling is not None
            rates[i] = c.ceiling
        else:
            rates[i] += c.weight * level
    return rates


def _tenant_claim(tenant: Tenant, shrink: Fraction) -> _Claimant:
    ceilings = [_least(e.demand, e.limit) for e in tenant.endpoints]
    wanted = None if None in ceilings else sum((c for c in ceilings if c is not None), ZERO)
    ceiling = _least(wanted, tenant.demand, tenant.limit)
    return _claim(_guarantee(tenant) * shrink, ceiling, tenant.weight)


def _endpoint_claim(endpoint: Endpoint, shrink: Fraction) -> _Claimant:
    ceiling = _least(endpoint.demand, endpoint.limit)
    return _claim(endpoint.guarantee * shrink, ceiling, endpoint.weight)


def _claim(guarantee: Fraction, ceiling: Fraction | None, weight: Fraction) -> _Claimant:
    floor = guarantee if ceiling is None else min(guarantee, ceiling)
    return _Claimant(floor, ceiling, weight)


def _guarantee(tenant: Tenant) -> Fraction:
    if tenant.guarantee is not None:
        return tenant.guarantee
    return sum((e.guarantee for e in tenant.endpoints), ZERO)


def _least(*rates: Fraction | None) -> Fraction | None:
    """The smallest of rates of which any may be unlimited."""
    known = [r for r in rates if r is not None]
    return min(known) if known else None


# --- problems and solutions as JSON -------------------------------------------------------

_ENDPOINT_KEYS = frozenset({"name", "guarantee", "limit", "weight", "demand"})
_TENANT_KEYS = _ENDPOINT_KEYS | {"endpoints"}


def parse(text: str) -> tuple[Fraction, list[Tenant]]:
    """Capacity and tenants of a problem in JSON. Decimals are taken exactly as written."""
    try:
        problem = json.loads(text, parse_float=Fraction, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error}") from error
    _check_keys(problem, frozenset({"capacity", "tenants"}), "problem")
    capacity = _number(problem, "capacity", "problem")
    if capacity is None:
        raise Malformed("problem: capacity is missing; give the link's rate")
    tenants = problem.get("tenants", [])
    if not isinstance(tenants, list):
        raise Malformed("problem.tenants: must be a list")
    return capacity, [_parse_tenant(t, f"tenants[{i}]") for i, t in enumerate(tenants)]


def render(shares: Sequence[Share]) -> str:
    """The solution as JSON, tenants and endpoints in the problem's order."""
    tenants = [
        {**_rendered(s.rate), "endpoints": [_rendered(rate) for rate in s.endpoints]}
        for s in shares
    ]
    return json.dumps({"tenants": tenants})


def _rendered(rate: Fraction) -> dict[str, Any]:
    return {"rate": float(rate), "exact": str(rate)}


def _parse_tenant(node: object, where: str) -> Tenant:
    fields = _check_keys(node, _TENANT_KEYS, where)
    endpoints = fields.get("endpoints", [])
    if not isinstance(endpoints, list):
        raise Malformed(f"{where}.endpoints: must be a list")
    return Tenant(
        tuple(_parse_endpoint(e, f"{where}.endpoints[{i}]") for i, e in enumerate(endpoints)),
        guarantee=_number(fields, "guarantee", where),
        limit=_number(fields, "limit", where),
        weight=_weight(fields, where),
        demand=_number(fields, "demand", where),
    )


def _parse_endpoint(node: object, where: str) -> Endpoint:
    fields = _check_keys(node, _ENDPOINT_KEYS, where)
    return Endpoint(
        guarantee=_number(fields, "guarantee", where) or ZERO,
        limit=_number(fields, "limit", where),
        weight=_weight(fields, where),
        demand=_number(fields, "demand", where),
    )


def _check_keys(node: object, known: frozenset[str], where: str) -> Mapping[str, Any]:
    if not isinstance(node, dict):
        raise Malformed(f"{where}: must be an object")
    unknown = sorted(set(node) - known)
    if unknown:
        raise Malformed(f"{where}: unknown key {unknown[0]!r}; known are {sorted(known)}")
    return node


def _weight(fields: Mapping[str, Any], where: str) -> Fraction:
    weight = _number(fields, "weight", where)
    if weight is None:
        return Fraction(1)
    if weight == 0:
        raise Malformed(f"{where}.weight: must be above zero")
    return weight


def _number(fields: Mapping[str, Any], key: str, where: str) -> Fraction | None:
    value = fields.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | Fraction | str):
        raise Malformed(f"{where}.{key}: {value!r} is not a number")
    try:
        number = Fraction(value)
    except (ValueError, ZeroDivisionError) as error:
        raise Malformed(f"{where}.{key}: {value!r} is not a number or a fraction") from error
    if number < 0:
        raise Malformed(f"{where}.{key}: {value} is negative")
    return number


def _refuse_constant(name: str) -> None:
    raise Malformed(f"{name} is not a rate; leave the key out for unlimited")


def main() -> int:
    """Reads a problem, writes its solution; a malformed problem is an error, status 2."""
    try:
        capacity, tenants = parse(sys.stdin.read())
    except Malformed as error:
        print(f"lab.fluid: {error}", file=sys.stderr)
        return 2
    print(render(solve(capacity, tenants)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
