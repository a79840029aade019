"""What fills the tables of endpoints, where it stands, and that tables without parts are found."""

from __future__ import annotations

import contextlib
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from lab import costly, frames, hostile, numbered, tables
from lab.counted import ATTACKERS, MATE, RIVAL, Round
from lab.net import Lab
from lab.switches.levada import Levada
from lab.tables import BEHIND, LISTENER, ROUTER, TAKER, VICTIM, Shared
from lab.tests.test_attacks import Nowhere, checked, configuration

ROOT = Path(__file__).parents[2]


def of_source(file: str, name: str) -> int:
    """A constant of the switch."""
    found = re.search(rf"const {name}: u\d+ = ([\d_]+);", (ROOT / file).read_text())
    assert found
    return int(found.group(1).replace("_", ""))


def counts(one: Round) -> list[tuple[int, int]]:
    assert not one.missed
    return [(counted.good, counted.all) for counted in one.counted]


# --- what is sent, and where --------------------------------------------------------------


def test_what_is_sent_is_more_than_what_the_switch_has_room_for() -> None:
    assert of_source("datapath/src/owners.rs", "MOST_HELD") == tables.MOST_HELD
    assert of_source("control/src/config.rs", "DEFAULT_LEARNED") == tables.MAX_LEARNED
    # With the kernel's own, the neighbour and the victim have room for all of theirs.
    assert 2 * tables.LEARNED < tables.MAX_LEARNED
    assert tables.VICTIMS < tables.MOST_HELD < tables.ANNOUNCED
    endpoints = len(tables.LEARNING.endpoints)
    assert endpoints * tables.MAX_LEARNED < tables.UNLEARNED < hostile.MAC_FLOOD_ADDRESSES


def test_open_connections_are_more_than_the_table_and_half_open_ones_are_not() -> None:
    assert of_source("datapath/src/vcc/connections.rs", "HALF_OPEN_MOST") == tables.HALF_OPEN
    assert tables.OPENED % tables.AT_ONCE == 0
    assert len(ATTACKERS) * tables.OPENED > tables.FEW_FLOWS
    # The victim may have its own below the part that anybody has.
    assert of_source("datapath/src/vcc/connections.rs", "LEAST") > tables.CONNECTIONS
    assert 0 < tables.OPEN < tables.OPENED - tables.CROWDED
    # Of a tenant with two that are flooded, as many as both leave free.
    flooded = (len(ATTACKERS) + 1) * tables.HALF_OPEN
    assert tables.MANY_FLOWS - flooded > 3 * tables.HALF_OPEN
    assert 3 * costly.SYN_SOURCES > tables.MANY_FLOWS
    assert tables.HALF_OPEN + tables.MORE < costly.SYN_SOURCES


def test_the_hosts_are_configurations(tmp_path: Path) -> None:
    for make, _ in tables.HOSTS:
        checked(configuration(make(cast(Lab, Nowhere(tmp_path)))), tmp_path)


def test_frames_are_told_by_their_numbers() -> None:
    class Socket:
        def __init__(self, received: list[bytes]) -> None:
            self._received = received

        def recv(self, _: int) -> bytes:
            if not self._received:
                raise BlockingIOError
            return self._received.pop()

    sent = [numbered.frame("02:00:00:00:00:01", "02:00:00:00:00:02", n) for n in (7, 8, 7)]
    assert {len(one) for one in sent} == {costly.LEAST_BYTES}
    assert numbered.came(cast(Any, Socket(sent))) == {7: 2, 8: 1}


# --- stand-ins ----------------------------------------------------------------------------


class End:
    """A socket whose frames a stand-in takes."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.send = take
        self.numbers: Counter[int] = Counter()

    def __enter__(self) -> End:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Guests(dict[str, Any]):
    """Whoever is asked for is there."""

    def __missing__(self, name: str) -> Guests:
        return self

    @property
    def namespace(self) -> Guests:
        return self

    name = address = "10.0.0.1"


class Learning:
    """A table of addresses; `room` is what all have together, where it has no parts."""

    topology = tables.LEARNING
    guests = Guests()

    def __init__(self, room: int | None, forgets: bool) -> None:
        self._room, self._forgets = room, forgets
        self._known: set[bytes] = set()
        self._full = 0
        self.ends = {
            VICTIM: End(self._forward),
            BEHIND: End(self._learn),
            LISTENER: End(lambda _: None),
        }

    def drops(self, _: str) -> dict[str, int]:
        return {"fdb-full": self._full}

    def flood(self) -> None:
        self._full += tables.UNLEARNED
        if self._room is not None:
            self._room = 0
            if self._forgets:
                self._known.clear()

    def _learn(self, sent: bytes) -> None:
        if self._room is None or len(self._known) < self._room:
            self._known.add(sent[6:12])

    def _forward(self, sent: bytes) -> None:
        number = struct.unpack_from("!I", sent, 14)[0]
        for name in (BEHIND,) if sent[:6] in self._known else (BEHIND, LISTENER):
            self.ends[name].numbers[number] += 1


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits."""
    monkeypatch.setattr("lab.tables.time.sleep", lambda _: None)


