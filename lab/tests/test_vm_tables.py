"""What FS-VDE's tables with machines are, and how a cell is judged."""

from __future__ import annotations

import pytest

from lab.experiments.vm_tables import CLIENTS, FLOWS, LINK_BPS, Cell, claims, client_of, topology


@pytest.mark.parametrize("direction", FLOWS)
def test_machines_are_at_the_host_that_shares_its_link_out(direction: str) -> None:
    shape = topology(direction)
    assert {e.host for e in shape.endpoints if e.name.startswith("vm")} == {"h1"}
    assert {e.host for e in shape.endpoints if not e.name.startswith("vm")} == {"h2"}
    assert {e.tenant for e in shape.endpoints} == {c.name for c in CLIENTS}
    for source, to in FLOWS[direction].values():
        assert client_of(source) == client_of(to)
        machine = source if direction == "egress" else to
        assert machine.startswith("vm")


def _cell(c1: int, c2: int, disturbed: str | None = None) -> Cell:
    return Cell("egress", {"c1": c1, "c2": c2}, 1.0, 0.5, disturbed)


def test_a_client_with_less_than_its_share_fails() -> None:
    whole = LINK_BPS // 8
    fair, unfair = _cell(whole // 3, whole * 2 // 3), _cell(whole // 2, whole // 2)
    assert [c.holds for c in claims([fair])] == [True, True]
    assert [c.holds for c in claims([unfair])] == [False, True]
    assert [c.holds for c in claims([_cell(whole // 6, whole // 3)])] == [True, False]
    assert all(
        c.value is None and not c.holds for c in claims([_cell(whole // 3, whole * 2 // 3, "busy")])
    )
