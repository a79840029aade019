"""Where a daemon lets others in, while attackers crowd there: VDE directories and their
lines in the log, the control socket, and load reports.

One host without an uplink. Two attack at once (`lab.counted`), each as a user of its own who may be
there: MATE in the victim's directory, RIVAL in one of its own tenant; at the control socket both
and others are members of the group that may read; both have keys of backends of their own. Places
are to have an owner, a bound and a share, by directory, user or backend.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lab.attacked import pin, service_table
from lab.costly import SERVICE_PORT
from lab.counted import (
    ATTACKERS,
    LOOK_S,
    MATE,
    RIVAL,
    Counted,
    Hit,
    Played,
    Round,
    note,
    until,
    until_hit,
)
from lab.crowd import CTL, Crowd, acting_as, connected, plugs_in
from lab.net import Failed, Lab, inside, run
from lab.numbered import came, frame, outlet
from lab.programs import program
from lab.switches.levada import Levada, toml_table
from lab.topology import Endpoint, Host, Tenant, Topology

VICTIM = "victim0"
TOPOLOGY = Topology(
    (Tenant("blue"), Tenant("red")),
    (
        Endpoint(VICTIM, "blue", "host"),
        Endpoint(MATE, "blue", "host"),
        Endpoint(RIVAL, "red", "host"),
    ),
    (Host("host", 1_000_000_000),),
)
TENANT_OF = {endpoint.name: endpoint.tenant for endpoint in TOPOLOGY.endpoints}
#: The attackers' users, which nobody else has, and the group that may read.
USERS, GROUP = {MATE: 65_401, RIVAL: 65_402}, 65_400
#: Services and their addresses: each endpoint is a backend of its tenant's.
SERVICES = {"blue": "10.1.0.100", "red": "10.2.0.100"}
REPORTS_PORT = 7371


class Doors(Levada):
    """The host."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab, TOPOLOGY)

    @property
    def control(self) -> Path:
        """The control socket."""
        return self.lab.dir / "run" / self._name / "control.sock"

    @property
    def home(self) -> str:
        """The daemon's namespace."""
        return f"{self.lab.tag}-levada"

    def directory(self, endpoint: str) -> Path:
        """The VDE directory of an endpoint's tenant."""
        return self.lab.dir / f"plugs-{TENANT_OF[endpoint]}"

    def key(self, endpoint: str) -> Path:
        """The file with a backend's key."""
        return self.lab.dir / f"{endpoint}.key"

    def verdicts(self) -> dict[str, int]:
        """What became of load reports."""
        counts: dict[str, int] = self._shown("services")["reports"]
        return counts

    def load(self, endpoint: str) -> int | None:
        """The load that a backend is known to have, in thousandths."""
        backends = (b for service in self.services() for b in service["backends"])
        load: int | None = next(b["load_milli"] for b in backends if b["name"] == endpoint)
        return load

    def configuration(self) -> str:
        more = f'reports = "127.0.0.1:{REPORTS_PORT}"\nsocket_group = "{GROUP}"\n'
        return super().configuration().replace("[daemon]\n", f"[daemon]\n{more}")

    def _endpoint(self, endpoint: Endpoint, host: Host) -> str:
        text = super()._endpoint(endpoint, host)
        tenant = endpoint.tenant
        members = [one for one in TOPOLOGY.endpoints if one.tenant == tenant]
        if endpoint != members[-1]:
            return text
        # Behind the last endpoint of its tenant.
        port = f"vde://{self.directory(endpoint.name)}"
        name = f"plug-{tenant}"
        plug = toml_table("[switch.tenant.endpoint]", name=name, port=port, mode="0666")
        backends: list[dict[str, object]] = [
            {"name": one.name, "key": str(self.key(one.name))} for one in members
        ]
        web = service_table("web", f"{SERVICES[tenant]}:{SERVICE_PORT}", *backends)
        return "\n".join([text, plug, web])

    def _start(self) -> None:
        for endpoint in TOPOLOGY.endpoints:
            path = f"host/{endpoint.tenant}/web/{endpoint.name}"
            run(str(program()), "key", path, str(self.key(endpoint.name)))
        super()._start()


# --- VDE directories ----------------------------------------------------------------------

