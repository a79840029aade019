"""Experiments that are simulated: `levada-sim` plays them, and its claims are taken over.

A simulated number depends on nothing but the code and the seed, so nothing is repeated and no cell
can be disturbed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

from lab import machine
from lab.net import Failed
from lab.programs import simulator
from lab.report import Claim, Report
from lab.stats import table


def play(experiment: str, quick: bool, seconds: int, quick_seconds: int = 1) -> Report:
    """Runs the scenario of the experiment's name, for `seconds` simulated a cell, or quickly for
    `quick_seconds`."""
    length = str(quick_seconds if quick else seconds)
    command = [simulator(), experiment, "--json", "--progress", "--seconds", length]
    # Its answer waits in a file, so that it never waits for us.
    with tempfile.TemporaryFile("w+") as answer:
        with subprocess.Popen(command, stdout=answer, stderr=subprocess.PIPE, text=True) as done:
            assert done.stderr is not None
            said = [_pass_on(line) for line in done.stderr]
        # 1: a claim does not hold, which it prints.
        if done.returncode not in (0, 1):
            raise Failed(f"{' '.join(command)}: {''.join(said).strip()}")
        answer.seek(0)
        return report(experiment, quick, json.load(answer))


def _pass_on(line: str) -> str:
    """How far the simulator is, or what is wrong, is shown at once."""
    print(f"  {line}", end="", file=sys.stderr, flush=True)
    return line


def report(experiment: str, quick: bool, result: dict[str, Any]) -> Report:
    """What the simulator printed, as a report."""
    rows = [dict(zip(result["columns"], row, strict=True)) for row in result["rows"]]
    parameters = {"seed": result["seed"], "seconds": result["seconds"], **result["config"]}
    made = Report(experiment, quick, parameters=parameters)
    made.machine = machine.describe([])
    made.cells = [{"labels": row, "valid": True} for row in rows]
    made.tables = [table(result["columns"], [[_text(v) for v in row] for row in result["rows"]])]
    made.tables += result["notes"]
    made.claims = [Claim(**claim) for claim in result["claims"]]
    return made


def _text(value: float | str | None) -> str:
    return "" if value is None else str(value)
