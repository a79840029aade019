"""Plays a job over real TCP: one process, one thread, all endpoints.

A socket stays in the network namespace in which it was made (network_namespaces(7)), so this
process visits each endpoint's namespace only to make its sockets, and then serves and fetches for
all of them in one loop: tens of endpoints cost one interpreter, and the job's tracker is a
function call away. Maps and reduces are waited for, not computed.

A copy is one connection, as in Hadoop: the reducer connects to the mapper's host and asks with the
number of bytes it wants (8 bytes, big endian), which the other side sends. Bytes are sent from one
page-cache file (sendfile(2)) and thrown away on arrival (MSG_TRUNC, tcp(7)), so that hardly any are
copied by this process.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lab.net import Failed, inside
from lab.shuffle.job import Copy, Job
from lab.shuffle.progress import Progress

_REQUEST = struct.Struct("!Q")
#: What is handed to the kernel, or taken from it, at once.
_CHUNK_BYTES = 1 << 20
#: A reader is not woken for less than this, but at the end: some 20 frames instead of one.
_WAKE_BYTES = 32 << 10
#: How long is slept at most before looking whether to stop.
_LOOK_S = 0.2


class Unplayable(RuntimeError):
    """An endpoint's sockets cannot be made; the text says which and why."""


@dataclass(frozen=True)
class Place:
    """Where a host of the job is: an IPv4 address of this machine, in a network namespace of
    `ip netns` or, with None, in this process's own."""

    name: str
    address: str
    netns: str | None = None


@dataclass
class _Fetch:
    """The reducer's side of a copy."""

    copy: Copy
    begun_s: float
    left: int
    asked: bool = False


@dataclass
class _Serve:
    """The mapper's side of one."""

    request: bytes = b""
    left: int = 0


