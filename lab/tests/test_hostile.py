"""The frames of each attack end in a switch where the attack says they do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from lab import frames, hostile
from lab.experiments import bystander
from lab.hostile import KINDS, Parties
from lab.net import Lab, missing_tools
from lab.programs import Missing, program
from lab.sender import Case, taking_turns
from lab.switches import OneHost

MACS = [f"02:00:00:00:00:{n:02}" for n in range(1, 4)]
PARTIES = Parties(MACS[0], "10.0.0.1", MACS[1], "10.0.0.2", MACS[2], "10.0.0.3")


def _is_built() -> bool:
    try:
        program()
    except Missing:
        return False
    return True


needs_root = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(bool(missing_tools(["ip", "ping", "iperf3"])), reason="needs its tools"),
    pytest.mark.skipif(not _is_built(), reason="needs the levada binary"),
]
#: The attacks whose frames say what is to become of them.
CASES = [
    (attack, side)
    for attack in bystander.ATTACKS
    for side in attack.sides
    if attack.name not in ("TCP swarm", "UDP flood")
]


@pytest.fixture(scope="module")
def switch() -> Iterator[OneHost]:
    with Lab() as lab:
        switch = OneHost(lab, bystander.topology())
        with switch.running():
            yield switch


class TestLive:
    pytestmark = needs_root

    @pytest.mark.parametrize(
        ("attack", "side"), CASES, ids=[f"{attack.name}-{side}" for attack, side in CASES]
    )
    def test_every_frame_is_counted_by_name(
        self, switch: OneHost, attack: bystander.Attack, side: str
    ) -> None:
        flow = attack.make(switch, side)
        before = bystander.drops(switch.sample(), side)
        flow.begin(switch.guests[flow.src], switch.guests[flow.dst], 0, 1)
        sent = flow.end().detail
        time.sleep(bystander.TOLD_S)
        after = bystander.drops(switch.sample(), side)
        grown = {r: n - before.get(r, 0) for r, n in after.items() if n > before.get(r, 0)}
        assert sent["frames"] > 1000
        # What a busy machine has no room for was not sent; nothing else is refused.
        assert all(why.endswith("ENOBUFS") for why in sent["refused"])
        for reason, count in sent["by_reason"].items():
            if reason == "flood-limit":
                allowed = bystander.FLOOD_ALLOWED[side] * (sent["seconds"] + 1)
                assert count - allowed <= grown.get(reason, 0) <= count
            elif reason == "fdb-full":
                # As many as an endpoint may have learned, and none twice.
                assert count - 256 <= grown[reason] <= count
            elif reason != "allowed":
                assert grown.get(reason, 0) == count, reason


def test_the_cases_take_turns() -> None:
    one, many = Case("one", "x", [b"1"]), Case("many", "y", [b"a", b"b", b"c"])
    bare = [message[10:] for message, _ in taking_turns([one, many])]
    assert bare == [b"1", b"a", b"1", b"b", b"1", b"c"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outside", [False, True])
def test_frames_are_frames_at_least(kind: str, outside: bool) -> None:
    cases = KINDS[kind](PARTIES._replace(outside=outside))
    assert cases
    for case in cases:
        assert case.frames
        assert len(case.offload) == 10
        # What the kernel asks of a packet socket: an Ethernet header.
        assert all(14 <= len(frame) <= 65_000 for frame in case.frames)


def test_checksum_of_a_known_header() -> None:
    # Wikipedia's example of an IPv4 header, its checksum b861.
    header = bytes.fromhex("4500 0073 0000 4000 4011 0000 c0a8 0001 c0a8 00c7".replace(" ", ""))
    assert frames.checksum(header) == 0xB861


def test_link_local_of_a_mac() -> None:
    assert frames.link_local("02:00:00:00:01:02") == "fe80::ff:fe00:102"


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    options = [f"--{name.replace('_', '-')}=x" for name in Parties._fields[:-1]]
    line = ["hostile", "storm", "--device", "lo", *options, "--per-s", "1", "--seconds", "1e9"]
    monkeypatch.setattr("sys.argv", line)
    with pytest.raises(SystemExit):
        hostile.main()
