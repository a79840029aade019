"""What a visitor counts: by who answered, and why nobody did."""

from __future__ import annotations

import asyncio
import socket

from lab import visitor


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port: int = unused.getsockname()[1]
    return port


async def play(port: int, dead: int) -> visitor.Visits:
    server = asyncio.create_task(visitor.serve("127.0.0.1", port, "web1", 0.001))
    # Until it listens.
    for _ in range(200):
        visits = visitor.Visits()
        await visitor.once(visits, "127.0.0.1", port, 5, 0.0)
        if visits.answered:
            break
        await asyncio.sleep(0.01)
    to = [("127.0.0.1", port), ("127.0.0.1", dead)]
    visits = await visitor.visit(to, per_s=50, kept=2, patience_s=5, seconds=0.4)
    server.cancel()
    return visits


def test_requests_are_answered_or_fail_and_say_why() -> None:
    visits = asyncio.run(play(free_port(), free_port()))
    assert visits.answered["web1"] > 0
    assert visits.failed["ConnectionRefusedError"] > 0
    assert set(visits.answered) == {"web1"}
    assert visits.kept_answered > 0
    assert visits.kept_failed == 1
    told = visits.told()
    assert told["answered"] == dict(visits.answered)
    answered = visits.answered["web1"]
    assert visits.slowest_s <= told["total_s"] <= answered * visits.slowest_s
    # Each is worked on for a millisecond.
    assert told["total_s"] > 0.001 * answered


def test_the_last_whole_line_counts() -> None:
    log = f'{visitor.TICK}{{"answered": {{"a": 1}}}}\nnoise\n{visitor.TICK}{{"answ'
    assert visitor.last_tick(log) == {"answered": {"a": 1}}
    assert visitor.last_tick("lab: sending\n") is None


def test_who_failed_is_among_the_slow() -> None:
    visits = visitor.Visits()
    asyncio.run(visitor.once(visits, "127.0.0.1", free_port(), 5, 0.0))
    assert len(visits.slow_at_s) == 1
    assert visits.slow_at_s[0] > 0
