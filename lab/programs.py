"""The programs of this tree that the lab runs: found through $LEVADA, else in target/release."""

from __future__ import annotations

import os
from pathlib import Path

_BUILT = Path(__file__).resolve().parents[1] / "target" / "release" / "levada"


class Missing(RuntimeError):
    """A program that is needed is not installed or built; the text says what to do."""


def program() -> Path:
    """The levada binary. Raises `Missing` with what to do."""
    path = Path(os.environ.get("LEVADA", _BUILT))
    if not path.is_file():
        raise Missing(f"no program at {path}: `cargo build --release`, or name one in $LEVADA")
    return path


def example(name: str) -> str:
    """The path of an example program, which lies beside the levada binary. Raises `Missing`."""
    path = program().parent / "examples" / name
    if not path.is_file():
        raise Missing(f"no program at {path}: `cargo build --release --workspace --examples`")
    return str(path)


def simulator() -> str:
    """The path of levada-sim, which lies beside the levada binary. Raises `Missing`."""
    path = program().parent / "levada-sim"
    if not path.is_file():
        raise Missing(f"no program at {path}: `cargo build --release --workspace --bins`")
    return str(path)
