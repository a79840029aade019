"""Results on disk of a run that takes long: one that was interrupted goes on where it was.

A line of JSON each, written as soon as it is there. Left out are lines of another program or of
other parameters, one that was not written whole, and those of a run that ended: after that what is
live is measured anew.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from lab.cell import ATTEMPTS

#: What a result is of: numbers and words.
Key = tuple[Any, ...]
Place = TypeVar("Place")


def digest(*of: object) -> str:
    """What results are made of, as a word: files by what is in them, all else as it is printed."""
    made_of = hashlib.sha256()
    for one in of:
        made_of.update(one.read_bytes() if isinstance(one, Path) else repr(one).encode())
    return made_of.hexdigest()


class Kept:
    """Results by what they are of, in the file `path`; without one they last as long as this
    object. `made_of` stands for all that they depend on beside their keys (`digest`). One that
    `is_void` is missing again when the run goes on, until it was played `ATTEMPTS` times."""

    def __init__(
        self,
        path: Path | None,
        made_of: str,
        is_void: Callable[[Any], bool] = lambda result: False,
    ) -> None:
        self.results: dict[Key, Any] = {}
        self._played: Counter[Key] = Counter()
        self._path, self._made_of, self._is_void = path, made_of, is_void
        self._parts: list[Kept] = []
        self._lock = threading.Lock()
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.is_file() else ""
        for line in text.splitlines():
            self._read(line)
        if text and not text.endswith("\n"):
            # Else the next line would be part of one that was not written whole.
            self._append("")
        if self.results:
            taken = f"results taken from {path}: {len(self.results)}"
            print(f"  {taken} (to begin anew, remove it)", file=sys.stderr)

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
            if entry["made_of"] != self._made_of:
                return
            if "ended" in entry:
                self.results.clear()
                self._played.clear()
                return
            key = tuple(entry["key"])
            self.results[key] = entry["result"]
            self._played[key] += 1
        except (ValueError, KeyError, TypeError):
            return

    def _append(self, line: str) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(line + "\n")

    def part(self, name: str, parameters: object) -> Kept:
        """Results of a part of the run in the same file, which depend on `parameters` too."""
        part = Kept(self._path, digest(self._made_of, name, parameters))
        self._parts.append(part)
        return part

    def add(self, key: Key, result: object) -> None:
        """Keeps a result, and writes it at once. In `results` it is as it would be read again."""
        entry = json.dumps({"made_of": self._made_of, "key": key, "result": result})
        with self._lock:
            self._append(entry)
            self._read(entry)

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """Those that are to be played."""
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

    def end(self) -> None:
        """The run is over, and so are its parts: another one begins anew."""
        for one in (self, *self._parts):
            one._append(json.dumps({"made_of": one._made_of, "ended": True}))
