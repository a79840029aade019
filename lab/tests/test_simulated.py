"""What the simulator prints becomes a report that judges the same claims."""

from __future__ import annotations

import json
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from lab import simulated
from lab.experiments import EXPERIMENTS
from lab.net import Failed
from lab.programs import Missing, simulator
from lab.simulated import play, report

RESULT = {
    "scenario": "convergence",
    "seed": 1,
    "seconds": 2,
    "config": {"links": "1.000 Gbit/s"},
    "columns": ["senders", "back ms", "timeouts"],
    "rows": [[1, 3.25, None], [4, "never", 2]],
    "notes": ["A note."],
    "claims": [
        {"id": "back", "value": 3.25, "unit": "ms", "target": "<= 5", "holds": True},
        {"id": "never", "value": None, "unit": "ms", "target": "<= 5", "holds": False},
    ],
}


def test_rows_notes_and_claims_are_taken_over() -> None:
    made = report("convergence", quick=True, result=RESULT)
    assert [claim.holds for claim in made.claims] == [True, False]
    assert not made.holds()
    assert made.parameters["links"] == "1.000 Gbit/s"
    text = made.text()
    assert "never" in text and "A note." in text and "DOES NOT HOLD" in text


@pytest.mark.parametrize(("status", "is_taken"), [(0, True), (1, True), (2, False), (101, False)])
def test_a_simulator_that_says_that_a_claim_does_not_hold_was_played(
    status: int, is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, told = tmp_path / "levada-sim", tmp_path / "told.json"
    told.write_text(json.dumps(RESULT))
    program.write_text(f"#!/bin/sh\ncat {told}\necho why >&2\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setattr("lab.simulated.simulator", lambda: str(program))
    with nullcontext() if is_taken else pytest.raises(Failed, match="why"):
        assert len(play("convergence", True, 4).claims) == 2


def test_progress_is_shown_while_the_simulator_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes on only once its first line was shown, and its answer is longer than a pipe holds."""
    program, told, shown = tmp_path / "levada-sim", tmp_path / "told.json", tmp_path / "shown"
    told.write_text(json.dumps({**RESULT, "notes": ["long " * 40_000]}))
    wait = f"for i in $(seq 200); do [ -e {shown} ] && break; sleep 0.05; done; [ -e {shown} ]"
    program.write_text(
        f"#!/bin/sh\necho $* >{tmp_path}/asked\necho 1 of 2 cells >&2\n{wait} || exit 3\n"
        f"cat {told}\necho 2 of 2 cells >&2\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("lab.simulated.simulator", lambda: str(program))
    pass_on = simulated._pass_on

    def shows(line: str) -> str:
        shown.touch()
        return pass_on(line)

    monkeypatch.setattr(simulated, "_pass_on", shows)
    play("vcc-cheat", True, 4)
    assert "--progress" in (tmp_path / "asked").read_text()
    assert capsys.readouterr().err == "  1 of 2 cells\n  2 of 2 cells\n"


def test_the_simulator_knows_the_experiments_that_it_is_asked_for() -> None:
    try:
        path = simulator()
    except Missing as missing:
        pytest.skip(str(missing))
    usage = subprocess.run([path, "--help"], capture_output=True, text=True, check=False).stderr
    assert {"convergence", "queue-size", "scale"} <= EXPERIMENTS.keys()
    for name in ("convergence", "queue-size", "scale"):
        assert f"\n  {name} " in usage
    done = subprocess.run(
        [path, "sizes", "--seconds", "1", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["claims"] == []
