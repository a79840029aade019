"""`tools/circles` finds modules of a crate that depend on each other."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools/circles"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("use crate::b::B;", "use crate::a::A;"),
        ("use super::b::B;", "use super::a::A;"),
        ("use crate::{b::{B, C}, d};", "fn f() { super::a::g() }"),
    ],
)
def test_a_circle_is_named(one: str, other: str, tmp_path: Path) -> None:
    code, said = circles(tmp_path, {"a.rs": one, "b.rs": other})
    assert (code, "circles: agent: a, b" in said) == (1, True)


def test_a_file_below_reaches_the_root_by_two(tmp_path: Path) -> None:
    files = {"a.rs": "use super::b::B;", "b/c.rs": "use super::super::a::A;"}
    code, said = circles(tmp_path, files)
    assert (code, "b uses a: b/c.rs" in said) == (1, True)
    # One `super` is the module itself, and its own `a` is another.
    code, said = circles(tmp_path, {**files, "b/c.rs": "use super::a::A;"})
    assert (code, said) == (0, "")


def circles(root: Path, files: dict[str, str]) -> tuple[int, str]:
    """The exit status and what is printed, of a crate of these files."""
    (root / "tools").mkdir(exist_ok=True)
    script = Path(shutil.copy(SCRIPT, root / "tools"))
    for name, text in files.items():
        file = root / "agent/src" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr
