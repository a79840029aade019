"""What the attacks send, where they stand, and how their windows are judged."""

from __future__ import annotations

import ipaddress
import math
import re
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from lab import attacked, bond_flood, costly, frames, gate, stray, thief
from lab.asker import is_answer
from lab.attacked import SCENES, Attack, Attacked, Scene
from lab.bond_flood import Flooded
from lab.costly import Ends, mac_after, ports
from lab.experiments import attacks
from lab.experiments.attacks import Played, claims, why_not
from lab.gate import PASSES, Verdict
from lab.net import Lab
from lab.programs import Missing, program
from lab.sender import GSO_TCPV4, GSO_UDP
from lab.switches import Levada
from lab.windows import Pair, Window

ENDS = Ends("02:00:00:00:02:01", "10.2.0.1", "02:00:00:01:00:01", "10.2.0.99")
CLAIM = thief.Claim(
    "02:00:00:00:02:01", "02:00:00:00:01:02", "fe80::1", "02:00:00:00:01:01", "2001:db8:1::1"
)


# --- frames -------------------------------------------------------------------------------


def folded(data: bytes) -> int:
    """The sum of all words, as a receiver makes it: all ones where a checksum is right."""
    return ~frames.checksum(data + bytes(len(data) % 2)) & 0xFFFF


@pytest.mark.parametrize("kind", costly.KINDS)
def test_costly_frames_say_what_is_left_to_the_device(kind: str) -> None:
    for case in costly.KINDS[kind](ENDS):
        # Without what fills a short one.
        frame = case.frames[0]
        frame = frame[: max(14 + int.from_bytes(frame[16:18], "big"), len(frame) - 6)]
        flags, segmentation, headers, size, start, offset = struct.unpack("=BBHHHH", case.offload)
        # The kernel asks for a header, and takes no more than 64 KiB.
        assert 60 <= len(case.frames[0]) < 65_550
        if not flags:
            assert case.offload == bytes(10)
            continue
        assert (start, headers) == (34, {GSO_TCPV4: 54, GSO_UDP: 42, 0: 0}[segmentation])
        # Who finishes the sum over the segment, begun with the pseudo-header, gets a right one.
        packet, segment = frame[14:34], frame[34:]
        protocol = packet[9]
        pseudo = packet[12:20] + struct.pack("!HH", protocol, len(segment))
        assert folded(segment[offset : offset + 2]) == folded(pseudo)
        assert folded(packet) == 0xFFFF
        assert size < len(segment)


def test_syns_are_of_many_addresses_that_the_attacker_may_have() -> None:
    (case,) = costly.syns(ENDS)
    sources = {frame[26:30] + frame[34:36] for frame in case.frames}
    assert len(sources) == len(case.frames) == costly.SYN_SOURCES
    allowed = ipaddress.IPv4Network(attacked.ATTACKERS)
    assert all(ipaddress.IPv4Address(frame[26:30]) in allowed for frame in case.frames)
    assert {frame[47] for frame in case.frames} == {frames.SYN}
    assert costly.SYN_SOURCES < attacked.SMALL_TABLE * 10 < 3 * attacked.UNBOUNDED_PER_S


def test_tiny_segments_are_two_thousand_to_a_frame() -> None:
    (case,) = costly.tiny_segments(ENDS)
    size = struct.unpack("=BBHHHH", case.offload)[3]
    assert costly.LONG_BYTES / size == 2000


def test_ports_of_a_crowd_send_to_each_other_in_pairs() -> None:
    made = ports("neighbours", "m", ENDS._replace(mac="02:00:00:01:00:00"), 4)
    assert [device for device, _ in made] == ["m0", "m1", "m2", "m3"]
    ends = [(cases[0].frames[0][:6].hex(), cases[0].frames[0][6:12].hex()) for _, cases in made]
    assert all((source, to) in ends for to, source in ends)
    assert len(set(ends)) == 4
    made = ports("singles", "m", ENDS, 4)
    assert {cases[0].frames[0][:6].hex(":") for _, cases in made} == {ENDS.to_mac}
    assert len({cases[0].frames[0][6:12] for _, cases in made}) == 4


