"""Results that are kept are those of the same program, whole, and under their keys."""

from __future__ import annotations

from pathlib import Path

from lab.kept import Kept


def test_what_was_kept_is_there_again_for_the_same_program_only(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "results.jsonl"
    kept = Kept(path, "a")
    kept.add(("native", 2, "auto", 0), [[1, 2.5, 0.1]])
    kept.add(("guest", 1, "auto", 0), {"x": 1})
    assert Kept(path, "a").results == {
        ("native", 2, "auto", 0): [[1, 2.5, 0.1]],
        ("guest", 1, "auto", 0): {"x": 1},
    }
    assert Kept(path, "b").results == {}


def test_a_line_that_was_not_written_whole_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Kept(path, "a").add(("one",), 1)
    path.write_text(path.read_text() + '{"made_of": "a", "key": ["two"], "res\n[]\n{}\n')
    again = Kept(path, "a")
    assert again.results == {("one",): 1}
    again.add(("two",), 2)
    assert Kept(path, "a").results == {("one",): 1, ("two",): 2}
