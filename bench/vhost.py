"""64-byte and full frames between two vhost-user front ends: Levada next to DPDK's testpmd.

The front ends are the same for both: one testpmd process on core 1 with two virtio-user ports.
Frames of a fixed number go round: each port sends what it receives back with the addresses
exchanged (`5tswap`), so nothing is made for the purpose and nothing is thrown away. What is
compared is how many frames a second come back. The back end has core 0 for itself: testpmd with
two `net_vhost` ports, which copies from one to the other and does nothing else; or Levada, which
guards, schedules and counts each frame on the way, spinning (as testpmd does) or sleeping when it
has nothing to do.

Then nothing is sent, and what a sleeping Levada still takes of its core is counted.

DPDK needs no huge pages for this, and its memory is a memfd without seals, so `sealed = false`.
Source of the options: DPDK's "Testpmd Application User Guide" and "Poll Mode Driver that wraps
vhost library".
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.pairs import COLUMNS, Measure, Pair, interleaved, ratio, row
from lab.cell import Cell, disturbance
from lab.machine import cpu_use, sample_cpu
from lab.net import Failed, Lab, Process, missing_tools
from lab.programs import Missing, program
from lab.report import Report, at_least, at_most
from lab.stats import median, table
from lab.switches.levada import rate_text, toml_table

#: Bytes without FCS: the shortest frame, and one that fills an MTU of 1500 bytes.
SIZES = {"64 bytes": 60, "1518 bytes": 1514}
#: What of testpmd's rate of 64-byte frames Levada reaches at least, and what is sought.
LEAST = 0.7
SOUGHT_MPPS = 1.5
#: A sleeping worker without frames takes at most this part of its core.
ASLEEP = 0.01
WINDOW_S = {False: 2.0, True: 0.8}
ROUNDS = {False: 3, True: 1}
#: Bursts of 32 frames that each port sends first; all of them fit into its ring.
BURSTS = 16
RING = 1024
#: How long it is counted what a Levada without frames takes.
IDLE_S = 5.0
#: Above what is reached: all it does is to send every frame through the scheduler.
FAR_ABOVE_BPS = 100_000_000_000

_TESTPMD = "dpdk-testpmd"
_BACK, _FRONT = 0, 1
_MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
#: What testpmd's first frames are from (RFC 2544, appendix C.2.2).
_NETWORK = "198.18.0.0/15"
_START_S = 20.0
_WARM_S = 0.5
_PROMPT = "testpmd> "

#: What a back end is: given a directory for its sockets, its process, ready for front ends.
BackEnd = Callable[[Lab, Path], Process]


def vhost(lab: Lab, report: Report, quick: bool) -> None:
    """Frames between two virtio-user front ends: Levada and testpmd's net_vhost, a core each."""
    if missing_tools([_TESTPMD]):
        raise Missing(f"vhost needs {_TESTPMD}: tools/setup dpdk")
    rows: list[Cell] = []
    ways: dict[str, BackEnd] = {"spinning": _levada(spin=True), "sleeping": _levada(spin=False)}
    found: dict[tuple[str, str], list[Pair]] = {}
    for size, nbytes in SIZES.items():
        for way, back_end in ways.items():
            ours = _measure(lab, f"levada {way}", back_end, nbytes, WINDOW_S[quick])
            theirs = {"testpmd": _measure(lab, "testpmd", _testpmd, nbytes, WINDOW_S[quick])}
            pairs = interleaved(ROUNDS[quick], ours, theirs, rows)["testpmd"]
            found[size, way] = pairs
    idle = _idle(lab, ways["sleeping"])
    report.cells += [cell.as_row() for cell in rows]
    spinning = found["64 bytes", "spinning"]
    valid = [pair.ours for pair in spinning if pair.valid]
    report.claims += [
        at_least("vhost.vs-testpmd", ratio(spinning), "x testpmd", LEAST),
        at_least("vhost.frames", median(valid) if valid else None, "Mpps", SOUGHT_MPPS),
        at_most("vhost.asleep", idle["cpu"], "of a core", ASLEEP),
    ]
    report.parameters["vhost_idle"] = idle
    lines = [row(f"{size}, {way}", pairs, ".3f") for (size, way), pairs in found.items()]
    title = "vhost: Levada, isolation on, against testpmd's net_vhost; million frames a second"
    report.tables += [
        f"{title}\n" + table(["", *COLUMNS], lines),
        f"vhost: without frames a sleeping Levada took {idle['cpu']:.2%} of its core"
        f" and was woken {idle['wakeups']:.0f} times a second",
    ]


