"""Which build the lab runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab import programs


def test_a_build_that_is_older_than_its_sources_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what cargo lists, a name with a space in it too."""
    monkeypatch.delenv("LEVADA", raising=False)
    built, old, new = tmp_path / "levada", tmp_path / "old.rs", tmp_path / "a b.rs"
    monkeypatch.setattr(programs, "_BUILT", built)
    programs.require_fresh()
    for path, when in ((old, 100), (built, 200), (new, 300)):
        path.write_text("")
        os.utime(path, (when, when))
    listed = tmp_path / "levada.d"
    listed.write_text(f"{built}: {old} {tmp_path / 'gone.rs'}\n")
    programs.require_fresh()
    escaped = str(new).replace(" ", "\\ ")
    listed.write_text(f"{built}: {old} {escaped}\n")
    with pytest.raises(programs.Missing, match=r"is older than .*a b\.rs: `tools/setup build`"):
        programs.require_fresh()
    monkeypatch.setenv("LEVADA", str(built))
    programs.require_fresh()
