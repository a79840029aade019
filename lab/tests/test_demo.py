"""What the demo shows and concludes, and how it says what keeps it from running without root."""

from __future__ import annotations

import errno
import functools
import io
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from lab import demo, lost_server, old_guest, slow_server, two_links, wire
from lab.bars import Bar, Bars
from lab.demo import Act, Phase, Sample, Way
from lab.machine import CpuUse
from lab.net import NETNS_DIR, Lab, Namespace, Process, Received, parse_counters, veth
from lab.programs import Missing, program
from lab.report import Claim
from lab.rootless import diagnose, with_sudo
from lab.switches import Levada
from lab.workload import Guest

ROOT = Path(__file__).resolve().parents[2]
#: The victim's and the aggressor's, in Mbit/s.
Rates = tuple[float, float]


ACTS = pytest.mark.parametrize("act", demo.ACTS, ids=[act.name for act in demo.ACTS])


def sample(act: Act, at_s: float, **payloads_bytes: float) -> Sample:
    """Counters after so much payload, received in full frames of the wire."""
    received = {}
    for name, protocol in act.receivers.items():
        frames = round(payloads_bytes.get(name, 0) / protocol.payload_bytes)
        nbytes = frames * (wire.MTU_BYTES + wire.ETHERNET_BYTES)
        received[name] = Received(nbytes, frames)
    return Sample(at_s, received)


def phase(act: Act, way: Way, mbit: Rates, bound: str | None = None) -> Phase:
    """Ten seconds at constant rates on the wire, of the victim and of the aggressor; each of a
    tenant's receivers has the same part of it."""
    of = {e.name: e.tenant for e in act.topology.endpoints if e.name in act.receivers}
    rate = dict(zip(("victim", "aggressor"), mbit, strict=True))
    each = {name: rate[t] / list(of.values()).count(t) for name, t in of.items()}
    samples = []
    for at_s in range(11):
        payloads = {
            name: at_s * part * 1e6 / 8 * act.receivers[name].payload_bytes / wire.FULL_BYTES
            for name, part in each.items()
        }
        samples.append(sample(act, at_s, **payloads))
    cpu = CpuUse(idle=0.5, cores={}, strangers=0.0)
    return Phase(act, way.title, 0.0, samples, samples[3], {}, cpu, bound)


def judged(act: Act, harmed: Rates, kept: Rates, bound: str | None = None) -> list[Claim]:
    return demo.claims(phase(act, act.harmed, harmed), phase(act, act.kept, kept, bound))


@ACTS
def test_rates_are_those_on_the_wire(act: Act) -> None:
    got = phase(act, act.kept, (600, 300)).got_bps()
    assert got["victim"] == pytest.approx(600e6, rel=1e-3)
    assert got["aggressor"] == pytest.approx(300e6, rel=1e-3)


def test_an_offloaded_frame_counts_as_the_frames_it_stands_for() -> None:
    payload = 40 * wire.TCP.payload_bytes
    headers = wire.ETHERNET_BYTES + wire.TCP.headers_bytes
    whole = Received(payload + headers, 1)
    single = Received(40 * (wire.TCP.payload_bytes + headers), 40)
    assert wire.wire_bits(whole, wire.TCP) == wire.wire_bits(single, wire.TCP)
    assert wire.wire_bits(single, wire.TCP) == 40 * 8 * 1542


@ACTS
def test_kept_promises_and_a_full_link_hold(act: Act) -> None:
    assert [c.holds for c in judged(act, (40, 950), (645, 350))] == [True] * 4


@ACTS
@pytest.mark.parametrize(
    ("harmed", "kept", "broken"),
    [
        ((40, 950), (565, 430), 0),
        ((40, 950), (709, 284), 1),
        ((500, 500), (645, 350), 2),
        ((40, 950), (600, 300), 3),
    ],
)
def test_each_claim_can_fail(act: Act, harmed: Rates, kept: Rates, broken: int) -> None:
    ids = [
        f"victim's part of its guarantee {act.kept.title}",
        f"aggressor's part of its guarantee {act.kept.title}",
        f"victim's part of it {act.harmed.title}",
        f"of the link used {act.kept.title}",
    ]
    claims = judged(act, harmed, kept)
    assert [c.id for c in claims if not c.holds] == [f"{act.name}: {ids[broken]}"]


