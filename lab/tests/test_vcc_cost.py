"""What is claimed of the instructions that virtual congestion control takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lab import callgrind
from lab.callgrind import by_file
from lab.experiments import vcc_cost
from lab.experiments.vcc_cost import BULK, GROUPS, IN, KINDS, MOST
from lab.net import Failed, Lab

WORK = Path(__file__).resolve().parents[2] / "sim/src/work.rs"


def test_each_kind_is_judged_against_its_own_group_and_said_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def counted(kind: str, lengths: tuple[int, int]) -> float:
        assert capsys.readouterr().err.count("\n") == (0 if kind == KINDS[0] else 1)
        number = next(number for number, group in enumerate(GROUPS) if kind in group)
        if kind == GROUPS[number][0]:
            return 3000.0 + 500 * number
        return 3000.0 + 500 * number + (MOST + 1 if kind in (*IN, *BULK) else MOST)

    monkeypatch.setattr(vcc_cost, "instructions", counted)
    monkeypatch.setattr(vcc_cost, "a_frame_on", lambda *_: 11.0)
    monkeypatch.setattr(vcc_cost, "simulator", lambda: "levada-sim")
    monkeypatch.setattr("lab.machine.describe", lambda tools: {})
    claims = {c.id: c.holds for c in vcc_cost.run(Lab(), True, tmp_path).claims}
    more = {
        f"{kind}: more than off": kind not in (*IN, *BULK) for group in GROUPS for kind in group[1:]
    }
    assert len(more) == 7 + 2 + 1 + 1 + 2
    assert claims == {"vcc-off: on lines of vcc": False, **more}


def test_a_program_without_line_tables_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callgrind, "counted_by_file", lambda *_: Counter({"core/src/slice.rs": 9}))
    with pytest.raises(Failed, match="no lines of the data path"):
        callgrind.a_frame_on(("datapath/src/vcc",), (1, 2), "levada-sim", "work", "vcc-off")


def test_the_simulator_knows_each_kind() -> None:
    text = WORK.read_text()
    assert all(f'("{kind}", ' in text for kind in KINDS)


#: A loop in `a.rs` that has code of `b.rs` in it, and calls a function of `c.rs`.
PROFILE = """\
# callgrind format
version: 1
cmd: ./program a=1
positions: line
events: Ir
summary: 128

ob=(1) /bin/program
fl=(1) src/a.rs
fn=(1) main
16 10
+2 20
fi=(2) src/b.rs
7 5
fe=(1)
* 3
cfi=(3) src/c.rs
cfn=(2) called
calls=4 30
-1 90

fl=(3)
fn=(2)
30 80
31 10
totals: 128
"""


def test_instructions_are_of_the_file_where_they_are_written() -> None:
    assert by_file(PROFILE.splitlines(keepends=True)) == {
        "src/a.rs": 33,
        "src/b.rs": 5,
        "src/c.rs": 90,
    }
