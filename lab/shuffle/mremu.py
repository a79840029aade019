"""Reads the job traces of MRemu (Neves et al., 2015): Hadoop 1 jobs with each copy of the shuffle.

A trace is one JSON object: `config` (numMapSlots, numReduceSlots, maxParallelCopies), `tasks`
(type, name, host, startTime, finishTime; of reduces also sortingTime, processingTime, waitingTime)
and `transfers` (mapper, reducer, size, startTime). Numbers may be strings. A map that no transfer
names holds nobody up and is left out, as tasks of other types are: they set up or clean up.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import cast

from lab.shuffle.job import Copy, Job, Map, Reduce

#: More than any trace needs, so that sums stay far inside what floats tell exactly.
_MOST = 1e15


class BadFile(ValueError):
    """A file that is not what it should be; the text names it, the field, and what is wrong."""


class Fields:
    """An object of a JSON file that knows where it is."""

    def __init__(self, path: Path, at: str, value: object) -> None:
        if not isinstance(value, dict):
            raise BadFile(f"{path}: {at or 'the file'} is not an object")
        self._path, self._at, self._value = path, at, value

    def error(self, field: str, wrong: str) -> BadFile:
        """What is wrong with a field."""
        return BadFile(f"{self._path}: {self._at}{'.' if self._at else ''}{field} {wrong}")

    def get(self, field: str) -> object:
        """A field that must be there."""
        if field not in self._value:
            raise self.error(field, "is missing")
        return self._value[field]

    def text(self, field: str) -> str:
        """A string that is not empty."""
        value = self.get(field)
        if not isinstance(value, str) or not value:
            raise self.error(field, f"is {value!r}, not a name")
        return value

    def number(self, field: str, least: float = 0, default: float | None = None) -> float:
        """A number, or a string that is one."""
        if default is not None and field not in self._value:
            return default
        value = self.get(field)
        try:
            if isinstance(value, bool):
                raise TypeError
            number = float(cast(str, value))
        except (TypeError, ValueError) as error:
            raise self.error(field, f"is {value!r}, not a number") from error
        if not (math.isfinite(number) and least <= number <= _MOST):
            raise self.error(field, f"is {value!r}, not a number from {least:g} to {_MOST:g}")
        return number

    def count(self, field: str) -> int:
        """A whole number of at least one."""
        number = self.number(field, 1)
        if number != int(number):
            raise self.error(field, f"is {number!r}, not a whole number")
        return int(number)

    def object(self, field: str) -> Fields:
        """An object inside."""
        return Fields(self._path, f"{self._at}{'.' if self._at else ''}{field}", self.get(field))

    def objects(self, field: str) -> list[Fields]:
        """A list of objects inside, which is not empty."""
        value = self.get(field)
        if not isinstance(value, list) or not value:
            raise self.error(field, "is not a list with something in it")
        return [Fields(self._path, f"{field}[{i}]", item) for i, item in enumerate(value)]


def load(path: Path) -> object:
    """A JSON file's value. Raises `BadFile`."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise BadFile(f"{path}: not JSON: {error}") from error


def read(path: Path) -> Job:
    """The job of a trace. Raises `BadFile`."""
    trace = Fields(path, "", load(path))
    tasks: dict[str, Fields] = {}
    for task in trace.objects("tasks"):
        name = task.text("name")
        if name in tasks:
            raise task.error("name", f"{name!r} is there twice")
        tasks[name] = task
    transfers = sorted(trace.objects("transfers"), key=lambda t: t.number("startTime"))
    copies = tuple(_copy(t, tasks) for t in transfers)
    mappers, reducers = {c.mapper for c in copies}, {c.reducer for c in copies}
    maps = _in_order({n: t for n, t in tasks.items() if n in mappers})
    reduces = _in_order({n: t for n, t in tasks.items() if n in reducers})
    ended = [t.number("finishTime") for t in maps.values()]
    hosts = dict.fromkeys(t.text("host") for t in (*maps.values(), *reduces.values()))
    config = trace.object("config")
    return Job(
        name=trace.text("name"),
        hosts=tuple(sorted(hosts, key=_in_numbers)),
        map_slots=config.count("numMapSlots"),
        reduce_slots=config.count("numReduceSlots"),
        parallel_copies=config.count("maxParallelCopies"),
        maps=tuple(Map(n, t.text("host"), _duration(t)) for n, t in maps.items()),
        reduces=tuple(_reduce(n, t, ended) for n, t in reduces.items()),
        copies=copies,
    )


def _copy(transfer: Fields, tasks: dict[str, Fields]) -> Copy:
    for field, kind in (("mapper", "MAP"), ("reducer", "REDUCE")):
        name = transfer.text(field)
        if name not in tasks or tasks[name].text("type").upper() != kind:
            raise transfer.error(field, f"{name!r} is no task of type {kind}")
    return Copy(transfer.text("mapper"), transfer.text("reducer"), transfer.count("size"))


def _reduce(name: str, task: Fields, maps_ended: list[float]) -> Reduce:
    started = task.number("startTime")
    return Reduce(
        name,
        task.text("host"),
        after_maps=sum(end <= started for end in maps_ended),
        wait_s=task.number("waitingTime", default=0),
        seconds=task.number("sortingTime", default=0) + task.number("processingTime"),
    )


def _duration(task: Fields) -> float:
    seconds = task.number("finishTime") - task.number("startTime")
    if seconds < 0:
        raise task.error("finishTime", "is before startTime")
    return seconds


def _in_order(tasks: dict[str, Fields]) -> dict[str, Fields]:
    return dict(sorted(tasks.items(), key=lambda item: item[1].number("startTime")))


def _in_numbers(host: str) -> tuple[tuple[int, str], ...]:
    """172.27.102.9 before 172.27.102.10."""
    return tuple((int(p), "") if p.isdecimal() else (-1, p) for p in host.split("."))
