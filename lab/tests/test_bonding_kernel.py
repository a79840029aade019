"""What the bonding experiment makes of Linux's bonding driver in guests beside the bond."""

from __future__ import annotations

from pathlib import Path

from lab.experiments.bonding_kernel import (
    ALONE,
    BOND,
    DRIVER,
    DRIVER_ALONE,
    Disorder,
    claims,
)
from lab.experiments.bonding_peers import Found
from lab.guest import Image, Machine, Tap
from lab.net import Lab

RATES = ((DRIVER_ALONE, 20.0), (DRIVER, 39.0), (ALONE, 19.0))


def held(bond_mbit: float, again: int, of: int) -> list[bool]:
    found = [Found(way, 0, mbit * 1e6, 1e-4) for way, mbit in (*RATES, (BOND, bond_mbit))]
    disorder = [Disorder(BOND, 1000, 50, again, 0), Disorder(DRIVER, 1000, 200, of, 0)]
    return [claim.holds for claim in claims(found, disorder)]


def test_the_bond_is_judged_by_its_own_link_and_by_what_disorder_costs() -> None:
    assert held(37.8, 10, 100) == [True, True, True]
    assert held(36.0, 30, 100) == [False, True, False]
    # A driver that sends nothing again is no measure.
    assert held(37.8, 0, 0) == [True, True, False]


def test_a_machine_may_have_taps_for_cards(tmp_path: Path) -> None:
    image = Image(Path("kernel"), Path("initrd"), "6.1")
    with Lab() as lab:
        cards = ((Tap("tap1"), "02:00:00:00:00:01"),)
        machine = Machine(lab, "m", image, tmp_path / "m.sock", "02:00:00:00:00:00", more=cards)
        command = machine._command()
    assert "tap,id=n1,ifname=tap1,script=no,downscript=no" in command
    assert f"socket,id=c0,path={tmp_path}/m.sock,server=on,wait=off" in command
