"""The programs of this tree that the lab runs: found through $LEVADA, else in target/release."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from lab.net import Failed

#: What builds every program that the lab runs.
BUILD = "`cargo build --release --locked --workspace --bins --examples`"
_BUILT = Path(__file__).resolve().parents[1] / "target" / "release" / "levada"


class Missing(RuntimeError):
    """A program that is needed is not installed or built, or is older than what it is built from;
    the text says what to do."""


def _named() -> Path:
    """Where the levada binary is, if it is there."""
    return Path(os.environ.get("LEVADA", _BUILT))


def program() -> Path:
    """The levada binary. Raises `Missing` with what to do."""
    path = _named()
    if not path.is_file():
        raise Missing(f"no program at {path}: {BUILD}, or name one in $LEVADA")
    return path


def require_fresh() -> None:
    """The release build is of the sources that lie here: results of others say nothing of them.
    Cargo lists the sources beside each program. One that $LEVADA names is taken as it is. Raises
    `Missing` with what to do."""
    for built in (_BUILT, _BUILT.with_name("levada-sim")):
        _require_fresh(built)


def _require_fresh(built: Path) -> None:
    if "LEVADA" in os.environ:
        return
    newer = _newer_source(built)
    if newer is not None:
        raise Missing(f"{built} is older than {newer}: {BUILD}, then again")


def _newer_source(built: Path) -> str | None:
    """A source that was changed since, if there is one."""
    listed = built.with_name(f"{built.name}.d")
    if not built.is_file() or not listed.is_file():
        return None
    when = built.stat().st_mtime
    # A space in a name is escaped.
    names = re.split(r"(?<!\\)\s+", listed.read_text().partition(": ")[2].strip())
    sources = (Path(name.replace("\\ ", " ")) for name in names if name)
    return next((str(s) for s in sources if s.is_file() and s.stat().st_mtime > when), None)


def example(name: str) -> str:
    """The path of an example program, which lies beside the levada binary and is of these sources
    (`require_fresh`). Raises `Missing`."""
    return _beside(Path("examples") / name)


def simulator() -> str:
    """The path of levada-sim, which lies where the levada binary does and is of these sources; it
    needs no such binary. Raises `Missing`."""
    return _beside(Path("levada-sim"))


def _beside(name: Path) -> str:
    path = _named().parent / name
    if not path.is_file():
        raise Missing(f"no program at {path}: {BUILD}")
    _require_fresh(path)
    return str(path)


class Builds:
    """Programs as they were when this was made: what they measure later is of the same build."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._stamps = {path: _stamp(path) for path in paths}
        self._digests = {path: _digest(path) for path in paths}

    @classmethod
    def all(cls) -> Builds:
        """The levada binary and what lies beside it, as far as it is there."""
        levada = _named()
        # Of each example there is a second name, with a number.
        examples = (
            p for p in (levada.parent / "examples").glob("*") if re.fullmatch(r"\w+", p.name)
        )
        paths = [levada, levada.with_name("levada-sim"), *sorted(examples)]
        return cls([path for path in paths if path.is_file()])

    def require_same(self) -> None:
        """Raises `Failed` where one of them is another by now. One that was built anew of the same
        sources is the same."""
        for path, stamp in self._stamps.items():
            now = _stamp(path)
            if now == stamp:
                continue
            if _digest(path) != self._digests[path]:
                raise Failed(f"{path} was rebuilt meanwhile: results of two programs are no result")
            self._stamps[path] = now


def _stamp(path: Path) -> tuple[int, int] | None:
    """What is another where a program was replaced or written to."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _digest(path: Path) -> bytes:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return b""