@ACTS
def test_a_phase_bound_by_the_processor_shows_nothing(act: Act) -> None:
    claims = judged(act, (40, 950), (645, 350), bound="machine idle 1.0% < 3%")
    assert [c.holds for c in claims] == [False, False, True, False]


def test_the_flood_of_the_second_act_comes_from_a_host_that_sends_nothing_else() -> None:
    act = demo.OTHER_HOST
    host = {e.name: e.host for e in act.topology.endpoints}
    assert {host[name] for name in act.receivers} == {"h1"}
    assert len({host[act.victim[0]], *(host[src] for _, src, _, _ in act.aggression), "h1"}) == 3
    # All that differs is whether agents talk.
    lab = Lab()  # not entered: nothing is made
    without, talking = (way.switch(lab, act.topology) for way in (act.harmed, act.kept))
    assert isinstance(without, Levada)
    assert isinstance(talking, Levada)
    assert (without.controller, talking.controller) == (None, "rate")


def old_phase(vcc: str, old_mbit: float) -> old_guest.Phase:
    """Two seconds of the third act at constant rates, of 100 Mbit/s in all."""
    samples = []
    for at_s in (0, 1, 2):
        received = {}
        for name, mbit in (("old", old_mbit), ("new", 100 - old_mbit)):
            frames = round(at_s * mbit * 1e6 / 8 / wire.FULL_BYTES)
            nbytes = frames * (wire.MTU_BYTES + wire.ETHERNET_BYTES)
            received[name] = Received(nbytes, frames)
        samples.append(old_guest.Sample(at_s, received))
    return old_guest.Phase(vcc, samples, samples[0], {})


@pytest.mark.parametrize(
    ("without", "given", "holds"),
    [
        (95, 27, [True, True]),
        (95, 85, [False, True]),
        (60, 35, [True, False]),
        (5, 18, [True, False]),
        (20, 40, [False, False]),
    ],
)
def test_the_old_guest_is_judged_by_both_phases(
    without: float, given: float, holds: list[bool]
) -> None:
    claims = old_guest.claims(old_phase("off", without), old_phase("echo", given))
    assert [claim.holds for claim in claims] == holds


def test_only_the_old_tenant_has_vcc_and_the_slow_link_marks() -> None:
    lab = Lab()  # not entered: nothing is made
    network = old_guest.MarkingNetwork(lab, old_guest.TOPOLOGY, "echo")
    network.guests = {
        e.name: Guest(e.name, Namespace(lab, e.name), "") for e in old_guest.TOPOLOGY.endpoints
    }
    text = network.configuration()
    assert text.count('name = "old"\nvcc = "echo"\n') == text.count("vcc =") == 2
    assert text.count("aqm =") == 1


def links_phase(
    order: str, before_mbit: float, after_mbit: float, disorder: int
) -> two_links.Phase:
    """The fourth act at constant rates, before and after the pulled cable."""
    samples = []
    for tick in range(two_links.PHASE_S * 5):
        at_s = tick / 5
        mbit_s = min(at_s, 3.4) * before_mbit + max(at_s - 3.4, 0) * after_mbit
        frames = round(mbit_s * 1e6 / 8 / wire.FULL_BYTES)
        nbytes = frames * (wire.MTU_BYTES + wire.ETHERNET_BYTES)
        samples.append((at_s, Received(nbytes, frames)))
    return two_links.Phase(order, samples, 3.4, 0, disorder)


@pytest.mark.parametrize(
    ("before", "after", "disorder", "holds"),
    [
        (195, 98, 0, [True, True, True]),
        (100, 98, 30, [False, True, True]),
        (195, 50, 300, [True, False, False]),
    ],
)
def test_two_links_are_judged_by_both_of_them_and_by_plain_disorder(
    before: float, after: float, disorder: int, holds: list[bool]
) -> None:
    plain = links_phase("off", 190, 98, 1000)
    numbered = links_phase("auto", before, after, disorder)
    assert [claim.holds for claim in two_links.claims(plain, numbered)] == holds
    assert "numbered" in two_links.text(plain, numbered)


def test_without_disorder_in_plain_round_robin_numbers_put_nothing_in_order() -> None:
    disorder = two_links.claims(links_phase("off", 190, 98, 0), links_phase("auto", 195, 98, 0))[2]
    assert (disorder.value, disorder.holds) == (None, False)


