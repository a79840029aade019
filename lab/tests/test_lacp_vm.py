"""What the LACP experiment makes of Linux's /proc/net/bonding and of `show bonds`."""

from __future__ import annotations

import time
from typing import Any, cast

from lab.experiments.lacp_vm import (
    STATE,
    LevadaLacp,
    _until,
    carried_early,
    differences,
    proc_members,
)

#: As Linux 6.1 writes it, of one member.
PROC = """\
Ethernet Channel Bonding Driver: v6.1.0-56-cloud-amd64

Bonding Mode: IEEE 802.3ad Dynamic link aggregation

Slave Interface: eth0
MII Status: up
Link Failure Count: 0
Partner Churned Count: 0
details actor lacp pdu:
    system priority: 65535
    system mac address: 02:00:00:00:01:00
    port key: 9
    port priority: 255
    port number: 1
    port state: 63
details partner lacp pdu:
    system priority: 65535
    system mac address: 02:11:1c:1b:5c:50
    oper key: 9
    port priority: 255
    port number: 2
    port state: 63
"""


def end(system: str, port: int) -> dict[str, Any]:
    return {
        "system": system,
        "system_priority": 65535,
        "port": port,
        "port_priority": 255,
        "key": 9,
        "state": list(STATE[:6]),
    }


def member() -> dict[str, Any]:
    ours, theirs = end("02:11:1c:1b:5c:50", 2), end("02:00:00:00:01:00", 1)
    return {"name": "up0", "lacp": {"actor": ours, "partner": theirs}}


def test_both_ends_are_read() -> None:
    (one,) = proc_members(PROC)
    assert one["actor"]["port key"] == "9" and one["partner"]["port number"] == "2"
    assert differences([member()], PROC) == []


def test_what_is_not_alike_is_said() -> None:
    other = member()
    other["lacp"]["actor"]["key"] = 7
    assert len(differences([other], PROC)) == 1
    waiting = PROC.replace("port state: 63", "port state: 7")
    assert len(differences([member()], waiting)) == 2
    assert differences([], PROC) == ["1 members there, 0 here"]
    stranger = member()
    stranger["lacp"]["partner"]["port"] = 5
    assert differences([stranger], PROC) == ["up0: no port 5 there"]


def carrying(frames: int, **states: list[str]) -> dict[str, Any]:
    lacp = {end: {"state": states.get(end, STATE[:6])} for end in ("actor", "partner")}
    one_way = {"segments": frames}
    return {"state": "standby", "sent": one_way, "received": one_way, "lacp": lacp}


def test_frames_count_that_pass_before_both_ends_are_in_sync() -> None:
    assert carried_early([carrying(7), carrying(0, partner=["activity"])]) == 0
    assert carried_early([carrying(7), carrying(2, partner=["activity"])]) == 4
    assert carried_early([carrying(1, actor=["activity"])]) == 2


def test_a_time_is_since_the_command_and_not_since_the_console_returned() -> None:
    seen = [[carrying(1, actor=["activity"])], [carrying(9) | {"state": "distributing"}]]

    class Shown:
        def bond(self) -> dict[str, Any]:
            return {"members": seen.pop(0)}

    took, early = _until(cast(LevadaLacp, Shown()), ["distributing"], time.monotonic() - 7)
    assert took > 7 and early == 2