class Replay:
    """One playing of a job. `places` has an entry for each of the job's hosts."""

    def __init__(self, job: Job, places: Mapping[str, Place]) -> None:
        self._job = job
        self._places = places
        self._where = job.host_of()
        self._largest = max((c.nbytes for c in job.copies), default=0)
        self._selector = selectors.DefaultSelector()
        self._servers: dict[str, tuple[str, int]] = {}
        self._sink = bytearray(_CHUNK_BYTES)
        self._copy_s: list[float] = []
        #: How much later than due this process looked, at most: a busy or stalled machine.
        self._latest_s = 0.0
        self._undo = contextlib.ExitStack()

    def play(self, timeout_s: float, stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Plays it to its end, for `timeout_s` at most, or until `stop()`; what happened."""
        with self._undo:
            self._undo.callback(self._selector.close)
            self._source = os.memfd_create("shuffle")
            self._undo.callback(os.close, self._source)
            os.write(self._source, bytes(_CHUNK_BYTES))
            for host in dict.fromkeys(m.host for m in self._job.maps):
                self._listen(host)
            cpu_s = time.process_time()
            self._start_s = time.monotonic()
            self._progress = Progress(self._job)
            self._loop(timeout_s, stop)
            ended_s = self._now()
            told = self._report(ended_s)
            return {**told, "cpu_s": time.process_time() - cpu_s}

    def _now(self) -> float:
        return time.monotonic() - self._start_s

    def _loop(self, timeout_s: float, stop: Callable[[], bool]) -> None:
        progress = self._progress
        while not progress.is_done() and (now := self._now()) < timeout_s and not stop():
            due = progress.due()
            if due is not None and due <= now:
                self._latest_s = max(self._latest_s, now - due)
            for copy in progress.advance(now):
                self._fetch(copy)
            if progress.is_done():
                break
            due = progress.due()
            wait = _LOOK_S if due is None else min(_LOOK_S, max(0.0, due - self._now()))
            for key, _ in self._selector.select(wait):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if isinstance(key.data, _Fetch):
                    self._go_on_fetching(sock, key.data)
                elif isinstance(key.data, _Serve):
                    self._go_on_serving(sock, key.data)
                else:
                    self._accept(sock)

    # --- the mapper's side --------------------------------------------------------------

    def _listen(self, host: str) -> None:
        place = self._places[host]
        with self._inside(place):
            try:
                listener = socket.create_server((place.address, 0), backlog=1024)
            except OSError as error:
                raise Unplayable(
                    f"{place.name}: cannot listen on {place.address}: {error}"
                ) from error
        listener.setblocking(False)
        self._undo.callback(listener.close)
        self._servers[host] = listener.getsockname()
        self._selector.register(listener, selectors.EVENT_READ, None)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it gave up meanwhile
            sock, _ = listener.accept()
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, _Serve())

    def _go_on_serving(self, sock: socket.socket, serve: _Serve) -> None:
        try:
            if len(serve.request) < _REQUEST.size:
                got = sock.recv(_REQUEST.size - len(serve.request))
                serve.request += got
                if len(serve.request) < _REQUEST.size:
                    if not got:
                        self._drop(sock)
                    return
                (serve.left,) = _REQUEST.unpack(serve.request)
                if serve.left > self._largest:  # nobody of ours asks so much
                    self._drop(sock)
                    return
                self._selector.modify(sock, selectors.EVENT_WRITE, serve)
            size = min(serve.left, _CHUNK_BYTES)
            serve.left -= os.sendfile(sock.fileno(), self._source, 0, size)
        except BlockingIOError:
            return
        except OSError:
            self._drop(sock)  # the reducer sees it too, and asks again
            return
        if serve.left == 0:
            self._drop(sock)

    # --- the reducer's side -------------------------------------------------------------

    def _fetch(self, copy: Copy) -> None:
        place = self._places[self._where[copy.reducer]]
        fetch = _Fetch(copy, self._now(), copy.nbytes)
        try:
            with self._inside(place):
                sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:  # too many open files: others will end
            self._progress.failed(self._now(), copy)
            return
        try:
            # The endpoint's own address, also where one namespace has several.
            sock.bind((place.address, 0))
            with contextlib.suppress(BlockingIOError):
                sock.connect(self._servers[self._where[copy.mapper]])
        except OSError:
            sock.close()
            self._progress.failed(self._now(), copy)
            return
        self._selector.register(sock, selectors.EVENT_WRITE, fetch)

    def _go_on_fetching(self, sock: socket.socket, fetch: _Fetch) -> None:
        try:
            if not fetch.asked:
                sock.send(_REQUEST.pack(fetch.left))  # fails where the connection did
                fetch.asked = True
                lowest = min(fetch.left, _WAKE_BYTES)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, lowest)
                self._selector.modify(sock, selectors.EVENT_READ, fetch)
                return
            got = sock.recv_into(self._sink, min(fetch.left, _CHUNK_BYTES), socket.MSG_TRUNC)
        except BlockingIOError:
            return
        except OSError:
            got = 0
        fetch.left -= got
        if 0 < fetch.left < _WAKE_BYTES and got:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, fetch.left)
        if fetch.left and got:
            return
        self._drop(sock)
        now = self._now()
        if fetch.left:
            self._progress.failed(now, fetch.copy)
        else:
            self._copy_s.append(now - fetch.begun_s)
            self._progress.copied(now, fetch.copy)

    def _drop(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        sock.close()

    @contextlib.contextmanager
    def _inside(self, place: Place) -> Iterator[None]:
        """In an endpoint's namespace meanwhile."""
        with contextlib.ExitStack() as visit:
            if place.netns is not None:
                try:
                    visit.enter_context(inside(place.netns))
                except (OSError, Failed) as error:
                    text = f"{place.name}: cannot enter network namespace {place.netns}: {error}"
                    raise Unplayable(text) from error
            yield

    # --- telling ------------------------------------------------------------------------

    def _report(self, ended_s: float) -> dict[str, Any]:
        """Completion and phases in seconds since the start, sizes in bytes of payload."""
        progress, job = self._progress, self._job
        reducers = progress.reducers.values()
        ends = [r.end_s for r in reducers if r.end_s is not None]
        maps = progress.map_end_s.values()
        firsts = [r.first_copy_s for r in reducers if r.first_copy_s is not None]
        shuffled = [r.shuffled_s for r in reducers if r.shuffled_s is not None]
        all_shuffled = len(shuffled) == len(job.reduces)
        local = sum(c.nbytes for c in job.copies if self._where[c.mapper] == self._where[c.reducer])
        return {
            "finished": progress.is_done(),
            "completion_s": max(ends) if progress.is_done() else None,
            "played_s": ended_s,
            "phases": {
                "map": [0.0, max(maps) if len(maps) == len(job.maps) else None],
                "shuffle": [min(firsts, default=None), max(shuffled) if all_shuffled else None],
                "reduce": [min(shuffled, default=None), max(ends) if progress.is_done() else None],
            },
            "bytes": {
                "wanted": sum(c.nbytes for c in job.copies),
                "copied": progress.bytes_done,
                "within_hosts": local,
            },
            "copies": {
                "wanted": len(job.copies),
                "copied": progress.copies_done,
                "failed": progress.failures,
                "seconds": _quantiles(self._copy_s),
            },
            "reducers": [
                {
                    "name": r.task.name,
                    "place": self._places[r.task.host].name,
                    "start_s": r.start_s,
                    "shuffled_s": r.shuffled_s,
                    "end_s": r.end_s,
                }
                for r in reducers
            ],
            "latest_s": self._latest_s,
        }


def _quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    last = len(ordered) - 1
    return {f"p{p}": ordered[round(p / 100 * last)] for p in (0, 50, 99, 100)}
