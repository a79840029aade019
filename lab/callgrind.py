"""Instructions of a program, counted by callgrind (valgrind.org): exact, and the same each time."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lab.net import Failed, missing_tools, run
from lab.programs import Missing

_COUNTER = ("valgrind", "--tool=callgrind", "--log-fd=1")
_COLLECTED = re.compile(r"Collected : (\d+)")


def counted(*command: str) -> tuple[int, str]:
    """The instructions of a run, and what it printed. Raises `Missing` without valgrind."""
    if missing_tools(["valgrind"]):
        raise Missing("instructions are counted with valgrind: apt install valgrind")
    told = run(*_COUNTER, "--callgrind-out-file=/dev/null", *command)
    collected = _COLLECTED.search(told)
    if collected is None:
        raise Failed(f"callgrind did not tell what it counted:\n{told[-1000:]}")
    return int(collected[1]), told


def counted_by_file(*command: str) -> Counter[str]:
    """The instructions of a run by source file; what is inlined counts where it is written. Raises
    `Missing` without valgrind."""
    if missing_tools(["valgrind"]):
        raise Missing("instructions are counted with valgrind: apt install valgrind")
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile"
        run(*_COUNTER, f"--callgrind-out-file={profile}", "--dump-line=yes", *command)
        with profile.open() as lines:
            return by_file(lines)


#: Names that say where the costs that follow are from, and those of files elsewhere.
_HERE, _FILES = ("fl", "fi", "fe"), ("fl", "fi", "fe", "cfi", "cfl")
_COST = re.compile(r"[+*-]?\d*(?: [+*-]?\d*)* (\d+)$")


def by_file(lines: Iterable[str]) -> Counter[str]:
    """The instructions of a profile in callgrind's format (its manual, "Callgrind Format
    Specification"), by source file. What a call takes is counted in who is called."""
    names: dict[str, str] = {}
    sums: Counter[str] = Counter()
    file, is_call = "", False
    for line in map(str.rstrip, lines):
        key, is_assigned, value = line.partition("=")
        if is_assigned and key in _FILES:
            number, _, name = value.partition(" ")
            name = names.setdefault(number, name) if number.startswith("(") else value
            file = name if key in _HERE else file
        elif key == "calls":
            is_call = True
        elif cost := _COST.match(line):
            if not is_call:
                sums[file] += int(cost[1])
            is_call = False
    return sums


def a_frame_on(parts: tuple[str, ...], lengths: tuple[int, int], *command: str) -> float:
    """The instructions a frame on lines of the data path's files with one of these in their names:
    the difference of two runs of a command that is told how many frames to pass. Raises `Failed`
    where nothing is of the data path: the program has no line tables."""
    counts = []
    for frames in lengths:
        files = counted_by_file(*command, str(frames))
        if not any("datapath/src/" in file for file in files):
            raise Failed(f"callgrind found no lines of the data path in {command[0]}")
        counts.append(sum(n for file, n in files.items() if any(part in file for part in parts)))
    return (counts[1] - counts[0]) / (lengths[1] - lengths[0])