def test_the_kernels_counters_come_in_pairs_of_lines() -> None:
    text = "Tcp: OutSegs RetransSegs\nTcp: 12 3\nTcpExt: TCPOFOQueue\nTcpExt: 7\n"
    assert parse_counters(text) == {"TcpOutSegs": 12, "TcpRetransSegs": 3, "TcpExtTCPOFOQueue": 7}


def lost_phase(title: str, failed: int) -> lost_server.Phase:
    """So many requests failed, and the switch saw the killed server ejected."""
    told = {"answered": {"web1": 100}, "failed": {"ConnectionRefusedError": failed}}
    backends = [{"name": name, "state": "ejected"} for name in lost_server.SERVERS]
    service = {"new": 100 + failed, "redirected": 5, "backends": backends}
    return lost_server.Phase(title, {**told, "slowest_s": 0.01}, service, {})


@pytest.mark.parametrize(
    ("direct", "served", "holds"),
    [(80, 0, [True, True]), (80, 4, [True, False]), (10, 1, [False, True])],
)
def test_a_killed_server_is_judged_by_requests_that_failed(
    direct: int, served: int, holds: list[bool]
) -> None:
    phases = (
        lost_phase(lost_server.DIRECT, direct),
        lost_phase(lost_server.SERVED, served),
    )
    assert [claim.holds for claim in lost_server.claims(*phases)] == holds
    text = lost_server.text(*phases)
    assert f"{lost_server.KILLED} is ejected." in text
    assert [cell["labels"] for cell in lost_server.cells(*phases)][1] == {
        "act": "lost-server",
        "phase": lost_server.SERVED,
    }


def slow_phase(policy: str, mean_ms: float, failed: int = 0) -> slow_server.Phase:
    """Two hundred requests, at this mean."""
    answered = {"web1": 100, "web2": 60, "web3": 40}
    told = {"answered": answered, "failed": {"TimeoutError": failed}, "total_s": 0.2 * mean_ms}
    return slow_server.Phase(policy, told, {})


@pytest.mark.parametrize(
    ("in_turn", "default", "failed", "holds"),
    [(22, 12, 0, [True, True]), (22, 16, 0, [False, True]), (22, 12, 1, [True, False])],
)
def test_a_slow_server_is_judged_by_the_means_with_both_policies(
    in_turn: float, default: float, failed: int, holds: list[bool]
) -> None:
    phases = (slow_phase("round-robin", in_turn), slow_phase("p2c", default, failed))
    assert [claim.holds for claim in slow_server.claims(phases)] == holds
    assert "22.0" in slow_server.text(phases)
    assert [cell["labels"] for cell in slow_server.cells(phases)] == [
        {"act": "slow-server", "phase": policy} for policy in slow_server.POLICIES
    ]


def test_without_an_answer_a_slow_server_shows_nothing() -> None:
    silent = slow_server.Phase("p2c", {"answered": {}, "failed": {"TimeoutError": 9}}, {})
    claims = slow_server.claims((slow_phase("round-robin", 22), silent))
    assert [(claim.value, claim.holds) for claim in claims] == [(None, False), (9, False)]
    assert "9" in slow_server.text((slow_phase("round-robin", 22), silent))


def test_a_visitors_ticks_become_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [None, {"answered": {"web1": 5}}, {"answered": {"web1": 5}}, {"answered": {"web1": 15}}]
    reads = iter(told)
    monkeypatch.setattr(lost_server, "last_tick", lambda _: next(reads))
    monkeypatch.setattr(lost_server, "TICK_S", 0.01)
    series: lost_server.Series = {"web1": ([], []), "web2": ([], [])}
    visitor = cast(Process, SimpleNamespace(output=lambda: ""))
    seen = lost_server.ticks(visitor, 60, series)
    news = [next(seen)[1] is not None for _ in told]
    assert news == [False, True, False, True]
    assert series["web1"][1] == pytest.approx([500, 1000])
    assert series["web2"][1] == [0, 0]
    assert lost_server.latest(series) == pytest.approx({"web1": 1000, "web2": 0})


def test_the_service_has_every_server_and_no_other() -> None:
    lab = Lab()  # not entered: nothing is made
    shop = lost_server.Shop(lab, lost_server.TOPOLOGY)
    names = (lost_server.CLIENT, *lost_server.SERVERS)
    shop.guests = {name: Guest(name, Namespace(lab, name), "") for name in names}
    text = shop.configuration()
    backends = text.partition("[[switch.tenant.service]]")[2]
    assert [f'name = "{name}"' in backends for name in names] == [False, True, True, True]


