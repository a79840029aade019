"""The parts of `vm` that need no machine: a guest's archive, its reports, the judgement."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lab.experiments import vm
from lab.experiments.vm import Cell
from lab.guest import _cpio, iperf_report
from lab.net import Failed


def cell(
    sender: str,
    floods: bool,
    goodput_bps: float,
    disturbed: str | None = None,
    flood_bps: float = 7.2e6,
) -> Cell:
    labels = {"from": sender, "flood": "yes" if floods else "no"}
    return Cell(labels, goodput_bps, 0, flood_bps if floods else 0.0, 0.5, 0.0, disturbed)


@pytest.mark.skipif(shutil.which("busybox") is None, reason="there is no busybox: apt install it")
def test_the_archive_is_one_that_others_unpack(tmp_path: Path) -> None:
    files = {"init": b"#!/bin/sh\n", "lib/a/b.ko": bytes(range(256)) * 5, "bin/x": b""}
    subprocess.run(
        ["busybox", "cpio", "-idm"], input=_cpio(files), cwd=tmp_path, check=True, stderr=-3
    )
    for name, content in files.items():
        assert (tmp_path / name).read_bytes() == content
    assert (tmp_path / "init").stat().st_mode & 0o111 and (tmp_path / "dev").is_dir()


def test_a_report_is_found_among_what_else_a_guest_says() -> None:
    said = '[ 3.1] kernel: x\n{"end": {"a": 1}}\nlevada: done 0\n'
    assert iperf_report(said) == {"end": {"a": 1}}
    for wrong in ("", "{", '{"error": "unable to connect"}'):
        with pytest.raises(Failed):
            iperf_report(wrong)


def test_claims_hold_by_the_guarantee() -> None:
    guarantee = vm.GUARANTEE_BPS * vm.GOODPUT
    good = [cell("vm0", False, 1.2 * guarantee), cell("vm0", True, 0.95 * guarantee)]
    assert all(claim.holds for claim in vm.claims(good, {"queue-full": 7}))
    worse = [cell("vm0", False, 0.95 * guarantee), cell("vm0", True, 0.85 * guarantee)]
    assert [claim.holds for claim in vm.claims(worse, {})] == [False, False, True]
    assert not vm.claims(good, {"bad-offload": 1})[-1].holds


def test_a_gap_is_the_longest_time_without_data() -> None:
    assert vm.longest_silence([1, 0, 0, 5, 0, 0, 0, 2, 0]) == 3
    assert vm.longest_silence([]) == 0
    alive, dead = (vm.Restart("kill -9", 0.1, 0.3, last, 0.2 - last / 1e7) for last in (1e6, 0.0))
    assert [c.holds for c in vm.restart_claims([alive], 2)] == [True, True, True]
    assert [c.holds for c in vm.restart_claims([dead], 1)] == [False, False, False]


def test_a_disturbed_cell_does_not_count_whatever_it_shows() -> None:
    guarantee = vm.GUARANTEE_BPS * vm.GOODPUT
    for goodput in (guarantee, guarantee / 2):
        lost = vm.claims([cell("vm0", True, goodput, "busy")], {})[0]
        assert lost.value is None and not lost.holds


def test_beside_a_flood_that_was_not_there_nothing_is_shown() -> None:
    guarantee = vm.GUARANTEE_BPS * vm.GOODPUT
    starved = cell("vm0", True, guarantee, flood_bps=0.5e6)
    claim = vm.claims([starved], {})[0]
    assert (claim.value, claim.holds) == (None, False)
    assert starved.why_not == "no flood: 0.50 Mbit/s"
    assert vm.claims([cell("vm0", False, guarantee)], {})[0].holds
