"""What the failover experiment claims: the worst run counts, and no run at all holds nothing."""

from __future__ import annotations

from dataclasses import replace

from lab.experiments.lb_failover import CLOSED, SILENT, Cell, Way, claims


def cell(kind: str, check: str, failed: int, late: int) -> Cell:
    return Cell(Way(kind, "p2c", check), 700, failed, failed, late, 1.04, "ejected", 5)


def test_the_worst_run_counts() -> None:
    cells = [cell(CLOSED, "none", 0, 0), cell(CLOSED, "tcp", 0, 0)]
    cells += [cell(SILENT, "none", 1, 4), cell(SILENT, "tcp", 0, 0)]
    assert all(claim.holds for claim in claims(cells)), "without checks some are slow for longer"
    cells.append(cell(CLOSED, "none", 1, 0))
    cells.append(cell(SILENT, "tcp", 0, 1))
    broken = [claim.id for claim in claims(cells) if not claim.holds]
    assert broken == [
        "lb-failover: port closed, failed",
        "lb-failover: port closed, slow",
        "lb-failover: silent, with check: slow of those that begin 1.2 s later",
    ]


def test_a_server_that_did_not_fail_shows_nothing() -> None:
    unharmed = [replace(cell(CLOSED, "none", 0, 0), redirected=0), cell(SILENT, "none", 0, 0)]
    broken = [claim.id for claim in claims(unharmed) if not claim.holds]
    assert broken[:2] == [
        "lb-failover: port closed, sent on",
        "lb-failover: silent, without check: slow",
    ]


def test_without_runs_nothing_holds() -> None:
    assert not any(claim.holds for claim in claims([]))