class Terminal(io.StringIO):
    """A terminal that remembers what was written."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


ROWS = (Bar("victim", 300, 600, True), Bar("aggressor", 700, 300, True))


def test_bars_are_drawn_over_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    bars = Bars(1000, "Mbit/s", out)
    bars.draw("before", ROWS)
    assert "\x1b[3A" not in out.getvalue()
    bars.draw("after", ROWS)
    assert out.getvalue().count("\x1b[3A") == 1
    line = bars.line(ROWS[0])
    filled, promised = line.index("░"), line.index("│")
    assert filled < promised, "the mark at 600 lies beyond a bar of 300"
    assert "300 Mbit/s, promised 600" in line


def test_without_a_terminal_there_are_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.bars.PLAIN_EVERY_S", 0)
    out = io.StringIO()
    Bars(1000, "Mbit/s", out).draw("with Levada", ROWS)
    line = "with Levada  victim 300 (promised 600), aggressor 700 (promised 300) Mbit/s\n"
    assert out.getvalue() == line


def settings(folder: Path, **values: str) -> Path:
    for key, value in values.items():
        file = folder.joinpath(*key.split("__"))
        file.parent.mkdir(exist_ok=True)
        file.write_text(value + "\n")
    return folder


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("user__max_user_namespaces", "0", "user.max_user_namespaces=10000"),
        ("kernel__unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        (
            "kernel__apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ],
)
def test_the_setting_that_blocks_is_named(
    tmp_path: Path, key: str, value: str, remedy: str
) -> None:
    refused = OSError(errno.EPERM, os.strerror(errno.EPERM))
    told = diagnose(refused, settings(tmp_path, **{key: value}))
    assert key.replace("__", ".") in told
    assert f"sudo sysctl -w {remedy}" in told


def test_where_no_setting_blocks_none_is_accused(tmp_path: Path) -> None:
    open_ = settings(tmp_path, user__max_user_namespaces="1000")
    told = diagnose(OSError(errno.EPERM, "Operation not permitted"), open_)
    assert "sysctl -w" not in told
    assert "seccomp" in told


def test_sudo_is_offered_with_what_it_would_drop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sudo").write_text("")
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/the/tree")
    answer, error = Terminal("y\n"), Terminal()
    monkeypatch.setattr("sys.stdin", answer)
    monkeypatch.setattr("sys.stderr", error)
    elevated = with_sudo(["python", "-m", "lab.demo"])
    assert elevated is not None
    assert elevated[:2] == ["sudo", "env"]
    assert "PYTHONPATH=/the/tree" in elevated
    assert elevated[-3:] == ["python", "-m", "lab.demo"]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert with_sudo(["python"]) is None, "nobody is there to answer"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@pytest.mark.root
@needs_root
def test_counters_are_read_inside_and_this_process_stays_outside() -> None:
    outside = Path("/proc/self/ns/net").readlink()
    with Lab() as lab:
        a, b = lab.namespace("a"), lab.namespace("b")
        veth(a, "to-b", b, "to-a")
        a.ip("addr add 10.9.0.1/24 dev to-b")
        b.ip("addr add 10.9.0.2/24 dev to-a")
        before = b.received("to-a")
        a.run("ping", "-n", "-q", "-c3", "-i0.01", "-s100", "10.9.0.2")
        came = b.received("to-a").since(before)
        # ARP may add one or two; an echo request is 14 + 20 + 8 + 100 bytes.
        assert 3 <= came.frames <= 5
        assert came.nbytes >= 3 * 142
    assert Path("/proc/self/ns/net").readlink() == outside


@pytest.mark.root
@needs_root
def test_ctrl_c_in_the_middle_leaves_nothing() -> None:
    try:
        program()
    except Missing as missing:
        pytest.skip(str(missing))
    running = subprocess.Popen(
        [sys.executable, "-m", "lab.demo"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Where the tests are a shell's background job they are deaf to Ctrl-C, and so is it.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    tag = f"lv-{running.pid}"
    deadline = time.monotonic() + 20
    assert running.stdout is not None
    for line in itertools.takewhile(lambda _: time.monotonic() < deadline, running.stdout):
        if line.startswith(b"without isolation"):
            break
    assert list(NETNS_DIR.glob(f"{tag}-*"))
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130, told
    assert not list(NETNS_DIR.glob(f"{tag}-*"))
    assert not Path(f"/tmp/levada-lab-{running.pid}").exists()