@pytest.mark.parametrize(
    ("room", "forgets", "told"),
    [(None, False, [20, 20]), (1000, False, [20, 0]), (1000, True, [0, 0])],
)
def test_a_table_without_parts_is_found_out(
    room: int | None, forgets: bool, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = Learning(room, forgets)

    @contextlib.contextmanager
    def meanwhile(*_: object) -> Iterator[list[object]]:
        switch.flood()
        yield []

    monkeypatch.setattr(tables, "outlet", lambda _, device: switch.ends[device])
    monkeypatch.setattr(tables, "came", lambda end: end.numbers)
    monkeypatch.setattr(tables, "meanwhile", meanwhile)
    one = tables.learned(cast(Levada, switch))
    assert counts(one) == [(good, tables.LEARNED) for good in told]


class Owning:
    """Who has which address: of each endpoint so many, or of all together."""

    def __init__(self, most: int, of_all: bool) -> None:
        self._most, self._of_all = most, of_all
        self._held: dict[str, str] = {}
        self._refused: Counter[str] = Counter()
        self.heard: Counter[tuple[str, str]] = Counter()

    def mac(self, name: str) -> str:
        return name.encode().ljust(6)[:6].hex(":")

    def drops(self, name: str) -> dict[str, int]:
        return {"spoofed-arp": self._refused[name]}

    def end(self, name: str) -> End:
        return End(lambda sent: self._claim(name, ".".join(map(str, sent[28:32]))))

    def _claim(self, name: str, ip: str) -> None:
        if self._held.get(ip, name) != name:
            self._refused[name] += 1
            return
        self.heard[self.mac(name), ip] += 1
        self._held.pop(ip, None)
        self._held[ip] = name
        its = [ip for ip, owner in self._held.items() if self._of_all or owner == name]
        for oldest in its[: -self._most]:
            del self._held[oldest]


@pytest.mark.parametrize(
    ("most", "of_all", "told"), [(8, False, [6, 18, 184]), (1000, False, [6, 18, 0])]
)
def test_addresses_that_an_endpoint_holds_are_counted(
    most: int, of_all: bool, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = owned(Owning(most, of_all), monkeypatch)
    assert counts(one) == list(zip(told, [6, 18, 184], strict=True))
    assert {hit.count for hit in one.hits} == {min(most, tables.ANNOUNCED)}


def test_a_table_of_owners_without_parts_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    one = owned(Owning(24, of_all=True), monkeypatch)
    # The victim's are another's, which then keeps them.
    assert [counted.good for counted in one.counted[:2]] == [0, 0]


def owned(switch: Owning, monkeypatch: pytest.MonkeyPatch) -> Round:
    def heard(_: object) -> Counter[tuple[str, str]]:
        told, switch.heard = switch.heard, Counter()
        return told

    monkeypatch.setattr(tables, "_arp", lambda _, name: switch.end(name))
    monkeypatch.setattr(tables, "_announced", heard)
    return tables.held_first(cast(Shared, switch))


def test_an_arp_answer_says_who_has_an_address() -> None:
    class Wire:
        def __init__(self) -> None:
            self.received = [tables._answer("02:00:00:00:01:01", "10.1.1.7", "02:00:00:00:01:03")]

        def recv(self, _: int) -> bytes:
            if not self.received:
                raise BlockingIOError
            return self.received.pop()

    wire = Wire()
    assert wire.received[0][:14] == frames.ethernet(
        "02:00:00:00:01:03", "02:00:00:00:01:01", frames.ARP, b""
    )
    assert tables._announced(cast(Any, wire)) == {("02:00:00:00:01:01", "10.1.1.7"): 1}


def test_everybody_has_a_place_in_the_shared_network() -> None:
    names = {endpoint.name: endpoint.tenant for endpoint in tables.SHARED.endpoints}
    assert names[VICTIM] == names[MATE] == names[ROUTER] == "blue"
    assert len({names[VICTIM], names[RIVAL], names[TAKER]}) == 3