def _measure(lab: Lab, name: str, back_end: BackEnd, nbytes: int, window_s: float) -> Measure:
    def once() -> tuple[Cell, float]:
        with _running(lab, back_end, nbytes) as (back, front):
            front.say(f"start tx_first {BURSTS}")
            time.sleep(_WARM_S)
            front.rates()
            before = sample_cpu([back, front.process])
            time.sleep(window_s)
            use = cpu_use(before, sample_cpu([back, front.process]))
            mpps = sum(front.rates()) / 1e6
        disturbed = disturbance(use, 0.0)
        if mpps == 0:
            raise Failed(f"vhost: no frame came back through {name}:\n{back.output()[-2000:]}")
        labels = {"section": "vhost", "switch": name, "frame_bytes": nbytes + 4}
        cell = Cell(
            labels=labels,
            window_s=window_s,
            goodput_bps={"frames": mpps * 1e6 * nbytes * 8},
            flows={},
            wire={},
            idle=use.idle,
            cores=use.cores,
            strangers=use.strangers,
            worker=None,
            bound=None,
            disturbed=disturbed,
            valid=disturbed is None,
        )
        return cell, mpps

    return once


def _idle(lab: Lab, back_end: BackEnd) -> dict[str, float]:
    """What the worker takes where both front ends are there and send nothing."""
    with _running(lab, back_end, SIZES["64 bytes"]) as (back, front):
        front.say("set fwd rxonly")
        front.say("start")
        time.sleep(_WARM_S)
        before, start = worker_time(back.pid), time.monotonic()
        time.sleep(IDLE_S)
        after, wall_s = worker_time(back.pid), time.monotonic() - start
    return {
        "cpu": (after.run_s - before.run_s) / wall_s,
        "wakeups": (after.sleeps - before.sleeps) / wall_s,
    }


@dataclass(frozen=True)
class WorkerTime:
    """Of the worker's thread: time on the processor, and how often it went to sleep."""

    run_s: float
    sleeps: int


def worker_time(pid: int) -> WorkerTime:
    """By proc(5) and Documentation/scheduler/sched-stats.rst."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "levada-worker":
            run_ns = int((task / "schedstat").read_text().split()[0])
            status = (task / "status").read_text()
            sleeps = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)
            assert sleeps is not None
            return WorkerTime(run_ns / 1e9, int(sleeps.group(1)))
    raise Failed(f"process {pid} has no worker")


@dataclass
class FrontEnd:
    """testpmd with two virtio-user ports, and its prompt."""

    process: Process

    def say(self, command: str) -> None:
        """Gives it a command; returns when the next may be given."""
        stdin = self.process.popen.stdin
        assert stdin is not None
        prompts = self.process.output().count(_PROMPT)
        stdin.write(command + "\n")
        stdin.flush()
        self.process.wait_for(
            lambda: self.process.output().count(_PROMPT) > prompts, f"answer to {command!r}"
        )

    def rates(self) -> list[int]:
        """Frames a second that each port has received since this was asked last."""
        before = len(self.process.output())
        self.say("show port stats all")
        return received_rates(self.process.output()[before:])


def received_rates(text: str) -> list[int]:
    """Of testpmd's "show port stats all"."""
    rates = [int(rate) for rate in re.findall(r"Rx-pps:\s+(\d+)", text)]
    if len(rates) != len(_MACS):
        raise Failed(f"{_TESTPMD} told no rates:\n{text[-1000:]}")
    return rates


