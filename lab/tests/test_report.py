"""How a report is written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from lab.report import Report, at_most


def strict(text: str) -> dict[str, object]:
    """As a reader that knows JSON and nothing else."""

    def odd(constant: str) -> object:
        raise ValueError(constant)

    found: dict[str, object] = json.loads(text, parse_constant=odd)
    return found


def test_what_json_cannot_have_is_null_and_says_so(tmp_path: Path) -> None:
    cells: list[dict[str, Any]] = [
        {"rtt_ms": math.inf, "times": math.nan, "all": (1.0, math.inf)},
        {"rtt_ms": 1.0},
    ]
    report = Report("x", True, cells=cells, claims=[at_most("ping", math.inf, "ms", 3)])
    told = strict(report.write(tmp_path).read_text())
    odd = {"rtt_ms": "inf", "times": "nan"}
    first = {"rtt_ms": None, "times": None, "all": [1.0, None], "not_finite": odd}
    assert told["cells"] == [first, {"rtt_ms": 1.0}]
    claim = {"id": "ping", "value": None, "unit": "ms", "target": "<= 3", "holds": False}
    assert told["claims"] == [{**claim, "not_finite": {"value": "inf"}}]


def test_an_earlier_result_is_there_until_the_next_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    Report("x", True, on_disk=[lambda: ended.append("first")]).write(tmp_path)
    with monkeypatch.context() as interrupted:

        def stop(_: int) -> None:
            raise KeyboardInterrupt

        interrupted.setattr("os.fsync", stop)
        with pytest.raises(KeyboardInterrupt):
            Report("y", True, on_disk=[lambda: ended.append("second")]).write(tmp_path)
    told = strict((tmp_path / "result.json").read_text())
    assert (told["experiment"], ended) == ("x", ["first"])
    assert "on_disk" not in told