#: Clients of the victim, one after the other, and how often one comes: two lines in the log for
#: each, below what a directory may have (docs/reference/ports/vde.md).
CLIENTS, EVERY_S = 20, 0.34
#: How long one takes from its connection to its request, as on a busy machine.
ASKS_AFTER_S = 0.05
#: What attackers do meanwhile: silent clients, of which 64 may wait; of the rival also such as plug
#: in and out, and as send what is no request.
SILENT, PLUGS, GARBAGE = 100, 8, 4
#: Of all silent ones, and of all that plug in.
SENT_AWAY, PLUGGED = 500, 60


def plugs(switch: Doors) -> Round:
    """Silent clients, and lines in the log: those of the victim plug in, and the log has their
    lines.

    How many of an attacker's clients were sent away before their time tells that more came than may
    wait; how often the rival plugged in, that there were more lines than are written. Where places
    or lines are for all directories, some of the victim's are lost."""
    crowds = {n: Crowd(switch.directory(n) / CTL, USERS[n], GROUP) for n in ATTACKERS}
    plugged = came_in = 0
    try:
        for number in range(CLIENTS):
            due = time.monotonic() + EVERY_S
            came_in += _comes(switch, list(crowds.values()), f"victim-{number}")
            plugged += _rival(switch)
            for crowd in crowds.values():
                crowd.look()
            time.sleep(max(0.0, due - time.monotonic()))
    finally:
        for crowd in crowds.values():
            crowd.close()
    until(lambda: _lines(switch.daemon.output()) == 2 * CLIENTS)
    away = [Hit(f"clients of {n} sent away", crowd.early, SENT_AWAY) for n, crowd in crowds.items()]
    return Round(
        "crowds at VDE directories",
        (*away, Hit(f"plugs of {RIVAL}", plugged, PLUGGED)),
        (
            Counted("clients of the victim plug in", came_in, CLIENTS),
            Counted("lines about them are in the log", _lines(switch.daemon.output()), 2 * CLIENTS),
        ),
    )


def _comes(switch: Doors, crowds: list[Crowd], description: str) -> bool:
    """A client of the victim connects, crowds come, and it asks: whether it is plugged in."""
    directory = switch.directory(VICTIM)
    with contextlib.suppress(OSError), contextlib.closing(connected(directory / CTL)) as client:
        for crowd in crowds:
            crowd.come(SILENT)
        time.sleep(ASKS_AFTER_S)
        return plugs_in(client, directory, description)
    return False


def _rival(switch: Doors) -> int:
    """What the rival does beside its silent clients: how often it was plugged in."""
    directory, plugged = switch.directory(RIVAL), 0
    with acting_as(USERS[RIVAL], GROUP):
        for number in range(PLUGS + GARBAGE):
            with (
                contextlib.suppress(OSError),
                contextlib.closing(connected(directory / CTL)) as one,
            ):
                if number < PLUGS:
                    plugged += plugs_in(one, directory, "rival")
                else:
                    one.send(b"garbage, and no request")
    return plugged


def _lines(log: str) -> int:
    """Lines about the victim's clients: that one is plugged in, and unplugged."""
    told = 0
    for number in range(CLIENTS):
        about = [line for line in log.splitlines() if f'"victim-{number}"' in line]
        told += any("plugged in by" in line for line in about)
        told += any(line.endswith(" unplugged") for line in about)
    return told


# --- the control socket -------------------------------------------------------------------

#: Users who may read: attackers, more than there are places for, and one who asks.
READERS, READER = tuple(range(65_401, 65_406)), 65_410
#: Of these so many leave a place free: each has eight at most, and all have 32
#: (docs/reference/http.md).
SOME, PLACES_OF_ONE, PLACES = 3, 8, 32
#: Connections of each attacker; what the reader and the operator ask, and the operator changes; and
#: frames between two of the operator's.
TRIES, ASKED, FRAMES = 20, 20, 5
#: After which time a place is free again whose client is gone, also on a busy machine.
FREE_AFTER_S = 2.0