@contextmanager
def _running(lab: Lab, back_end: BackEnd, nbytes: int) -> Iterator[tuple[Process, FrontEnd]]:
    """A back end with both its front ends; all of it goes on leaving."""
    with lab.stage():
        sockets = lab.dir / "vhost"
        sockets.mkdir(mode=0o700, exist_ok=True)
        back = back_end(lab, sockets)
        ports = [
            f"net_virtio_user{n},path={sockets}/{n}.sock,queues=1,queue_size={RING},mac={mac}"
            for n, mac in enumerate(_MACS)
        ]
        options = ["-i", "--forward-mode=5tswap", "--port-topology=loop", f"--txpkts={nbytes}"]
        options += [f"--eth-peer={n},{mac}" for n, mac in enumerate(reversed(_MACS))]
        process = _spawn_testpmd(lab, "front", _FRONT, ports, options)
        process.wait_for(lambda: _PROMPT in process.output(), "its ports", _START_S)
        yield back, FrontEnd(process)


def _spawn_testpmd(
    lab: Lab, label: str, core: int, ports: list[str], options: list[str]
) -> Process:
    """testpmd with one forwarding thread, all of it on one core."""
    devices = [word for port in ports for word in ("--vdev", port)]
    return lab.spawn(
        f"testpmd-{label}",
        # What it says is not to wait in its buffer.
        *("stdbuf", "-oL", _TESTPMD, "--no-huge", "-m", "256", "--no-pci", "--no-telemetry"),
        *("--file-prefix", f"{lab.tag}-{label}", "--lcores", f"0@{core},1@{core}", *devices),
        *("--", "--nb-cores=1", "--total-num-mbufs=16384", "--no-mlockall", *options),
    )


def _testpmd(lab: Lab, sockets: Path) -> Process:
    """DPDK's vhost library, two ports, frames from the one to the other."""
    paths = [sockets / f"{n}.sock" for n in range(len(_MACS))]
    ports = [f"net_vhost{n},iface={path}" for n, path in enumerate(paths)]
    options = ["-i", "--forward-mode=io", "--auto-start"]
    process = _spawn_testpmd(lab, "back", _BACK, ports, options)
    process.wait_for(lambda: _PROMPT in process.output(), "its sockets", _START_S)
    return process


def _levada(spin: bool) -> BackEnd:
    def start(lab: Lab, sockets: Path) -> Process:
        config = lab.dir / "vhost.toml"
        config.write_text(configuration(lab.tag, sockets, spin))
        process = lab.spawn(
            "levada",
            *("taskset", "-c", str(_BACK), str(program()), "run", "-c", str(config)),
            env={"LEVADA_RUN_DIR": str(lab.dir / "run")},
        )
        lab.defer(lambda: process.stop(signal.SIGTERM))
        ready = f"levada: {lab.tag} ready"
        process.wait_for(lambda: ready in process.output(), "its sockets", _START_S)
        return process

    return start


def configuration(name: str, sockets: Path, spin: bool) -> str:
    """Two endpoints of a tenant, with addresses and a limit that holds nothing back."""
    knobs: dict[str, Any] = {"limit": rate_text(FAR_ABOVE_BPS), "ip": _NETWORK}
    ends = [
        toml_table(
            "[switch.tenant.endpoint]",
            name=f"e{n}",
            port=f"vhost-user://{sockets}/{n}.sock",
            listen=True,
            sealed=False,
            mac=mac,
            **knobs,
        )
        for n, mac in enumerate(_MACS)
    ]
    parts = [
        toml_table("daemon", name=name, spin=spin),
        toml_table("[switch]", name="s"),
        toml_table("[switch.tenant]", name="t"),
    ]
    return "\n".join(parts + ends)
