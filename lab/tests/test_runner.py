"""Where a run's result is, and what becomes of one that fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

from lab import runner
from lab.net import Failed
from lab.report import Report, at_least
from lab.runner import alone, folder_name

Run = Callable[[], Report]


def test_a_folder_of_results_is_one_runs_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "bonding"
    with alone(folder):
        with pytest.raises(Failed, match=r"another run writes to .*bonding: wait"), alone(folder):
            pass
        with alone(tmp_path / "elsewhere"):
            pass
    with pytest.raises(KeyError), alone(folder):
        raise KeyError
    with alone(folder):
        pass


def test_a_quick_run_or_a_part_does_not_take_a_full_runs_place() -> None:
    names = [folder_name("bonding", *of) for of in ((None, False), (None, True), ("two", False))]
    assert [*names, folder_name("bonding", "two", True)] == [
        "bonding",
        "bonding-quick",
        "bonding-two",
        "bonding-two-quick",
    ]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Plays a run in the place of an experiment; the exit status. Results are in out/x."""
    (tmp_path / "levada").write_text("1")
    monkeypatch.setenv("LEVADA", str(tmp_path / "levada"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "require_root", lambda: None)
    monkeypatch.setattr(runner, "Lab", nullcontext)
    monkeypatch.setattr(runner, "EXPERIMENTS", {"x": "lab_test_experiment"})

    def with_run(run: Run, *options: str) -> int:
        module = ModuleType("lab_test_experiment")
        vars(module).update(SUMMARY="", PARTS=("two",), run=lambda *_, **__: run())
        monkeypatch.setitem(sys.modules, "lab_test_experiment", module)
        monkeypatch.setattr(sys, "argv", ["lab/run", "x", *options])
        return runner.main()

    return with_run


def holds() -> Report:
    """Of a run whose only claim does."""
    return Report("x", False, claims=[at_least("one", 1, "", 1)])


def test_each_way_to_run_has_a_folder_of_its_own(play: Callable[..., int], tmp_path: Path) -> None:
    assert play(holds) == 0
    whole = tmp_path / "out" / "x" / "result.json"
    whole.write_text("the full run's")
    assert play(holds, "--quick") == 0
    assert play(holds, "--only", "two") == 0
    assert whole.read_text() == "the full run's"
    found = sorted(path.parent.name for path in (tmp_path / "out").glob("*/result.json"))
    assert found == ["x", "x-quick", "x-two"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        subprocess.TimeoutExpired("ip", 9),
        subprocess.CalledProcessError(1, "ip"),
        Failed("no"),
    ],
)
def test_a_run_that_cannot_be_played_says_so_in_one_line(
    error: Exception, play: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> Report:
        raise error

    assert play(run) == 2
    assert capsys.readouterr().err == f"lab/run x: {error}\n"


def test_no_result_is_of_a_program_that_was_rebuilt_meanwhile(
    play: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> Report:
        (tmp_path / "levada").write_text("2")
        return holds()

    assert play(run) == 2
    assert "levada was rebuilt meanwhile" in capsys.readouterr().err
    assert not (tmp_path / "out" / "x" / "result.json").exists()
