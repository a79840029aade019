"""Results on disk of a run that takes long: one that was interrupted goes on where it was.

A line of JSON each, written as soon as it is there. Lines of another program or of other
parameters, and one that was not written whole, are left out.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

#: What a result is of: numbers and words.
Key = tuple[Any, ...]


class Kept:
    """Results by what they are of, in the file `path`. `made_of` stands for all that they depend on
    beside their keys: a digest of programs and parameters."""

    def __init__(self, path: Path, made_of: str) -> None:
        self.results: dict[Key, Any] = {}
        self._path, self._made_of, self._lock = path, made_of, threading.Lock()
        lines = path.read_text().splitlines() if path.is_file() else []
        for line in lines:
            try:
                entry = json.loads(line)
                if entry["made_of"] == made_of:
                    self.results[tuple(entry["key"])] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, key: Key, result: object) -> None:
        """Keeps a result, and writes it at once."""
        entry = json.dumps({"made_of": self._made_of, "key": key, "result": result})
        with self._lock:
            self.results[key] = result
            with self._path.open("a") as file:
                file.write(entry + "\n")
