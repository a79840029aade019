"""Results of a run that takes long (`lab.kept`), and whether others used the machine meanwhile.

One that others disturbed is kept with why, and is void: it is shown, nothing is judged by it, and
it is missing again where the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lab.kept import Kept, Key, Place
from lab.machine import cpu_use, sample_cpu

Found = TypeVar("Found")


@dataclass(frozen=True)
class Watched(Generic[Found]):
    """A result, and why it cannot be compared, or None."""

    found: Found
    disturbed: str | None

    @property
    def marks(self) -> dict[str, Any]:
        """Of its rows in a report."""
        return {"valid": self.disturbed is None, "disturbed": self.disturbed}


def part(kept: Kept, name: str, parameters: object, read: Callable[[Any], Any]) -> Kept:
    """A part of a run (`Kept.part`) whose results are `Watched` ones of what `read` makes."""
    return kept.part(
        name,
        parameters,
        lambda row: Watched(read(row["found"]), row["disturbed"]),
        lambda result: result.disturbed is not None,
    )


def fill(
    kept: Kept,
    keys: Iterable[Key],
    running: Callable[[], AbstractContextManager[Place]],
    play: Callable[[Place, Key], object],
) -> list[Any]:
    """The `Watched` results of all keys (`Kept.fill`)."""

    def watched(place: Place, key: Key) -> dict[str, object]:
        before = sample_cpu(())
        found = play(place, key)
        return {"found": found, "disturbed": cpu_use(before, sample_cpu(())).disturbed()}

    return kept.fill(keys, running, watched)


def valid(results: Iterable[Watched[Found]]) -> list[Found]:
    """Those by which something is judged."""
    return [one.found for one in results if one.disturbed is None]
