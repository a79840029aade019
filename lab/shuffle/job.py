"""What a MapReduce job asks of a network, as plain data, and the least time it can take.

A job is what Hadoop 1 makes of it (and MRemu's traces tell of it): each host runs its maps, some at
a time; reducers start once some maps have ended, wait for a while, and copy from each map that has
ended the part that is theirs, some copies at a time and never two from one host; a reducer
that has all its parts sorts and reduces for a while.

Hosts are those of the trace, by any names. Times are in seconds, sizes in bytes of payload.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, replace

from lab import wire

#: What TCP's payload takes on the wire in full frames, VLAN tag included.
WIRE_OVER_PAYLOAD = wire.FULL_BYTES / wire.TCP.payload_bytes


@dataclass(frozen=True)
class Map:
    """A map task: `seconds` of work, whose output is there at the end of them."""

    name: str
    host: str
    seconds: float


@dataclass(frozen=True)
class Reduce:
    """A reduce task. It starts when `after_maps` maps have ended, copies `wait_s` later at the
    earliest, and has `seconds` of work once it has everything."""

    name: str
    host: str
    after_maps: int
    wait_s: float
    seconds: float


@dataclass(frozen=True)
class Copy:
    """What one reducer fetches from one map."""

    mapper: str
    reducer: str
    nbytes: int


@dataclass(frozen=True)
class Job:
    """A whole job. Maps start in their order on each host, so do reduces; each reducer's copies are
    begun in their order as far as their maps have ended."""

    name: str
    hosts: tuple[str, ...]
    map_slots: int
    reduce_slots: int
    parallel_copies: int
    maps: tuple[Map, ...]
    reduces: tuple[Reduce, ...]
    copies: tuple[Copy, ...]

    def scaled(self, nbytes: float, seconds: float) -> Job:
        """The same job with all sizes and all times multiplied. A copy has a byte at least."""
        return replace(
            self,
            maps=tuple(replace(m, seconds=m.seconds * seconds) for m in self.maps),
            reduces=tuple(
                replace(r, wait_s=r.wait_s * seconds, seconds=r.seconds * seconds)
                for r in self.reduces
            ),
            copies=tuple(replace(c, nbytes=max(1, round(c.nbytes * nbytes))) for c in self.copies),
        )

    def host_of(self) -> dict[str, str]:
        """Where each task runs."""
        tasks: list[Map | Reduce] = [*self.maps, *self.reduces]
        return {task.name: task.host for task in tasks}

    def map_ends(self) -> dict[str, float]:
        """When each map ends, in seconds since the start: no network is in that."""
        ends = {}
        for host in self.hosts:
            slots = [0.0] * self.map_slots
            for task in (m for m in self.maps if m.host == host):
                ends[task.name] = heapq.heappop(slots) + task.seconds
                heapq.heappush(slots, ends[task.name])
        return ends


@dataclass(frozen=True)
class Floor:
    """No network with links of `link_bps` plays the job faster. `wire_s`: what the busiest link,
    one direction of `host`'s, needs for its `payload_bytes`. `job_s`: the whole job's least time,
    with what comes before the first byte of a link and after its last."""

    link_bps: float
    host: str
    direction: str
    payload_bytes: int
    wire_s: float
    job_s: float


def floor(job: Job, link_bps: float, wire_over_payload: float = WIRE_OVER_PAYLOAD) -> Floor | None:
    """The floor that links of a rate set, in both directions each; copies within a host take no
    link. None where nothing crosses the network. Acknowledgements are not counted."""
    where = job.host_of()
    links: dict[tuple[str, str], list[Copy]] = {}
    for copy in job.copies:
        sender, receiver = where[copy.mapper], where[copy.reducer]
        if sender != receiver:
            links.setdefault((sender, "egress"), []).append(copy)
            links.setdefault((receiver, "ingress"), []).append(copy)
    if not links:
        return None

    def wire_s(copies: Iterable[Copy]) -> float:
        return 8 * wire_over_payload * sum(c.nbytes for c in copies) / link_bps

    ends = job.map_ends()
    in_order = sorted(ends.values())
    begins = {
        r.name: (in_order[r.after_maps - 1] if r.after_maps else 0) + r.wait_s for r in job.reduces
    }
    work = {r.name: r.seconds for r in job.reduces}
    job_s = max(
        min(max(ends[c.mapper], begins[c.reducer]) for c in copies)
        + wire_s(copies)
        + min(work[c.reducer] for c in copies)
        for copies in links.values()
    )
    (host, direction), copies = max(links.items(), key=lambda link: wire_s(link[1]))
    payload = sum(c.nbytes for c in copies)
    return Floor(link_bps, host, direction, payload, wire_s(copies), job_s)
