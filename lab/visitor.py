"""Who visits a service, and servers that answer: does each request get its answer?

A visitor begins `--per-s` connections a second, each of one request; with several addresses in
turn, as a client does that knows the servers by itself. Besides it keeps `--keep` connections open
and asks on each every `--keep-every` seconds. A request *fails* where it is refused, reset, or not
answered within `--patience` seconds. A server answers each line with its name, after `--work-ms`.
The visitor stops by itself, then writes one JSON object; what it has so far is in lines of its log.

    python -m lab.visitor serve --address 10.1.0.2 --port 8080 --name web1
    python -m lab.visitor visit --to 10.1.0.100:80 --per-s 100 --keep 10 --seconds 5
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from lab.sender import LONGEST_S, READY

#: Between two lines of the log.
TICK_S = 0.25
#: A request is slow that takes longer.
SLOW_S = 0.5
#: What a line of the log begins with.
TICK = "so far: "


@dataclass
class Visits:
    """What became of requests: by who answered, or why nobody did."""

    answered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    kept_answered: int = 0
    kept_failed: int = 0
    slowest_s: float = 0.0
    #: Of all that were answered, from the begin of the connection on.
    total_s: float = 0.0
    #: Requests that were slow or failed: when each began, from the first one on.
    slow_at_s: list[float] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "answered": dict(self.answered),
            "failed": dict(self.failed),
            "kept_answered": self.kept_answered,
            "kept_failed": self.kept_failed,
            "slowest_s": self.slowest_s,
            "total_s": self.total_s,
            "slow_at_s": self.slow_at_s,
        }


async def serve(address: str, port: int, name: str, work_s: float) -> None:
    """Answers until it is killed. At SIGUSR1 it listens no more, and goes on with what it has."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.readline():
                await asyncio.sleep(work_s)
                writer.write(f"{name}\n".encode())
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, address, port, backlog=1024)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, server.close)
    print(READY, file=sys.stderr, flush=True)
    await asyncio.Event().wait()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    writer.write(b"who\n")
    await writer.drain()
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise ConnectionResetError("no answer")
    return line.decode().strip()


async def once(visits: Visits, host: str, port: int, patience_s: float, start: float) -> None:
    """One connection, one request. `start` is when the first one began."""
    began = time.monotonic()
    is_slow = True
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(patience_s):
            reader, writer = await asyncio.open_connection(host, port)
            visits.answered[await _ask(reader, writer)] += 1
            took = time.monotonic() - began
            visits.slowest_s = max(visits.slowest_s, took)
            visits.total_s += took
            is_slow = took > SLOW_S
    except (OSError, TimeoutError) as error:
        visits.failed[type(error).__name__] += 1
    finally:
        if is_slow:
            visits.slow_at_s.append(began - start)
        if writer is not None:
            writer.close()


async def keep(
    visits: Visits, host: str, port: int, patience_s: float, until_s: float, every_s: float
) -> None:
    """One connection, asked again and again; when it is broken it stays so."""
    try:
        async with asyncio.timeout(patience_s):
            reader, writer = await asyncio.open_connection(host, port)
        while time.monotonic() < until_s:
            async with asyncio.timeout(patience_s):
                await _ask(reader, writer)
            visits.kept_answered += 1
            await asyncio.sleep(every_s)
        writer.close()
    except (OSError, TimeoutError):
        visits.kept_failed += 1


async def visit(
    to: list[tuple[str, int]],
    per_s: float,
    kept: int,
    patience_s: float,
    seconds: float,
    kept_every_s: float = 0.1,
) -> Visits:
    """Visits for `seconds`, and waits for the last answers."""
    visits = Visits()
    print(READY, file=sys.stderr, flush=True)
    start = time.monotonic()
    targets = itertools.cycle(to)
    tasks = [
        asyncio.create_task(keep(visits, *next(targets), patience_s, start + seconds, kept_every_s))
        for _ in range(kept)
    ]
    begun, shown_s = 0, 0.0
    while (elapsed := time.monotonic() - start) < seconds:
        while begun < elapsed * per_s:
            tasks.append(asyncio.create_task(once(visits, *next(targets), patience_s, start)))
            begun += 1
        if elapsed >= shown_s:
            print(TICK + json.dumps(visits.told()), file=sys.stderr, flush=True)
            shown_s += TICK_S
        await asyncio.sleep(0.5 / per_s)
    await asyncio.gather(*tasks)
    return visits


def last_tick(log: str) -> dict[str, Any] | None:
    """What a visitor had when it last said so."""
    lines = [line for line in log.splitlines() if line.startswith(TICK)]
    for line in reversed(lines):
        # The last one may be half written.
        with contextlib.suppress(json.JSONDecodeError):
            told: dict[str, Any] = json.loads(line.removeprefix(TICK))
            return told
    return None


def _end(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.visitor", description=__doc__.split("\n")[0])
    roles = parser.add_subparsers(dest="role", required=True)
    server = roles.add_parser("serve")
    for name in ("address", "name"):
        server.add_argument(f"--{name}", required=True)
    server.add_argument("--port", type=int, required=True)
    server.add_argument("--work-ms", type=float, default=0)
    visitor = roles.add_parser("visit")
    visitor.add_argument("--to", type=_end, action="append", required=True, help="ADDRESS:PORT")
    visitor.add_argument("--per-s", type=float, required=True)
    visitor.add_argument("--keep", type=int, default=0)
    visitor.add_argument("--keep-every", type=float, default=0.1)
    visitor.add_argument("--patience", type=float, default=2.0)
    visitor.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    if args.role == "serve":
        asyncio.run(serve(args.address, args.port, args.name, args.work_ms / 1000))
        return 0
    if not 0 < args.seconds <= LONGEST_S or not 0 < args.per_s <= 1000:
        parser.error(f"at most {LONGEST_S:g} s and 1000 connections a second")
    how = (args.per_s, args.keep, args.patience, args.seconds, args.keep_every)
    visits = asyncio.run(visit(args.to, *how))
    print(json.dumps(visits.told()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
