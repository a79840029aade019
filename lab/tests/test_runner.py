"""Two runs do not write to one folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.net import Failed
from lab.runner import alone


def test_a_folder_of_results_is_one_runs_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "bonding"
    with alone(folder):
        with pytest.raises(Failed, match=r"another run writes to .*bonding: wait"), alone(folder):
            pass
        with alone(tmp_path / "elsewhere"):
            pass
    with pytest.raises(KeyError), alone(folder):
        raise KeyError
    with alone(folder):
        pass
