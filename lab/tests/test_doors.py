"""What crowds where a daemon lets others in, and how places without owners are found out."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
import socket
import struct
from pathlib import Path
from typing import cast

import pytest

from lab import crowd, doors
from lab.counted import MATE, RIVAL
from lab.crowd import Crowd
from lab.doors import VICTIM, Doors, Reporter
from lab.net import Lab
from lab.tests.test_attacks import Nowhere, checked, configuration

ROOT = Path(__file__).parents[2]


def of_source(file: str, name: str) -> int:
    """A constant of the daemon."""
    found = re.search(rf"const {name}: \w+ = ([\d_]+);", (ROOT / file).read_text())
    assert found
    return int(found.group(1).replace("_", ""))


# --- what is done -------------------------------------------------------------------------


def test_crowds_are_more_than_there_are_places_for() -> None:
    assert of_source("levada/src/http.rs", "CLIENTS") == doors.PLACES
    assert of_source("levada/src/http.rs", "CLIENTS_OF_ONE") == doors.PLACES_OF_ONE
    # Some attackers leave a place, and all of them none.
    assert doors.SOME * doors.PLACES_OF_ONE < doors.PLACES
    assert len(doors.READERS) * doors.PLACES_OF_ONE > doors.PLACES
    # Each that has no place is told so.
    refusals = of_source("levada/src/http.rs", "REFUSALS")
    some, every = doors.SOME * doors.TRIES, len(doors.READERS) * doors.TRIES
    assert max(some, every - some) <= refusals
    # Lines about the victim's clients are fewer than a directory may have in a second, and those
    # about the rival's are more.
    lines = 8
    assert 2 / doors.EVERY_S < lines < 2 * doors.PLUGGED / (doors.CLIENTS * doors.EVERY_S)
    assert doors.READER not in doors.READERS


def test_lies_are_fewer_than_are_looked_at_and_more_than_a_backend_may_have() -> None:
    in_all, of_one = (
        of_source("control/src/report.rs", name) for name in ("MOST_IN_ALL", "MOST_OF_BACKEND")
    )
    each_s = 1 / doors.STEP_S
    assert 6 * each_s < in_all / 2
    assert each_s > 2 * of_one
    assert in_all / 2 < doors.FORGED


def test_the_host_is_a_configuration(tmp_path: Path) -> None:
    switch = Doors(cast(Lab, Nowhere(tmp_path)))
    for endpoint in doors.TOPOLOGY.endpoints:
        path = f"host/{endpoint.tenant}/web/{endpoint.name}"
        write_key(switch.key(endpoint.name), path)
    checked(configuration(switch), tmp_path)


def write_key(file: Path, path: str) -> None:
    secret = hashlib.sha256(path.encode()).hexdigest()
    file.write_text(f"levada-report-key {path} {secret}\n")
    file.chmod(0o600)


def test_a_request_is_one_of_vde() -> None:
    told = crowd.request(Path("/tmp/plugs/.me"), "somebody")
    assert struct.unpack_from("=III", told) == (0xFEED_FACE, 3, 0)
    assert len(told) == 122 + len("somebody")
    assert told[14:].startswith(b"/tmp/plugs/.me\0")


def test_lines_about_clients_are_counted_once() -> None:
    label = "levada: lab: host/blue/plug-blue:"
    log = [
        f'{label} plugged in by "victim-1" (user 0, process 7)',
        f'{label} plugged in by "victim-1" (user 0, process 7)',
        f'{label} plugged in by "victim-12" (user 0, process 7)',
        f'{label} "victim-12" (user 0, process 7) unplugged',
        f'{label} plugged in by "rival" (user 65402, process 7)',
        f'{label} plugged in by "rival" (user 1, process 7) (repeated 9 times, this is the last)',
    ]
    assert doors._lines("\n".join(log)) == 3


# --- stand-ins ----------------------------------------------------------------------------


def test_a_crowd_counts_who_has_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "acting_as", lambda *_: contextlib.nullcontext())
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        many = Crowd(path, 1, 1)
        with contextlib.closing(many), contextlib.ExitStack() as stack:
            many.come(4)
            served = [stack.enter_context(listener.accept()[0]) for _ in range(4)]
            served[0].send(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
            served[1].close()
            many.look()
            assert many.early == 2
            # Two are there yet.
            many.look()
            assert many.early == 2
    many.come(1)
    assert many.early == 2


class Daemon:
    """Takes load reports, as far as it judges them."""

    home = ""

    def __init__(self, folder: Path, judges: bool) -> None:
        self._folder, self._judges = folder, judges
        self.counted = dict.fromkeys(("forged", "replayed", "too_many"), 0)
        self._loads: dict[str, int] = {}
        self._last: dict[tuple[str, int], int] = {}
        self._keys = {}
        for name, tenant in doors.TENANT_OF.items():
            path = f"host/{tenant}/web/{name}"
            write_key(self.key(name), path)
            secret = bytes.fromhex(self.key(name).read_text().split()[2])
            self._keys[doors.backend_number(path)] = (name, secret)

    def key(self, name: str) -> Path:
        return self._folder / f"{name}.key"

    def verdicts(self) -> dict[str, int]:
        return dict(self.counted)

    def load(self, name: str) -> int | None:
        return self._loads.get(name)

    def take(self, datagram: bytes) -> None:
        load, backend, boot, sequence, _ = struct.unpack_from("!IQIIQ", datagram, 4)
        name, secret = self._keys[backend]
        if not hmac.compare_digest(hmac.digest(secret, datagram[:32], "sha256"), datagram[32:]):
            self.counted["forged"] += 1
            # As if more had come than are looked at.
            self.counted["too_many"] += 1
            if not self._judges:
                self._loads[name] = load
            return
        if sequence <= self._last.get((name, boot), 0):
            self.counted["replayed"] += 1
            return
        self._last[name, boot] = sequence
        self._loads[name] = load


@pytest.fixture
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of the clock takes a while, and nobody waits."""
    now = 0.0

    def monotonic() -> float:
        nonlocal now
        now += 0.0005
        return now

    monkeypatch.setattr("lab.doors.time.monotonic", monotonic)
    monkeypatch.setattr("lab.doors.time.sleep", lambda _: None)
    monkeypatch.setattr(doors, "inside", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(doors.Reports, "_send", lambda self, one: self._switch.take(one))


@pytest.mark.usefixtures("in_no_time")
@pytest.mark.parametrize("judges", [True, False])
def test_a_daemon_that_takes_forged_reports_is_found_out(judges: bool, tmp_path: Path) -> None:
    switch = cast(Doors, Daemon(tmp_path, judges))
    for one in (doors.false_reports(switch), doors.flood_of_reports(switch)):
        taken, looks = one.counted
        assert (not one.missed, taken.good, taken.all, looks.holds) == (True, 10, 10, judges)


def test_reports_have_the_form_that_the_daemon_reads(tmp_path: Path) -> None:
    write_key(tmp_path / "key", "host/blue/web/victim0")
    server = Reporter(tmp_path / "key")
    told, other = server.report(530), server.report(7, "host/red/web/red0")
    assert len(told) == len(other) == 64
    assert told[:8] == b"L\x01\0\0" + (530).to_bytes(4)
    assert told[8:16] != other[8:16] and told[16:20] == other[16:20]
    assert [int.from_bytes(one[20:24]) for one in (told, other)] == [1, 2]
    # The offset basis of FNV-1a (RFC 9923), and of one letter.
    assert doors.backend_number("") == 0xCBF2_9CE4_8422_2325
    assert doors.backend_number("a") == 0xAF63_DC4C_8601_EC8C


def test_attackers_are_users_of_the_group() -> None:
    assert set(doors.USERS) == {MATE, RIVAL}
    assert set(doors.USERS.values()) <= set(doors.READERS)
    assert VICTIM not in doors.USERS
