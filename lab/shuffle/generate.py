"""A shuffle job made from a seed, for where no trace is at hand.

It is of the kind that Gatekeeper's figures 6 and 7 were measured with (maps write random lines,
reduces count them): every host maps and reduces, so that every host talks to every other, and the
shuffle is long. Sizes and times are about those of the MRemu traces, for links of 1 Gbit/s: maps of
3.5 s, copies of 48 MB. The same seed makes the same job.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from lab.shuffle.job import Copy, Job, Map, Reduce


@dataclass(frozen=True)
class Shape:
    """What is generated. Each host sends about `host_bytes`, its own part included."""

    hosts: int = 26
    maps_per_host: int = 2
    map_slots: int = 1
    parallel_copies: int = 5
    map_s: float = 3.5
    reduce_s: float = 6.0
    host_bytes: int = 2_500_000_000


#: Tasks last, and copies weigh, their mean times 1 - SPREAD to 1 + SPREAD.
SPREAD = 0.2
#: Reducers start when this part of the maps has ended (Hadoop's `reduce.slowstart`).
SLOW_START = 0.05


def generate(seed: int, shape: Shape = Shape()) -> Job:
    """The job of a seed."""
    dice = random.Random(seed)

    def spread() -> float:
        return dice.uniform(1 - SPREAD, 1 + SPREAD)

    hosts = tuple(f"host{number}" for number in range(1, shape.hosts + 1))
    maps = tuple(
        Map(f"{host}-map{number}", host, shape.map_s * spread())
        for number in range(1, shape.maps_per_host + 1)
        for host in hosts
    )
    after = max(1, round(SLOW_START * len(maps)))
    reduces = tuple(
        Reduce(f"{host}-reduce", host, after, 0.0, shape.reduce_s * spread()) for host in hosts
    )
    nbytes = shape.host_bytes / shape.maps_per_host / shape.hosts
    copies = []
    for reducer in reduces:
        # Hadoop's reducers ask hosts in random order, so that they do not all ask one at once.
        order = list(maps)
        dice.shuffle(order)
        copies += [Copy(m.name, reducer.name, max(1, round(nbytes * spread()))) for m in order]
    return Job(
        name=f"generated-{seed}",
        hosts=hosts,
        map_slots=shape.map_slots,
        reduce_slots=1,
        parallel_copies=shape.parallel_copies,
        maps=maps,
        reduces=reduces,
        copies=tuple(copies),
    )
