"""What a lab makes goes away: after success, failure, a signal, and after being killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import net
from lab.machine import cpu_use, sample_cpu
from lab.net import NETNS_DIR, RUN_DIR, Failed, Lab, bridge, remove_leftovers, veth

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


def left_of(pid: int) -> list[str]:
    spaces = [p.name for p in NETNS_DIR.glob(f"lv-{pid}-*")] if NETNS_DIR.exists() else []
    return spaces + [str(p) for p in Path("/tmp").glob(f"levada-lab-{pid}")]


def test_two_hosts_reach_each_other_and_vanish() -> None:
    with Lab() as lab:
        a, b = lab.namespace("a"), lab.namespace("b")
        veth(a, "to-b", b, "to-a")
        a.ip("addr add 10.9.0.1/24 dev to-b")
        b.ip("addr add 10.9.0.2/24 dev to-a")
        assert "1 received" in a.run("ping", "-c1", "-W2", "10.9.0.2")
        assert a.run("sysctl", "-n", "net.ipv4.tcp_congestion_control").strip() == "cubic"
        assert "cubic" in ALLOWED.read_text().split()
        assert left_of(os.getpid())
    assert left_of(os.getpid()) == []


def test_settings_of_the_machine_are_put_back() -> None:
    before = ALLOWED.read_text()
    with Lab() as lab:
        lab.namespace("a")
    assert ALLOWED.read_text() == before


def test_a_failure_inside_leaves_nothing() -> None:
    with pytest.raises(Failed, match="no-such-device"), Lab() as lab:
        space = lab.namespace("a")
        sleeper = space.spawn("sleeper", "sleep", "60")
        space.ip("link set no-such-device up")
    assert not sleeper.alive()
    assert left_of(os.getpid()) == []


def test_a_stage_ends_before_its_lab() -> None:
    with Lab() as lab:
        outer = lab.namespace("outer")
        with lab.stage():
            inner = lab.namespace("inner")
            bridge(inner, "br0")
            assert inner.has_device("br0")
        assert not (NETNS_DIR / inner.name).exists()
        assert (NETNS_DIR / outer.name).exists()


def test_a_process_that_dies_early_is_told_with_its_log() -> None:
    with Lab() as lab:
        process = lab.spawn("liar", "sh", "-c", "echo out of luck >&2; exit 3")
        with pytest.raises(Failed, match="out of luck"):
            process.wait_for(lambda: False, "readiness")


# A shell's background jobs, and so what they start, are born deaf to Ctrl-C.
CHILD = """
import signal, time
from lab.net import Lab
signal.signal(signal.SIGINT, signal.default_int_handler)
with Lab() as lab:
    space = lab.namespace("a")
    sleeper = space.spawn("sleeper", "sleep", "60")
    print(sleeper.pid, flush=True)
    time.sleep(60)
"""


def start_child() -> tuple[subprocess.Popen[str], int]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert child.stdout is not None
    sleeper = int(child.stdout.readline())
    assert left_of(child.pid)
    return child, sleeper


def gone(pid: int) -> bool:
    """Within a second, as a killed process is first a zombie of whoever adopts it."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing(number: signal.Signals) -> None:
    before = ALLOWED.read_text()
    child, sleeper = start_child()
    child.send_signal(number)
    assert child.wait(60) != 0
    assert left_of(child.pid) == []
    assert gone(sleeper)
    assert ALLOWED.read_text() == before


def test_the_last_of_labs_side_by_side_puts_settings_back() -> None:
    before = ALLOWED.read_text()
    child, _ = start_child()
    with Lab():
        child.terminate()
        child.wait(60)
        assert "cubic" in ALLOWED.read_text().split(), "this one still needs it"
    assert ALLOWED.read_text() == before


def test_what_a_killed_lab_leaves_is_cleaned_up() -> None:
    remove_leftovers()
    before = ALLOWED.read_text()
    child, sleeper = start_child()
    child.kill()
    child.wait(60)
    assert gone(sleeper), "the parent-death signal ends the lab's processes"
    assert left_of(child.pid)
    remove_leftovers()
    assert left_of(child.pid) == []
    if not list(RUN_DIR.glob("levada-lab-*")):  # another lab may need cubic
        assert ALLOWED.read_text() == before


def test_cleaning_up_spares_what_is_no_labs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces, folders = tmp_path / "netns", tmp_path / "tmp"
    monkeypatch.setattr(net, "NETNS_DIR", spaces)
    monkeypatch.setattr(net, "RUN_DIR", folders)
    monkeypatch.setattr(net, "_is_lab", lambda pid: False)
    for name in ("lv-web-1", "lv-12a-b", "lv-12", "lv--a", "lv-77-h0"):
        (spaces / name).mkdir(parents=True)
    for name in ("levada-lab-mine", "levada-lab-", "levada-lab-7-8", "levada-lab-77"):
        (folders / name).mkdir(parents=True)
    commands: list[str] = []

    def run(*words: str) -> str:
        commands.append(" ".join(words))
        return ""

    monkeypatch.setattr(net, "run", run)
    assert remove_leftovers() == ["lv-77-h0", str(folders / "levada-lab-77")]
    assert commands == ["ip netns pids lv-77-h0", "ip netns delete lv-77-h0"]
    assert len(list(folders.iterdir())) == 3


def test_cleaning_up_spares_a_running_lab() -> None:
    with Lab() as lab:
        space = lab.namespace("a")
        remove_leftovers()
        assert (NETNS_DIR / space.name).exists()


def test_cpu_use_tells_the_busy_from_the_idle() -> None:
    with Lab() as lab:
        spinner = lab.spawn("spinner", sys.executable, "-c", "while True: pass")
        sleeper = lab.spawn("sleeper", "sleep", "60")
        start = sample_cpu([spinner, sleeper])
        time.sleep(1.0)
        use = cpu_use(start, sample_cpu([spinner, sleeper]))
    assert use.cores["sleeper"] < 0.05
    assert use.cores["spinner"] > 0.2, "even beside other work it gets a good part of a core"
    assert 0.0 <= use.idle <= 1.0
    assert use.bound(worker_busy=0.99) is not None


def test_a_strangers_cpu_use_is_told_even_when_it_has_ended() -> None:
    """Started by another process than the lab's, here a lab in a child of this one."""
    measured = """
from lab.machine import cpu_use, sample_cpu
import sys
start = sample_cpu([])
sys.stdin.readline()
print(cpu_use(start, sample_cpu([])).strangers)
"""
    watcher = subprocess.Popen(
        [sys.executable, "-c", measured],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    spin = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    time.sleep(0.5)
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", spin], check=True)
    took = time.monotonic() - began + 0.6
    told, _ = watcher.communicate("now\n", timeout=60)
    assert float(told) > 0.8 * 0.5 / took
