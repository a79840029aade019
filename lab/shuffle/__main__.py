"""`python -m lab.shuffle`: plays a MapReduce job's transfers over real TCP; how long it took.

Exit status: 0 when the job finished, 1 when it did not in its time, 2 when it could not be played.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from lab.shuffle import mremu
from lab.shuffle.generate import Shape, generate
from lab.shuffle.job import Job, floor
from lab.shuffle.mremu import BadFile, Fields
from lab.shuffle.replay import Place, Replay, Unplayable

_EPILOG = """
PLACES is a JSON file that says where the job's hosts are: network namespaces of `ip netns`, or
none for this process's own network, with an IPv4 address each:

  [{"name": "a", "netns": "a", "address": "10.0.0.1"}, {"name": "b", "address": "127.0.0.2"}]

It needs as many places as the job has hosts; of more, it takes some at equal distances. The
result is one JSON object on standard output: completion_s; the phases' begin and end; bytes and
copies; and as `floor` the time below which no network with links of --link-rate can come: what
the busiest link needs (wire_s), and the whole job then (job_s).

examples:
  python -m lab.shuffle --trace job_trace.json --places PLACES --bytes-factor 0.03
  python -m lab.shuffle --generate 1 --hosts 4 --places PLACES --bytes-factor 0.001
  python -m lab.shuffle --trace job_trace.json --link-rate 1e9        (the floor only)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads, plays, tells."""
    args = _arguments(arguments)
    try:
        job = mremu.read(args.trace) if args.trace else generate(args.generate, _shape(args))
        job = job.scaled(args.bytes_factor, args.time_factor)
        places = None if args.places is None else read_places(args.places)
        told = {"job": _describe(job), "floor": _floor(job, args.link_rate)}
        if places is not None:
            _allow_files()
            told |= Replay(job, spread(job, places)).play(args.timeout, _Stop())
    except (BadFile, Unplayable) as error:
        print(f"lab.shuffle: {error}", file=sys.stderr)
        return 2
    print(json.dumps(told, indent=1))
    return 0 if told.get("finished", True) else 1


def read_places(path: Path) -> list[Place]:
    """The places of a file, in order. Raises `BadFile`."""
    value = mremu.load(path)
    if not isinstance(value, list):
        raise BadFile(f"{path}: not a list of places")
    places = []
    for i, item in enumerate(value):
        fields = Fields(path, f"[{i}]", item)
        netns = fields.text("netns") if isinstance(item, dict) and "netns" in item else None
        places.append(Place(fields.text("name"), fields.text("address"), netns))
    return places


def spread(job: Job, places: Sequence[Place]) -> dict[str, Place]:
    """A place for each host of a job, at equal distances. Raises `Unplayable` if they are few."""
    if len(places) < len(job.hosts):
        have = f"{len(job.hosts)} hosts, but there are {len(places)} places"
        raise Unplayable(f"job {job.name} has {have}: name more of them")
    return {host: places[i * len(places) // len(job.hosts)] for i, host in enumerate(job.hosts)}


def _allow_files() -> None:
    """A copy has two sockets: as many files as one may have, instead of the usual 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Stop:
    """Whether SIGTERM or SIGINT came."""

    def __init__(self) -> None:
        self._wanted = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def __call__(self) -> bool:
        return self._wanted

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._wanted = True


def _describe(job: Job) -> dict[str, Any]:
    return {
        "name": job.name,
        "hosts": len(job.hosts),
        "maps": len(job.maps),
        "reduces": len(job.reduces),
        "copies": len(job.copies),
        "map_slots": job.map_slots,
        "reduce_slots": job.reduce_slots,
        "parallel_copies": job.parallel_copies,
    }


def _floor(job: Job, link_bps: float | None) -> dict[str, Any] | None:
    least = None if link_bps is None else floor(job, link_bps)
    return None if least is None else asdict(least)


def _shape(args: argparse.Namespace) -> Shape:
    return Shape(args.hosts, args.maps, args.map_slots, args.parallel_copies)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lab.shuffle",
        description="Plays a MapReduce job's transfers over real TCP.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, help="a job trace of MRemu")
    source.add_argument("--generate", type=int, metavar="SEED", help="a job made from a seed")
    parser.add_argument(
        "--places", type=Path, help="where the hosts are; without it, the floor only"
    )
    parser.add_argument("--bytes-factor", type=_positive, default=1.0, help="of all sizes")
    parser.add_argument("--time-factor", type=_positive, default=1.0, help="of all tasks' times")
    parser.add_argument("--link-rate", type=_positive, help="bit/s on the wire, for the floor")
    parser.add_argument("--timeout", type=_positive, default=600.0, help="seconds (600)")
    made = parser.add_argument_group("of a generated job")
    made.add_argument("--hosts", type=_count, default=Shape.hosts)
    made.add_argument("--maps", type=_count, default=Shape.maps_per_host, help="of each host")
    made.add_argument("--map-slots", type=_count, default=Shape.map_slots)
    made.add_argument("--parallel-copies", type=_count, default=Shape.parallel_copies)
    return parser.parse_args(arguments)


def _positive(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 10_000:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to 10000")
    return number


if __name__ == "__main__":
    sys.exit(main())
