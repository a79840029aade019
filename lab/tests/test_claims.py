"""That each command of the specification runs something: what `tools/claims` finds."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def faults() -> Callable[[str], list[str]]:
    """What is wrong with a specification."""
    loader = importlib.machinery.SourceFileLoader("claims", str(ROOT / "tools/claims"))
    spec = importlib.util.spec_from_loader("claims", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    found: Callable[[str, Path], list[str]] = module.faults
    return lambda text: found(text, ROOT)


@pytest.mark.parametrize(
    "line",
    [
        "| two hosts have one endpoint | | `cargo test -p levada roster` | holds |",
        # Its tests are in the program, and in no library.
        "| the same | | `cargo test -p levada --test daemon directory::store_state` | holds |",
        # One filter that is right makes no other so.
        "| the same | | `cargo test -p levada --bin levada -- directory roster` | holds |",
        "| the same | | `cargo test -p nobody` | holds |",
        "| a run | | `lab/run roster` | holds |",
        "| a table | | `cargo test -p sim --test snapshots lacp`; `levada-sim roster` | holds |",
        "| bytes | | `fuzz/run 60 roster` | holds |",
        "| speed | 1 x | `bench/run --only roster` | holds |",
        "| a test | | `.venv/bin/pytest lab/tests/test_roster.py` | holds |",
        "| nobody knows | | `lab/run attacks` | 0 of 100 |",
    ],
)
def test_what_shows_nothing_is_a_fault(faults: Callable[[str], list[str]], line: str) -> None:
    assert len(faults(line)) == 1


def test_what_shows_something_is_none(faults: Callable[[str], list[str]]) -> None:
    assert not faults("| one | | `cargo test -p levada --bin levada directory` | holds |")
    assert not faults("| two | | `VCC_WIRE=9 cargo test -p datapath --test vcc_wire` | holds |")
    assert not faults((ROOT / "SPECIFICATION.md").read_text())
