"""What fills the tables of services, where it stands, and how its rounds are judged."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import cast

from lab import costly, frames, remembered
from lab.costly import Ends
from lab.counted import Counted, Hit, Round, claims, rounds_table
from lab.net import Lab
from lab.remembered import Remembering
from lab.tests.test_attacks import ENDS, Nowhere, checked, configuration, folded

SERVICE = Path(__file__).parents[2] / "datapath" / "src" / "service"


def of_source(file: str, name: str) -> int:
    """A constant of the switch."""
    found = re.search(rf"const {name}: u\d+ = ([\d_]+);", (SERVICE / file).read_text())
    assert found
    return int(found.group(1).replace("_", ""))


# --- frames -------------------------------------------------------------------------------


def test_what_is_sent_is_more_than_what_the_switch_has_room_for() -> None:
    tenants = len(remembered.TOPOLOGY.tenants)
    assert remembered.REMEMBERED * tenants == of_source("affinity.rs", "MOST_CLIENTS")
    assert remembered.FRAGMENTED * tenants == of_source("fragments.rs", "MOST")
    own, common = (of_source("room.rs", name) for name in ("OWN", "COMMON"))
    assert own // 4 + (common - common // 3) // 3 == remembered.WAITING
    assert remembered.TIMES * remembered.REMEMBERED < costly.SYN_SOURCES
    assert remembered.FRAGMENTED < costly.LATER_BY
    # While the victim's packets wait for their rest, more come than have room; half are later ones.
    per_tenant = remembered.APART_S * remembered.FRAGMENTS_PER_S / 2
    assert per_tenant > remembered.TIMES * remembered.FRAGMENTED


def test_a_later_fragment_follows_the_first_of_its_packet_by_many_others() -> None:
    (case,) = costly.fragments(ENDS)
    first: dict[int, int] = {}
    for frame in case.frames:
        number, field = struct.unpack("!HH", frame[18:22])
        if field & frames.MORE_FRAGMENTS:
            assert field == frames.MORE_FRAGMENTS
            assert number not in first
            first[number] = len(first)
        else:
            assert field == 24 // 8
            assert len(first) - first[number] == costly.LATER_BY + 1
    assert len(first) == costly.FRAGMENTED


def test_a_server_is_blamed_for_what_it_cannot_answer() -> None:
    (again,) = costly.unanswered(ENDS)
    behind, acknowledged = costly.disowned(ENDS)
    for case in (again, behind):
        assert {frame[47] for frame in case.frames} == {frames.SYN}
        assert case.offload == bytes(10)
        # What is begun is wrong until somebody finishes it.
        for frame in case.frames:
            segment = frame[34:54]
            assert folded(frame[26:34] + struct.pack("!HH", frames.TCP, 20) + segment) != 0xFFFF
    assert {frame[47] for frame in acknowledged.frames} == {frames.ACK}
    assert acknowledged.offload != bytes(10)
    ports = [[frame[34:36] for frame in case.frames] for case in (again, behind, acknowledged)]
    assert ports[1] == ports[2]
    assert not set(ports[0]) & set(ports[1])
    # A SYN comes again when its client has waited for an answer for a second.
    assert costly.BLAMED / costly.BLAMED_PER_S > 1.1


def test_a_datagram_in_halves_is_a_datagram() -> None:
    first, last = (part[14:] for part in remembered.halves("10.1.64.1", 7, "02:00:00:00:00:01"))
    assert folded(first[:20]) == folded(last[:20]) == 0xFFFF
    assert first[4:6] == last[4:6] == struct.pack("!H", 8)
    fields = [struct.unpack("!H", part[6:8])[0] for part in (first, last)]
    assert fields == [frames.MORE_FRAGMENTS, len(first[20:]) // 8]
    assert first[20:] + last[20:] == frames.udp(5000, costly.SERVICE_PORT, bytes(1000))


def test_echo_requests_have_their_checksums() -> None:
    (case,) = costly.echoes(Ends("02:00:00:00:01:01", "10.1.64.1", *ENDS[2:]))
    assert all(folded(f[14:34]) == folded(f[34:]) == 0xFFFF for f in case.frames)
    assert len({f[26:30] for f in case.frames}) == costly.ECHO_SOURCES


# --- where they stand ---------------------------------------------------------------------


def test_the_host_is_a_configuration(tmp_path: Path) -> None:
    for affinity in ("client", "connection"):
        switch = Remembering(cast(Lab, Nowhere(tmp_path)), affinity)
        checked(configuration(switch), tmp_path)


def test_clients_have_addresses_that_no_attacker_may_have() -> None:
    all_ = remembered.clients()
    assert len(set(all_)) == remembered.CLIENTS <= costly.ECHO_SOURCES
    assert max(remembered.KEPT, remembered.VISITS) <= remembered.CLIENTS


# --- judging ------------------------------------------------------------------------------

ROUND = Round("x", (Hit("y", 100, 100),), (Counted("z", 40, 40), Counted("w", 36, 40, 85.0)))


def test_rounds_that_hit_are_judged_together() -> None:
    worse = replace(ROUND, counted=(Counted("z", 39, 40), ROUND.counted[1]))
    told = claims({"x": [ROUND, worse]})
    assert [(c.value, c.holds) for c in told] == [(98.75, False), (90.0, True)]
    assert all(c.holds for c in claims({"x": [ROUND, ROUND]}))


def test_an_attack_that_did_not_hit_shows_nothing_but_what_is_lost() -> None:
    missed = replace(ROUND, hits=(Hit("y", 99, 100),))
    assert [(c.value, c.holds) for c in claims({"x": [missed]})] == [(None, False)] * 2
    # One that hit is judged without it.
    assert all(c.holds for c in claims({"x": [missed, ROUND]}))
    lost = replace(missed, counted=(Counted("z", 10, 40), ROUND.counted[1]))
    assert [c.value for c in claims({"x": [lost]})] == [25.0, None]
    assert not missed.as_row()["valid"]
    assert "not hit: 99 y < 100" in str(missed)
    assert "not hit" in rounds_table("what", {"x": [missed]})


def test_nothing_of_nothing_does_not_hold() -> None:
    assert not Counted("z", 0, 0).holds
