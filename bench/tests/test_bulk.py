"""What the front end of bulk frames says, and how it is judged. Nothing is started."""

from __future__ import annotations

import json

import pytest

from bench.bulk import TARGETS, came, claims
from bench.pairs import Pair
from lab.net import Failed

_TOLD = {
    "frames": 100,
    "bytes": 6_516_000,
    "seconds": 0.5,
    "gbit_s": 0.104,
    "lost": 3,
    "wrong": 0,
    "checked": 2,
}


def test_the_rate_is_of_the_payload() -> None:
    found = came("bulk: begun\n" + json.dumps(_TOLD))
    assert found.bps == pytest.approx(6_516_000 * 8 / 0.5)
    assert (found.lost, found.checked) == (3, 2)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"wrong": 1}, "1 frames .* wrong"),
        ({"frames": 0}, "read whole"),
        ({"checked": 0}, "read whole"),
    ],
)
def test_a_run_without_whole_frames_is_none(changed: dict[str, int], why: str) -> None:
    with pytest.raises(Failed, match=why):
        came(json.dumps(_TOLD | changed))


def test_who_says_no_json_is_quoted() -> None:
    with pytest.raises(Failed, match="no frame comes"):
        came("bulk: begun\nbulk: no frame comes after 7")


def test_each_peer_is_judged_by_its_own_pairs() -> None:
    pairs = {
        "testpmd": [Pair(94, 100)],
        "tap": [Pair(94, 30), Pair(94, 30), Pair(1, 30, valid=False)],
    }
    judged = {claim.id: claim for claim in claims(pairs)}
    assert judged.keys() == {f"vhost.bulk-vs-{name}" for name in TARGETS}
    assert not judged["vhost.bulk-vs-testpmd"].holds
    assert judged["vhost.bulk-vs-tap"].holds


def test_a_run_without_valid_pairs_holds_nothing() -> None:
    assert not any(c.holds for c in claims({n: [Pair(9, 1, valid=False)] for n in TARGETS}))
