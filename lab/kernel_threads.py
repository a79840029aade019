"""The kernel's threads, off the processor of a worker: DAMON, compaction and work queues keep one
for 4 to 8 ms (EEVDF).

They are the machine's, not a namespace's. What they were is saved in a file of the lab's directory
before anything is moved, for whoever cleans up after a killed lab. Labs side by side share them:
each saves what they were before the first of them, and the last one puts them back.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

#: The file in a lab's directory.
SAVED = "kernel_threads"
#: Of work queues' threads that are bound to no processor (workqueue.rst).
WORKQUEUES = Path("/sys/devices/virtual/workqueue/cpumask")
_PROC = Path("/proc")
_KTHREADD = "2"  # parent of all kernel threads


@dataclass
class Saved:
    """What threads and work queues were allowed."""

    #: By process id and when it started, in ticks since the boot: ids are used anew.
    threads: dict[str, list[int]] = field(default_factory=dict)
    #: As the kernel writes it; None where it does not tell.
    workqueues: str | None = None

    @classmethod
    def read(cls, path: Path) -> Saved:
        """Of a file; nothing of one that a lab that was killed has not written whole."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return cls()

    def write(self, path: Path) -> None:
        """To a file."""
        path.write_text(json.dumps(asdict(self)))

    def before(self, later: Saved) -> Saved:
        """What was before both, of which this was saved first."""
        workqueues = later.workqueues if self.workqueues is None else self.workqueues
        return Saved({**later.threads, **self.threads}, workqueues)


def move(core: int, own: Path, beside: Sequence[Path]) -> None:
    """Moves them off a processor, as far as they may be moved, and saves in `own` what they were.
    `beside` are the files of other labs that run. Nothing is moved where that is not allowed, as in
    a user namespace."""
    threads = {}
    for thread in _threads():
        # Some have ended, or are bound to a processor.
        with contextlib.suppress(OSError):
            allowed = os.sched_getaffinity(_pid(thread))
            if core in allowed and len(allowed) > 1:
                threads[thread] = sorted(allowed)
    found = Saved(threads, _workqueues())
    saved = found
    for other in beside:
        saved = Saved.read(other).before(saved)
    saved.write(own)
    for thread, allowed_now in threads.items():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(_pid(thread), set(allowed_now) - {core})
    others = processors(found.workqueues or "") - {core}
    if others:
        with contextlib.suppress(OSError):
            WORKQUEUES.write_text(mask(others))


def put_back(own: Path, beside: Sequence[Path]) -> None:
    """Undoes `move`, unless other labs run that have moved them too: the last one does it."""
    if not own.is_file():
        return
    saved = Saved.read(own)
    own.unlink()
    for other in beside:
        saved.before(Saved.read(other)).write(other)
    if beside:
        return
    running = set(_threads())
    for thread, allowed in saved.threads.items():
        if thread in running:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(_pid(thread), allowed)
    if saved.workqueues is not None:
        with contextlib.suppress(OSError):
            WORKQUEUES.write_text(saved.workqueues)


def mask(processors: Iterable[int]) -> str:
    """As the kernel reads it: hexadecimal, the highest first, a comma after each 32 bits."""
    bits = sum(1 << processor for processor in processors)
    words: list[int] = []
    while bits or not words:
        words.append(bits & 0xFFFF_FFFF)
        bits >>= 32
    first, *rest = reversed(words)
    return ",".join([f"{first:x}", *(f"{word:08x}" for word in rest)])


def processors(mask: str) -> set[int]:
    """Of a mask as the kernel writes it."""
    bits = int(mask.replace(",", "") or "0", 16)
    return {number for number in range(bits.bit_length()) if bits >> number & 1}


def _threads() -> list[str]:
    """The kernel's threads that run."""
    found = []
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
        except OSError:  # it has ended meanwhile
            continue
        # The name in parentheses may hold anything. After it: state, parent (fields 3, 4), and when
        # it started (field 22).
        fields = stat.rsplit(")", 1)[1].split()
        if fields[1] == _KTHREADD:
            found.append(f"{folder.name}@{fields[19]}")
    return found


def _pid(thread: str) -> int:
    return int(thread.partition("@")[0])


def _workqueues() -> str | None:
    try:
        return WORKQUEUES.read_text().strip()
    except OSError:
        return None
