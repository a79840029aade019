"""What is claimed of the instructions that virtual congestion control takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.experiments import vcc_cost
from lab.experiments.vcc_cost import BULK, KINDS, MOST
from lab.net import Lab

WORK = Path(__file__).resolve().parents[2] / "sim/src/work.rs"


def test_each_kind_is_judged_and_bulk_data_are_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def counted(kind: str, lengths: tuple[int, int]) -> float:
        off = kind in (KINDS[0], BULK[0])
        return 3000.0 + (0 if off else 1387 if kind in BULK else MOST)

    monkeypatch.setattr(vcc_cost, "instructions", counted)
    monkeypatch.setattr("lab.machine.describe", lambda tools: {})
    claims = {c.id: c.holds for c in vcc_cost.run(Lab(), True, tmp_path).claims}
    assert claims == {f"{kind}: more than off": kind in KINDS for kind in (*KINDS[1:], *BULK[1:])}


def test_the_simulator_knows_each_kind() -> None:
    text = WORK.read_text()
    assert all(f'("{kind}", ' in text for kind in (*KINDS, *BULK))
