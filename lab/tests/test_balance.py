"""What httperf says is read, and the arithmetic of a shared link is right."""

from __future__ import annotations

import pytest

from lab.balance import capacity_per_s, parse, shared_mean_s
from lab.experiments.lb_fig3 import Cell, claims
from lab.net import Failed

SAID = """\
httperf --timeout=10 --client=0/1 --server=10.1.0.100 --port=80 --uri=/object --rate=5 ...
Maximum connect burst length: 1

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
    assert calls.honest_mean_ms == pytest.approx((31.2 * 95 + 5 * 10_000) / 100)
    with pytest.raises(Failed, match="Reply status"):
        parse(SAID.replace("Reply status", "Replies"))


def test_the_arithmetic_of_the_published_link() -> None:
    assert capacity_per_s(1e9, 1_000_000) == pytest.approx(117.6, rel=0.01)
    # One after the other, below what the link carries.
    assert shared_mean_s(100, 10, 20) == pytest.approx(1 / 20)
    # All at once: they share to the end.
    assert shared_mean_s(100, 1e9, 20) == pytest.approx(100 / 20, rel=0.01)
    # Two at once, and the second halfway through the first: 1.5 and 1.5 times the time alone.
    assert shared_mean_s(2, 2, 1) == pytest.approx(1.5)


def test_a_refusal_below_the_knee_does_not_hold() -> None:
    calls = parse(SAID)
    cell = Cell({"way": "p2c", "load": 0.76, "run": 0}, calls, [48, 47], 0.5, 0.0, None, None)
    base = Cell({**cell.labels, "way": "round-robin"}, calls, [50, 50], 0.5, 0.0, None, None)
    others = [
        Cell({**c.labels, "load": load}, calls, c.shares, 0.5, 0.0, None, None)
        for load in (0.93, 4.2)
        for c in (cell, base)
    ]
    more = [
        Cell({"way": way, "load": load, "run": 0}, calls, [95, 0], 0.5, 0.0, None, None)
        for way in ("least-inflight", "loadavg")
        for load in (0.76, 0.93, 4.2)
    ]
    made = {c.id: c for c in claims([cell, base, *others, *more])}
    assert not made["p2c: failed below 95 % of the link"].holds
    assert made["p2c: mean at 76 % of the link"].value == pytest.approx(1.0)
    assert made["loadavg: to one server in a burst"].value == 100
    assert made["round-robin: servers differ by"].holds