def places(switch: Doors) -> Round:
    """Silent readers of the control socket: while they have all places of some users
    another one is answered, and when they have all places the operator is.

    Who is sent away tells that an attacker had its own, and the reader that none was left; 64 at
    once are told why (503), others not. Places without owners are theirs alone."""
    with _silent(switch.control, READERS[:SOME]) as crowds:
        few = _sent_away(f"sent away, of {SOME} attackers", crowds, SOME * (TRIES - PLACES_OF_ONE))
        answered = sum(_reads(switch.control) for _ in range(ASKED))
    # Anew, and not with those above, whose time is over by now. Until their places are free, others
    # are sent away that would have taken one.
    time.sleep(FREE_AFTER_S)
    with _silent(switch.control, READERS) as crowds:
        most = _sent_away("sent away, of all of them", crowds, len(READERS) * TRIES - PLACES)
        full = Hit("one more sent away", not _reads(switch.control), 1)
        operated, arrived = _operates(switch)
    return Round(
        "silent readers",
        (few, most, full),
        (
            Counted("reports for another reader", answered, ASKED),
            Counted("changes and reports of the operator", operated, 2 * ASKED),
            Counted("frames arrive meanwhile", arrived, 2 * ASKED * FRAMES),
        ),
    )


@contextlib.contextmanager
def _silent(control: Path, users: Sequence[int]) -> Iterator[list[Crowd]]:
    """Silent connections of each of these users, until the end of the block."""
    crowds = [Crowd(control, user, GROUP) for user in users]
    try:
        for crowd in crowds:
            crowd.come(TRIES)
        yield crowds
    finally:
        for crowd in crowds:
            crowd.close()


def _sent_away(name: str, crowds: list[Crowd], expected: int) -> Hit:
    """How many of them are, waiting until as many as expected are."""

    def away() -> int:
        for crowd in crowds:
            crowd.look()
        return sum(crowd.early for crowd in crowds)

    until(lambda: away() >= expected)
    return Hit(name, away(), expected)


def _reads(control: Path) -> bool:
    """A member of the group asks for the report: whether it gets that."""
    told = b""
    with (
        acting_as(READER, GROUP),
        contextlib.suppress(OSError),
        contextlib.closing(connected(control)) as one,
    ):
        one.send(b"GET /v1/report HTTP/1.1\r\nhost: levada\r\n\r\n")
        while part := one.recv(1 << 16):
            told += part
    return told.startswith(b"HTTP/1.1 200 ")


def _operates(switch: Doors) -> tuple[int, int]:
    """Changes and reports of the operator that were made, and frames that came."""
    to, own = (switch.topology.mac(e) for e in (TOPOLOGY.endpoints[1], TOPOLOGY.endpoints[0]))
    done = sent = 0
    with contextlib.ExitStack() as stack:
        victim, mate = (
            stack.enter_context(outlet(switch.guests[name].namespace.name, name))
            for name in (VICTIM, MATE)
        )
        for number in range(2 * ASKED):
            for _ in range(FRAMES):
                victim.send(frame(to, own, sent))
                sent += 1
            with contextlib.suppress(Failed):
                if number % 2:
                    switch.sample()
                else:
                    switch.set("tenant", "host/red", f"weight={2 + number % 4}")
                done += 1
        time.sleep(LOOK_S)
        return done, len(came(mate))


# --- load reports -------------------------------------------------------------------------

#: Reports of the victim's server, and how often it sends one.
REPORTED, REPORT_S = 10, 0.25
#: Between two times that attackers send what each has: below what is looked at in all, and far
#: above what a backend may have taken.
STEP_S = 0.006
#: Of each kind, for an attack.
REFUSED = 300
#: A flood between two looks, far above what is looked at in all: how many of it were, and were not.
FLOOD_S, AT_ONCE, FORGED, BEYOND = 0.2, 100, 6000, 300
#: The victim's load is counted on from this, in thousandths; what attackers report.
LOAD, LIE, OWN = 1000, 77, 88


class Reporter:
    """A server with a key (`levada key`)."""

    def __init__(self, key: Path) -> None:
        _, self.path, secret = key.read_text().split()
        self._secret = bytes.fromhex(secret)
        self._boot, self._sequence = int.from_bytes(os.urandom(4)), 0

    def report(self, load_milli: int, of: str | None = None) -> bytes:
        """Its next report (control/src/report.rs), or one in the name of another backend."""
        self._sequence += 1
        signed = b"L\x01\0\0" + struct.pack(
            "!IQIIQ",
            *(load_milli, backend_number(of or self.path)),
            *(self._boot, self._sequence, time.time_ns()),
        )
        return signed + hmac.digest(self._secret, signed, hashlib.sha256)


def backend_number(path: str) -> int:
    """Of a backend in its reports: FNV-1a, 64 bits."""
    number = 0xCBF2_9CE4_8422_2325
    for byte in path.encode():
        number = (number ^ byte) * 0x100_0000_01B3 % (1 << 64)
    return number


