"""The part `netpipe`: dips are found, and claims fail where they should."""

from __future__ import annotations

from collections.abc import Callable

from lab.experiments.bonding_netpipe import (
    LARGE,
    NUMBERED,
    ONE,
    Curve,
    Setup,
    claims,
    dips,
    own_dips,
)
from lab.netpipe import Point
from lab.switches.levada_places import KINDS

SIZES = [1 << n for n in range(10, 23)]
TIMES = 5


def curves(rate: Callable[[str, Setup, int], float], times: int = TIMES) -> list[Curve]:
    """Curves of all places over one link and two."""

    def curve(kind: str, setup: Setup) -> Curve:
        rates = {size: rate(kind, setup, size) for size in SIZES}
        return Curve(kind, setup, [Point(s, bps, 8 * s / bps) for s, bps in rates.items()])

    return [curve(kind, setup) for _ in range(times) for kind in KINDS for setup in (ONE, NUMBERED)]


def failed(found: list[Curve]) -> list[str]:
    """Names of the claims that do not hold."""
    return [claim.id for claim in claims(found, quick=False) if not claim.holds]


def test_a_dip_is_below_both_sizes_beside_it() -> None:
    assert dips({1: 100, 2: 94, 3: 100, 4: 96, 5: 100}) == [2]
    assert dips({1: 10, 2: 20, 3: 30}) == []
    assert dips({1: 100, 2: 50, 3: 40}) == []
    assert dips({1: 40, 2: 100}) == []


def test_what_is_even_holds() -> None:
    even = curves(lambda _, setup, size: 1e6 * setup[0])
    assert failed(even) == []
    assert len(claims(even, quick=False)) == 8
    assert len(claims(curves(lambda _, setup, size: 1e6 * setup[0], times=1), quick=True)) == 5


def test_a_dip_of_two_links_alone_fails_and_one_that_one_link_has_too_does_not() -> None:
    def rate(kind: str, setup: Setup, size: int) -> float:
        is_low = size == 1 << 14 or (size == 1 << 12 and setup == NUMBERED and kind == "guest")
        return (0.9 if is_low else 1.0) * 1e6 * setup[0]

    found = curves(rate)
    assert own_dips(found, "guest") == [1 << 12]
    assert own_dips(found, "native") == []
    assert failed(found) == ["guest: dips over 2 links that one has not"]


def test_too_little_of_two_links_and_below_native_fail() -> None:
    def rate(kind: str, setup: Setup, size: int) -> float:
        part = 0.9 if kind == "container" and setup == NUMBERED and size >= LARGE else 1.0
        return part * 1e6 * setup[0]

    assert failed(curves(rate)) == [
        "container: NetPIPE over 2 links, of 2 x one",
        "container: messages of 64 KiB and more, 5 % below native",
    ]


def test_of_curves_that_do_not_count_nothing_holds() -> None:
    even = curves(lambda _, setup, size: 1e6 * setup[0])
    # Two of a container's over one link are left; of what is native over two none is.
    few = [c for c in even if (c.kind, c.setup) != ("container", ONE)]
    few += [c for c in even if (c.kind, c.setup) == ("container", ONE)][:2]
    told = {claim.id: claim.value for claim in claims(few, quick=False)}
    assert told["container: dips over 2 links that one has not"] is None
    assert told["guest: dips over 2 links that one has not"] == 0
    alone = [c for c in even if (c.kind, c.setup) != ("native", NUMBERED)]
    told = {claim.id: claim.value for claim in claims(alone, quick=False)}
    assert told["guest: messages of 64 KiB and more, 5 % below native"] is None
    assert not any(claim.holds for claim in claims([], quick=False))
    assert len(claims([], quick=False)) == 8
