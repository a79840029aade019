"""When what of a job begins: a state machine without I/O or clock.

`advance` is told the time and says which copies begin now; `copied` and `failed` tell it what
became of them; `due` is when something happens next without them. All times are seconds since the
job's start. A task begins when its slot became free, not when somebody looked, so that a machine
that looks late does not make the job's own times longer.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from lab.shuffle.job import Copy, Job, Reduce

#: A copy that failed begins again after this.
RETRY_S = 1.0


@dataclass
class Reducer:
    """A reduce task on its way. Times are None until they have come."""

    task: Reduce
    #: Not begun yet, in order.
    wanted: list[Copy]
    start_s: float | None = None
    first_copy_s: float | None = None
    shuffled_s: float | None = None
    end_s: float | None = None
    fetching: bool = False

    def __post_init__(self) -> None:
        #: Hosts it copies from now.
        self.sources: set[str] = set()
        #: Failed copies that wait to begin again.
        self.waiting = 0


class Progress:
    """A job being played."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.map_end_s: dict[str, float] = {}
        self.failures = 0
        self.copies_done = 0
        self.bytes_done = 0
        wanted: dict[str, list[Copy]] = {r.name: [] for r in job.reduces}
        for copy in job.copies:
            wanted[copy.reducer].append(copy)
        self.reducers = {r.name: Reducer(r, wanted[r.name]) for r in job.reduces}
        self._where = job.host_of()
        self._maps = {h: deque(m for m in job.maps if m.host == h) for h in job.hosts}
        self._reduces = {h: deque(r for r in job.reduces if r.host == h) for h in job.hosts}
        self._free = dict.fromkeys(job.hosts, job.reduce_slots)
        #: (when, number, what, name or copy): what ends by itself.
        self._events: list[tuple[float, int, str, str | Copy]] = []
        self._numbers = 0
        #: Reducers that may have something to begin since they were last looked at, in order.
        self._changed: dict[str, Reducer] = {}
        for host in job.hosts:
            for _ in range(job.map_slots):
                self._next_map(host, 0.0)
        self._start_reducers(0.0)

    def is_done(self) -> bool:
        """Whether all reduces have ended."""
        return all(r.end_s is not None for r in self.reducers.values())

    def due(self) -> float | None:
        """When `advance` has something to do, if no copy ends before."""
        return self._events[0][0] if self._events else None

    def advance(self, now: float) -> list[Copy]:
        """Ends what has had its time; the copies that begin now."""
        while self._events and self._events[0][0] <= now:
            when, _, what, who = heapq.heappop(self._events)
            if what == "map":
                assert isinstance(who, str)
                self.map_end_s[who] = when
                self._next_map(self._where[who], when)
                self._start_reducers(when)
                self._changed |= self.reducers
            elif what == "waited":
                assert isinstance(who, str)
                self._begin_fetching(self.reducers[who], when)
            elif what == "retry":
                assert isinstance(who, Copy)
                self.reducers[who.reducer].wanted.insert(0, who)
                self.reducers[who.reducer].waiting -= 1
                self._changed[who.reducer] = self.reducers[who.reducer]
            else:
                assert isinstance(who, str)
                self._end_reducer(self.reducers[who], when)
        begun = []
        changed, self._changed = self._changed, {}
        for reducer in changed.values():
            if reducer.fetching:
                copies = self._fetchable(reducer)
                if copies and reducer.first_copy_s is None:
                    reducer.first_copy_s = now
                begun += copies
        return begun

    def copied(self, now: float, copy: Copy) -> None:
        """A copy has arrived whole."""
        self.copies_done += 1
        self.bytes_done += copy.nbytes
        reducer = self.reducers[copy.reducer]
        reducer.sources.remove(self._where[copy.mapper])
        self._changed[copy.reducer] = reducer
        self._maybe_shuffled(reducer, now)

    def failed(self, now: float, copy: Copy) -> None:
        """A copy broke; all of it is wanted again after a while."""
        self.failures += 1
        reducer = self.reducers[copy.reducer]
        reducer.sources.remove(self._where[copy.mapper])
        reducer.waiting += 1
        self._changed[copy.reducer] = reducer
        self._at(now + RETRY_S, "retry", copy)

    def _fetchable(self, reducer: Reducer) -> list[Copy]:
        begun: list[Copy] = []
        left: list[Copy] = []
        for copy in reducer.wanted:
            source = self._where[copy.mapper]
            full = len(reducer.sources) >= self.job.parallel_copies
            if full or source in reducer.sources or copy.mapper not in self.map_end_s:
                left.append(copy)
            else:
                reducer.sources.add(source)
                begun.append(copy)
        reducer.wanted = left
        return begun

    def _next_map(self, host: str, when: float) -> None:
        if self._maps[host]:
            task = self._maps[host].popleft()
            self._at(when + task.seconds, "map", task.name)

    def _start_reducers(self, when: float) -> None:
        for host, waiting in self._reduces.items():
            while waiting and self._free[host] and waiting[0].after_maps <= len(self.map_end_s):
                self._free[host] -= 1
                task = waiting.popleft()
                self.reducers[task.name].start_s = when
                self._at(when + task.wait_s, "waited", task.name)

    def _begin_fetching(self, reducer: Reducer, when: float) -> None:
        reducer.fetching = True
        self._changed[reducer.task.name] = reducer
        self._maybe_shuffled(reducer, when)

    def _maybe_shuffled(self, reducer: Reducer, now: float) -> None:
        if not (reducer.wanted or reducer.sources or reducer.waiting):
            reducer.fetching = False
            reducer.shuffled_s = now
            self._at(now + reducer.task.seconds, "reduce", reducer.task.name)

    def _end_reducer(self, reducer: Reducer, when: float) -> None:
        reducer.end_s = when
        self._free[reducer.task.host] += 1
        self._start_reducers(when)

    def _at(self, when: float, what: str, who: str | Copy) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (when, self._numbers, what, who))
