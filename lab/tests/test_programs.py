"""Which build the lab runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab import demo, programs
from lab.net import Failed


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
    with pytest.raises(
        programs.Missing, match=r"is older than .*a b\.rs: `cargo build .*--examples`"
    ):
        programs.require_fresh()
    monkeypatch.setenv("LEVADA", str(built))
    programs.require_fresh()


@pytest.mark.parametrize("name", ["examples/bulk", "levada-sim"])
def test_what_lies_beside_the_program_is_of_these_sources_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEVADA", raising=False)
    built, beside, source = tmp_path / "levada", tmp_path / name, tmp_path / "bulk.rs"
    monkeypatch.setattr(programs, "_BUILT", built)
    find = programs.simulator if name == "levada-sim" else lambda: programs.example("bulk")
    with pytest.raises(programs.Missing, match=r"no program at .*: `cargo build .*--examples`"):
        find()
    beside.parent.mkdir(exist_ok=True)
    for path, when in ((beside, 200), (source, 300)):
        path.write_text("")
        os.utime(path, (when, when))
    beside.with_name(f"{beside.name}.d").write_text(f"{beside}: {source}\n")
    with pytest.raises(programs.Missing, match=r"is older than .*bulk\.rs: `cargo build"):
        find()
    # One that is named is taken as it is, with what lies beside it. The binary need not be there.
    assert not built.exists()
    monkeypatch.setenv("LEVADA", str(built))
    assert find() == str(beside)


def test_the_demo_shows_no_other_sources_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, source = tmp_path / "levada", tmp_path / "main.rs"
    for path, when in ((built, 200), (source, 300)):
        path.write_text("")
        os.utime(path, (when, when))
    (tmp_path / "levada.d").write_text(f"{built}: {source}\n")
    monkeypatch.delenv("LEVADA", raising=False)
    monkeypatch.setattr(programs, "_BUILT", built)
    monkeypatch.setattr(demo, "program", lambda: built)

    class Untouched(RuntimeError):
        pass

    def lab(**_: object) -> None:
        raise Untouched

    monkeypatch.setattr(demo, "Lab", lab)
    with pytest.raises(programs.Missing, match="is older than"):
        demo._show(tmp_path)


def test_a_program_that_was_rebuilt_is_another_unless_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levada, bulk = tmp_path / "levada", tmp_path / "examples" / "bulk"
    bulk.parent.mkdir()
    for path in (levada, bulk, bulk.with_name("bulk-0a"), bulk.with_name("bulk.d")):
        path.write_text("1")
    monkeypatch.setenv("LEVADA", str(levada))
    builds = programs.Builds.all()
    # Anew of the same sources, as cargo does where it is told of other features between.
    bulk.unlink()
    bulk.write_text("1")
    bulk.with_name("bulk-0a").write_text("2")
    builds.require_same()
    os.utime(bulk, (100, 100))
    builds.require_same()
    bulk.write_text("2")
    with pytest.raises(Failed, match=r"examples/bulk was rebuilt meanwhile"):
        builds.require_same()
    builds = programs.Builds.all()
    levada.unlink()
    with pytest.raises(Failed, match=r"levada was rebuilt meanwhile"):
        builds.require_same()