def test_mac_addresses_count_on_over_a_byte() -> None:
    assert mac_after("02:00:00:01:00:ff", 1) == "02:00:00:01:01:00"


def test_icmpv6_has_its_checksum() -> None:
    packet = thief.advertisement("fe80::1", "ff02::1", "fe80::1", CLAIM.mac)
    length = len(packet) - 40
    assert folded(packet[8:40] + struct.pack("!II", length, frames.ICMPV6) + packet[40:]) == 0xFFFF


def test_what_is_stolen_is_the_victims_and_for_the_router() -> None:
    victim, router, own = (
        frames.mac_bytes(mac) for mac in (CLAIM.victim_mac, CLAIM.router_mac, CLAIM.mac)
    )
    incoming, outgoing = 3, 4
    assert thief.is_stolen(router + victim, incoming, CLAIM)
    assert thief.is_stolen(own + victim, 0, CLAIM)
    assert not thief.is_stolen(router + victim, outgoing, CLAIM)
    assert not thief.is_stolen(router + own, incoming, CLAIM)
    assert not thief.is_stolen(b"\xff" * 6 + victim, incoming, CLAIM)


def test_an_answer_is_for_who_asked_and_of_whom_it_asked() -> None:
    answer = frames.arp(2, CLAIM.victim_mac, "10.1.0.1", "10.1.0.254")
    frame = frames.ethernet("02:00:00:00:01:fe", CLAIM.victim_mac, frames.ARP, answer)
    assert is_answer(frame, "02:00:00:00:01:fe", "10.1.0.1")
    assert not is_answer(frame, "02:00:00:00:01:ff", "10.1.0.1")
    assert not is_answer(frame, "02:00:00:00:01:fe", "10.1.0.2")
    asks = frames.arp(1, CLAIM.victim_mac, "10.1.0.1", "10.1.0.254")
    request = frames.ethernet("02:00:00:00:01:fe", CLAIM.victim_mac, frames.ARP, asks)
    assert not is_answer(request, "02:00:00:00:01:fe", "10.1.0.1")


def test_every_kind_of_frame_is_told_by_its_mark() -> None:
    who = gate.Who("02:00:00:00:01:01", "10.1.0.1", "02:00:00:00:02:01", "10.2.0.1")
    kinds = gate.kinds(who)
    marks = {kind.marked(number)[-13:] for number, kind in enumerate(kinds)}
    assert len(marks) == len(kinds) == len({k.what for k in kinds})
    assert all(60 <= len(kind.marked(0)) <= 1514 for kind in kinds)


def test_a_groups_mac_address_is_made_of_its_last_23_bits() -> None:
    assert gate.group_end("224.0.0.5") == ":00:00:05"
    assert gate.group_end("239.129.1.1") == ":01:01:01"


def test_every_expected_counter_is_one_of_the_switchs() -> None:
    verdicts = Path(__file__).parents[2] / "datapath" / "src" / "verdict.rs"
    named = set(re.findall(r' = "([a-z0-9-]+)",', verdicts.read_text()))
    who = gate.Who("02:00:00:00:01:01", "10.1.0.1", "02:00:00:00:02:01", "10.2.0.1")
    assert {kind.expected for kind in gate.kinds(who)} <= named | {PASSES}


# --- where they stand ---------------------------------------------------------------------


