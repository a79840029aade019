"""Instructions of a program, counted by callgrind (valgrind.org): exact, and the same each time."""

from __future__ import annotations

import re

from lab.net import Failed, missing_tools, run
from lab.programs import Missing

_COUNTER = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-fd=1")
_COLLECTED = re.compile(r"Collected : (\d+)")


def counted(*command: str) -> tuple[int, str]:
    """The instructions of a run, and what it printed. Raises `Missing` without valgrind."""
    if missing_tools(["valgrind"]):
        raise Missing("instructions are counted with valgrind: apt install valgrind")
    told = run(*_COUNTER, *command)
    collected = _COLLECTED.search(told)
    if collected is None:
        raise Failed(f"callgrind did not tell what it counted:\n{told[-1000:]}")
    return int(collected[1]), told