class Reports:
    """Who reports to a daemon, and lies."""

    def __init__(self, switch: Doors) -> None:
        self._switch = switch
        self.victim = Reporter(switch.key(VICTIM))
        self._attackers = [Reporter(switch.key(name)) for name in ATTACKERS]
        self._before = switch.verdicts()
        with inside(switch.home):
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._load = LOAD
        #: One that was recorded.
        self._old = b""
        #: After lies: whether the load is what the victim's server reported last.
        self.looks: list[bool] = []
        self.taken(1)

    def grown(self, verdict: str) -> int:
        """How many had it."""
        return self._switch.verdicts()[verdict] - self._before[verdict]

    def taken(self, count: int, beside: Callable[[], None] = lambda: None) -> int:
        """How many of so many reports of the victim are its load at once."""
        good = 0
        for _ in range(count):
            beside()
            self._load += 1
            report = self.victim.report(self._load)
            self._old = self._old or report
            self._send(report)
            good += until(self._is_true, REPORT_S)
        return good

    def looked(self) -> Counted:
        """The looks."""
        return Counted("looks at a load that no lie has changed", sum(self.looks), len(self.looks))

    def _is_true(self) -> bool:
        return self._switch.load(VICTIM) == self._load

    def lie(self) -> None:
        """What attackers send between two reports of the victim."""
        end = time.monotonic() + REPORT_S
        while time.monotonic() < end:
            for attacker in self._attackers:
                self._send(attacker.report(OWN))
                self._send(attacker.report(LIE, self.victim.path))
                self._send(self._old)
            time.sleep(STEP_S)
        self.looks.append(self._is_true())

    def flood(self) -> None:
        """More than is looked at."""
        forged = self._attackers[0].report(LIE, self.victim.path)
        end = time.monotonic() + FLOOD_S
        while time.monotonic() < end:
            for _ in range(AT_ONCE):
                self._send(forged)
        self.looks.append(self._is_true())

    def _send(self, datagram: bytes) -> None:
        self._socket.sendto(datagram, ("127.0.0.1", REPORTS_PORT))

    def close(self) -> None:
        self._socket.close()


def false_reports(switch: Doors) -> Round:
    """Reports under wrong keys, such as were taken before, and more of one's own than a backend may
    have: those of the victim's server are taken, and nothing else.

    The counters of these three verdicts tell that they came, and were looked at."""
    with contextlib.closing(Reports(switch)) as reports:
        good = reports.taken(REPORTED, reports.lie)
        hits = tuple(
            Hit(f"reports {what}", reports.grown(verdict), REFUSED)
            for verdict, what in (
                ("forged", "under a wrong key"),
                ("replayed", "that were taken before"),
                ("too_many", "beyond what a backend may have"),
            )
        )
        taken = Counted("reports are taken", good, REPORTED)
        return Round("false load reports", hits, (taken, reports.looked()))


def flood_of_reports(switch: Doors) -> Round:
    """More forged reports than are looked at: none is taken, and those of the victim's server are
    when it is over. Meanwhile they may be lost (docs/explanation/security.md).

    `too_many` tells that there were more."""
    with contextlib.closing(Reports(switch)) as reports:

        def hit() -> Iterator[Hit]:
            reports.flood()
            yield Hit("reports under a wrong key", reports.grown("forged"), FORGED)
            yield Hit("reports beyond what is looked at", reports.grown("too_many"), BEYOND)

        hits = until_hit(hit)
        # What the socket holds yet.
        time.sleep(REPORT_S)
        good = reports.taken(REPORTED)
        taken = Counted("reports are taken afterwards", good, REPORTED)
        return Round("flood of load reports", hits, (taken, reports.looked()))


# --- all of them --------------------------------------------------------------------------

ATTACKS: tuple[Callable[[Doors], Round], ...] = (plugs, places, false_reports, flood_of_reports)


def play(lab: Lab, core: int, rounds: int, say: Callable[[str], None]) -> Played:
    """All attacks, one after the other, `rounds` times, each time on a daemon of its own."""
    played: Played = {}
    for _ in range(rounds):
        switch = Doors(lab)
        with switch.running():
            pin(switch.daemon, core)
            for attack in ATTACKS:
                note(played, attack(switch), say)
    return played
