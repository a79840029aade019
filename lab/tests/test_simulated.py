"""What the simulator prints becomes a report that judges the same claims."""

from __future__ import annotations

import json
import subprocess

import pytest

from lab.experiments import EXPERIMENTS
from lab.programs import Missing, simulator
from lab.simulated import report

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
