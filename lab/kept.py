"""Results on disk of a run that takes long: one that was interrupted goes on where it was.

A line of JSON each, with its time, written as soon as it is there. Left out are lines of another
program, of another lab or of other parameters, those that were not written whole or were changed by
hand, and those of a run that ended: after that what is live is measured anew.

Any edit of the lab's Python beside its tests begins anew, as measuring and judging are not told
apart: nothing is taken that other code has measured. A run that goes on says in its report how many
of its results are of an earlier start, and since when.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from lab.cell import ATTEMPTS
from lab.programs import Builds

#: The sources that measure.
LAB = Path(__file__).resolve().parent

#: What a result is of: numbers and words.
Key = tuple[Any, ...]
Place = TypeVar("Place")


def digest(*of: object) -> str:
    """What is given, as a word: files by what is in them, all else as it is printed."""
    made_of = hashlib.sha256()
    for one in of:
        text = one.read_bytes() if isinstance(one, Path) else repr(one).encode()
        made_of.update(hashlib.sha256(text).digest())
    return made_of.hexdigest()


def digest_with_lab(*of: object) -> str:
    """What results are made of: the lab's own Python but its tests, and what is given (`digest`).
    Modules that an experiment does not use count too."""
    sources = sorted(path.relative_to(LAB) for path in LAB.rglob("*.py"))
    measuring = [path for path in sources if path.parts[0] != "tests"]
    return digest(*(part for path in measuring for part in (str(path), LAB / path)), *of)


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


class Kept:
    """Results by what they are of, in the file `path`; without one they last as long as this
    object. `made_of` stands for all that they depend on beside their keys (`digest_with_lab`).

    Nothing is kept any more once one of the programs `builds` was built anew.

    `read` makes a result of what JSON has of it; where it cannot, the line is left out. One that
    `is_void` is missing again when the run goes on, until it was played `ATTEMPTS` times."""

    def __init__(
        self,
        path: Path | None,
        made_of: str,
        read: Callable[[Any], Any] = lambda row: row,
        is_void: Callable[[Any], bool] = lambda result: False,
        builds: Builds | None = None,
    ) -> None:
        self.results: dict[Key, Any] = {}
        self._played: Counter[Key] = Counter()
        #: When those that were taken from the file were written, and all that were asked for.
        self._taken: dict[Key, str] = {}
        self._asked: set[Key] = set()
        self._path, self._made_of, self._read, self._is_void = path, made_of, read, is_void
        self._builds = builds
        self._parts: list[Kept] = []
        self._lock = threading.Lock()
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(errors="replace") if path.is_file() else ""
        left_out = sum(not self._take(line) for line in text.splitlines())
        if text and not text.endswith("\n"):
            # Else the next line would be part of one that was not written whole.
            self._append("")
        if left_out:
            why = "changed by hand, or not what is measured now"
            print(f"  lines of {path} left out: {left_out} ({why})", file=sys.stderr)
        if self.results:
            taken = f"results taken from {path}: {len(self.results)}"
            print(f"  {taken} (to begin anew, remove it)", file=sys.stderr)

    def _take(self, line: str) -> bool:
        """Takes a line of the file. False where it should be one of these results, and is not."""
        try:
            entry = json.loads(line)
            if entry["made_of"] != self._made_of:
                return True
        except (ValueError, LookupError, TypeError):
            return True
        if "ended" in entry:
            self.results.clear()
            self._played.clear()
            self._taken.clear()
            return True
        try:
            at, key = entry["at"], tuple(entry["key"])
            if entry["sum"] != _sum(at, entry["key"], entry["result"]):
                return False
            result = self._read(entry["result"])
        except (ValueError, LookupError, TypeError, AttributeError):
            return False
        self.results[key] = result
        self._played[key] += 1
        self._taken[key] = at
        return True

    def _append(self, line: str) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(line + "\n")

    def part(
        self,
        name: str,
        parameters: object,
        read: Callable[[Any], Any] = lambda row: row,
        is_void: Callable[[Any], bool] = lambda result: False,
    ) -> Kept:
        """Results of a part of the run in the same file, which depend on `parameters` too."""
        made_of = digest(self._made_of, name, parameters)
        part = Kept(self._path, made_of, read, is_void, self._builds)
        self._parts.append(part)
        return part

    def add(self, key: Key, row: object) -> None:
        """Keeps what JSON can have of a result, and writes it at once. In `results` it is as it
        would be read again. Raises `Failed` where a program is another by now."""
        if self._builds is not None:
            self._builds.require_same()
        at, text = _now(), json.dumps(row)
        entry = {"made_of": self._made_of, "at": at, "key": key, "result": row}
        with self._lock:
            self._append(json.dumps({**entry, "sum": _sum(at, key, row)}))
            self.results[key] = self._read(json.loads(text))
            self._played[key] += 1
            self._taken.pop(key, None)

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """Those of the keys of this run that are to be played."""
        keys = list(keys)
        self._asked.update(keys)
        return [key for key in keys if key not in self.results or self._is_due_again(key)]

    def _is_due_again(self, key: Key) -> bool:
        return self._played[key] < ATTEMPTS and self._is_void(self.results[key])

    def fill(
        self,
        keys: Iterable[Key],
        running: Callable[[], AbstractContextManager[Place]],
        play: Callable[[Place, Key], object],
    ) -> list[Any]:
        """The results of all keys, in their order. The missing ones are played once each, at the
        place that `running` makes; where none is missing, it makes none."""
        keys = list(keys)
        missing = self.missing(keys)
        if missing:
            with running() as place:
                for key in missing:
                    self.add(key, play(place, key))
        return [self.results[key] for key in keys]

    def resumed(self) -> dict[str, str]:
        """For a report's `parameters`: how many results of this run and its parts are of an earlier
        start, and the oldest one's time. Nothing where none is."""
        both = (self, *self._parts)
        times = [kept._taken[key] for kept in both for key in kept._asked & kept._taken.keys()]
        if not times:
            return {}
        total = sum(len(kept._asked) for kept in both)
        are = "results are" if len(times) > 1 else "results is"
        told = f"{len(times)} of {total} {are} of an earlier start, the oldest of {min(times)}"
        return {"resumed": told}

    def end(self) -> None:
        """The run is over, and so are its parts: another one begins anew."""
        for one in (self, *self._parts):
            one._append(json.dumps({"made_of": one._made_of, "ended": True}))


def _sum(at: str, key: object, row: object) -> str:
    """What a line has to be found unchanged."""
    return digest(json.dumps([at, key, row]))
