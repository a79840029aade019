"""What is claimed of the instructions that a bond takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lab import callgrind
from lab.experiments import bond_cost
from lab.experiments.bond_cost import ASKING, MOST_ASKING, SOURCE
from lab.net import Lab

ROOT = Path(__file__).resolve().parents[2]


def profile(frames: str, of_bonds: int, asking: int) -> Counter[str]:
    """Of so many frames, with what a start takes."""
    lines = {"datapath/src/bond/peer.rs": of_bonds, "datapath/src/switch/members.rs": asking}
    counts = {f"/home/{file}": 70 + int(frames) * n for file, n in lines.items()}
    return Counter({**counts, "/home/datapath/src/switch.rs": 300 * int(frames)})


@pytest.mark.parametrize(
    ("of_bonds", "asking", "holds"),
    [(0, MOST_ASKING, [True, True]), (1, 5, [False, True]), (0, MOST_ASKING + 1, [True, False])],
)
def test_where_the_uplink_is_one_port_both_are_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, of_bonds: int, asking: int, holds: list[bool]
) -> None:
    monkeypatch.setattr(bond_cost, "instructions", lambda *_: 500.0)
    monkeypatch.setattr(bond_cost, "simulator", lambda: "levada-sim")
    monkeypatch.setattr("lab.machine.describe", lambda tools: {})
    monkeypatch.setattr(
        callgrind, "counted_by_file", lambda *command: profile(command[-1], of_bonds, asking)
    )
    claims = bond_cost.run(Lab(), True, tmp_path).claims
    assert [claim.holds for claim in claims if claim.id.startswith("one port")] == holds


def test_what_is_counted_is_there() -> None:
    assert all((ROOT / path).exists() for path in (*SOURCE, *ASKING))