class _Space:
    """A namespace that is only a name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.namespace = self


class Nowhere:
    """A lab in which nothing is made."""

    tag = "lv-test"

    def __init__(self, folder: Path) -> None:
        self.dir = folder

    def namespace(self, name: str) -> _Space:
        return _Space(name)


def configuration(switch: Levada) -> str:
    for endpoint in switch.topology.endpoints:
        switch.guests[endpoint.name] = _Space(endpoint.name)  # type: ignore[assignment]
    return switch.configuration()


def checked(text: str, folder: Path) -> str:
    try:
        levada = program()
    except Missing as missing:
        pytest.skip(str(missing))
    file = folder / "attacks.toml"
    file.write_text(text)
    done = subprocess.run([levada, "check", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize("scene", [*SCENES, gate.SCENE], ids=lambda scene: scene.name)
@pytest.mark.parametrize("factor", [1.0, 0.125])
def test_each_scene_is_a_configuration(scene: Scene, factor: float, tmp_path: Path) -> None:
    kind = gate.Gated if scene is gate.SCENE else Attacked
    checked(configuration(kind(cast(Lab, Nowhere(tmp_path)), scene, factor)), tmp_path)


def test_the_stray_files_host_is_a_configuration(tmp_path: Path) -> None:
    switch = stray.BesidePlugs(cast(Lab, Nowhere(tmp_path)), stray.TOPOLOGY)
    checked(configuration(switch), tmp_path)


def test_a_smaller_link_has_a_smaller_guarantee() -> None:
    made = attacked.topology(SCENES[0], 0.25)
    assert made.hosts[0].link_bps == 250_000_000
    assert made.tenants[0].guarantee_bps == 125_000_000


# --- judging ------------------------------------------------------------------------------

RATE_BPS = 400e6
LEAST_PER_S = 100.0


def window(
    mbit: float = 400.0,
    p99_ms: float = 1.0,
    bound: str | None = None,
    disturbed: str | None = None,
) -> Window:
    return Window(0, 1, (0, 1), 0.5, {"busy": 0.1}, bound, disturbed, mbit * 1e6, p99_ms)


def pair(attacked: Window, quiet: Window | None = None, **sent: object) -> Pair:
    return Pair(quiet or window(), attacked, {"per_s": 1000.0, **sent})


def played(*pairs: Pair, is_theft: bool = False, is_asked: bool = False) -> Played:
    make = attacked.SCENES[0].attacks[0].make
    attack = Attack("x", make, LEAST_PER_S, is_theft=is_theft, is_asked=is_asked)
    return Played("scene", attack, RATE_BPS, list(pairs))


def test_medians_over_pairs_are_judged_against_the_paced_rate() -> None:
    pairs = [pair(window(mbit, p99)) for mbit, p99 in ((396, 2.0), (100, 9.0), (393, 2.5))]
    throughput, ping = claims(played(*pairs))
    assert (throughput.value, throughput.holds) == (98.25, True)
    assert (ping.value, ping.holds) == (2.5, True)


def test_one_pair_of_three_is_no_median() -> None:
    others = pair(window(disturbed="others"))
    one = replace(played(pair(window()), others, others), planned=3)
    assert [claim.value for claim in claims(one)] == [None, None]
    two = replace(played(pair(window()), pair(window()), others), planned=3)
    assert all(claim.holds for claim in claims(two))


def test_an_attack_may_use_up_the_worker_but_not_the_quiet_window() -> None:
    busy = "switch busy 100 %"
    assert why_not(pair(window(bound=busy)), RATE_BPS, LEAST_PER_S) is None
    assert why_not(pair(window(), window(bound=busy)), RATE_BPS, LEAST_PER_S) == busy
    assert why_not(pair(window(disturbed="others")), RATE_BPS, LEAST_PER_S) == "others"
    assert why_not(pair(window(), window(disturbed="others")), RATE_BPS, LEAST_PER_S) == "others"


def test_a_victim_that_had_less_without_an_attack_shows_nothing() -> None:
    weak = pair(window(300), window(300))
    assert why_not(weak, RATE_BPS, LEAST_PER_S) == "75.0 % of the rate without an attack"
    assert not any(c.holds for c in claims(played(weak)))


def test_what_a_victim_lacks_after_an_attack_is_the_attacks() -> None:
    weak = pair(window(300), window(300))
    throughput, ping = claims(played(pair(window()), weak))
    assert (throughput.value, throughput.holds, ping.holds) == (75, False, True)
    # Not where others took it, or the machine had no time.
    for quiet in (window(9, disturbed="others"), window(9, bound="machine idle 0 %")):
        assert all(c.holds for c in claims(played(pair(window()), pair(window(), quiet))))
    lost = pair(window(), window(p99_ms=math.inf))
    assert [c.holds for c in claims(played(pair(window()), lost))] == [True, False]


def test_pings_lost_without_an_attack_are_no_measure() -> None:
    quiet = Window(0, 1, (0, 1), 0.5, {"busy": 0.1}, None, None, RATE_BPS, math.inf, 3)
    assert why_not(pair(window(), quiet), RATE_BPS, LEAST_PER_S) == "3 pings lost without an attack"


def test_an_attack_that_was_not_made_shows_nothing() -> None:
    starved = pair(window(), per_s=99.0, stolen=0, asked=200, answered=200)
    assert why_not(starved, RATE_BPS, LEAST_PER_S) == "no attack: 99 frames/s < 100"
    told = claims(played(starved, is_theft=True, is_asked=True))
    assert [(c.value, c.holds) for c in told] == [(None, False)] * 4
    visits = {"answered": {"far": 500}, "failed": {}, "kept_failed": 0}
    make = attacked.SCENES[0].attacks[0].make
    attack = Attack("x", make, LEAST_PER_S, is_served=True)
    for kept_failed, value in ((0, None), (1, 1)):
        starved = pair(window(), per_s=0.0, visits={**visits, "kept_failed": kept_failed})
        told = claims(Played("scene", attack, RATE_BPS, [starved]))
        assert [(c.value, c.holds) for c in told[-2:]] == [(None, False), (value, False)]
    # What is stolen is stolen, however little was sent.
    stole = pair(window(), per_s=1.0, stolen=1)
    assert claims(played(stole, is_theft=True))[-1].value == 1
    # Nor one that does not hit what it is aimed at.
    idle = pair(window(), hits=(9, 10))
    assert why_not(idle, RATE_BPS, LEAST_PER_S) == "no attack: 9 hits < 10"
    assert [c.value for c in claims(played(idle))] == [None, None]
    assert why_not(pair(window(), hits=(10, 10)), RATE_BPS, LEAST_PER_S) is None
    # More pairs are played where none counts.
    plan = attacks.Plan(pairs=1, window_s=1.0, budget_s=1.0)
    assert attacks.wants(played(pair(window(), per_s=99.0)), plan, math.inf)


def test_each_attack_has_a_least_rate_below_what_it_asks_for() -> None:
    least = {a.name: a.least_per_s for scene in SCENES for a in scene.attacks}
    assert all(0 < per_s <= 30_000 for per_s in least.values())
    assert least["64 KiB to a group"] < attacked.FLOODED_PER_S
    assert least["64 KiB to a shared network"] < attacked.SLOW_FLOOD_PER_S
    assert least["storm in one VLAN"] < attacked.STORM_PER_S
    assert least["memory, big frames"] < attacked.WAITING * attacked.BIG_PER_S
    assert least["memory, small frames"] < attacked.WAITING * attacked.SMALL_PER_S
    assert least["datagrams turned around"] < attacked.TURNED_PER_S


def test_a_link_is_made_smaller_where_the_victim_alone_is_not_whole() -> None:
    assert attacks.is_whole(window(), RATE_BPS)
    assert not attacks.is_whole(window(391), RATE_BPS)
    assert not attacks.is_whole(window(bound="switch busy"), RATE_BPS)
    assert not attacks.is_whole(window(disturbed="others"), RATE_BPS)


def test_pings_that_never_return_are_no_round_trips() -> None:
    _, ping = claims(played(pair(window(p99_ms=math.inf))))
    assert not ping.holds


def test_one_stolen_frame_is_one_too_many_even_in_a_disturbed_window() -> None:
    disturbed = pair(window(disturbed="others"), stolen=1)
    stolen = claims(played(pair(window(), stolen=0), disturbed, is_theft=True))[-1]
    assert (stolen.value, stolen.holds) == (1, False)
    assert claims(played(pair(window(), stolen=0), is_theft=True))[-1].holds


def test_questions_have_to_be_answered() -> None:
    disturbed = window(disturbed="others")
    pairs = [pair(disturbed, asked=200, answered=n) for n in (197, 195, 196)]
    answered = claims(played(*pairs, is_asked=True))[-1]
    assert (answered.value, answered.holds) == (98.0, True)
    # In one without an attack they show nothing, unless no other has any.
    calm = pair(window(), per_s=0.0, asked=200, answered=0)
    assert claims(played(*pairs, calm, is_asked=True))[-1].holds
    assert claims(played(calm, is_asked=True))[-1].value == 0
    one_more = pair(disturbed, asked=200, answered=195)
    assert not claims(played(*pairs, one_more, is_asked=True))[-1].holds


@pytest.mark.parametrize(
    ("failed", "lost", "holds"),
    [(0, 0, [True, True]), (1, 0, [False, True]), (0, 1, [True, False])],
)
def test_a_service_goes_on_for_new_and_open_connections(
    failed: int, lost: int, holds: list[bool]
) -> None:
    told = {"answered": {"far": 500}, "failed": {"TimeoutError": failed}, "kept_failed": lost}
    attack = Attack("x", attacked.SCENES[0].attacks[0].make, LEAST_PER_S, is_served=True)
    pairs = [pair(window(disturbed="others"), visits=told)]
    judged = claims(Played("scene", attack, RATE_BPS, pairs))[-2:]
    assert [claim.holds for claim in judged] == holds


def test_a_frame_that_passes_is_told_from_one_under_another_counter() -> None:
    verdicts = [
        Verdict("honest", PASSES, PASSES),
        Verdict("lie", "spoofed-arp", "spoofed-ipv4"),
        Verdict("worse lie", "reserved", PASSES),
    ]
    passed, wrong = gate.claims(verdicts)
    assert (passed.value, wrong.value) == (1, 2)
    assert not passed.holds


def test_more_pairs_are_played_until_enough_count() -> None:
    plan = attacks.Plan(pairs=2, window_s=1.0, budget_s=1.0)
    bad, good = pair(window(disturbed="others")), pair(window())
    assert attacks.wants(played(bad), plan, math.inf)
    assert attacks.wants(played(bad, good), plan, math.inf)
    assert not attacks.wants(played(good, good), plan, math.inf)
    assert not attacks.wants(played(*[bad] * 6), plan, math.inf)
    # Without time, none is played again, but each as often as it has to be.
    assert not attacks.wants(played(bad, bad), plan, -math.inf)
    assert attacks.wants(played(bad), plan, -math.inf)


def flooded(mbit: float = 15.0, ms: float = 3.0, late: int = 0, lost: int = 0) -> Flooded:
    quiet = bond_flood.Window(15e6, 1.0, 9000, 0, 0)
    attacked = bond_flood.Window(mbit * 1e6, ms, 200_000, late, 0)
    return Flooded(quiet, attacked, 90_000.0, 9000, lost, numbered=2, replayed=40)


def test_a_flooded_bond_keeps_a_victims_rate_and_order_and_what_a_cable_loses() -> None:
    assert [c.holds for c in bond_flood.claims(flooded())] == [True] * 5
    bad = bond_flood.claims(flooded(mbit=14.0, ms=9.0, late=400, lost=1))
    assert [c.holds for c in bad] == [True, False, False, False, False]
    plain = replace(flooded(), numbered=1)
    assert not bond_flood.claims(plain)[0].holds
    assert "1 of 9000" in bond_flood.flood_table(flooded(lost=1))


def test_a_bond_that_was_not_flooded_or_lost_quiet_pings_shows_nothing() -> None:
    calm = bond_flood.claims(replace(flooded(), sent_per_s=9_999.0))
    assert [(c.value, c.holds) for c in calm[1:]] == [(None, False)] * 4
    assert bond_flood.claims(replace(flooded(lost=1), sent_per_s=0.0))[-1].value == 1
    unheard = bond_flood.Window(15e6, math.inf, 9000, 0, 0)
    ping = bond_flood.claims(replace(flooded(), quiet=unheard))[2]
    assert (ping.value, ping.holds) == (None, False)


def test_the_flood_over_a_bond_is_more_than_its_links_and_the_victims_is_within_its_promise() -> (
    None
):
    least_wire_bytes = 64 + 4 + 4 + 20
    fit = bond_flood.LINKS * bond_flood.LINK_BPS / 8 / least_wire_bytes
    assert fit < bond_flood.FLOOD_PER_S
    assert bond_flood.GUARANTEED > bond_flood.PACED + 0.06
