"""64-byte and full frames between two vhost-user front ends: Levada next to DPDK's testpmd.

The front ends are the same for both: one testpmd process on core 1 with two virtio-user ports.
Frames of a fixed number go round: each port sends what it receives back with the addresses
exchanged (`5tswap`), so nothing is made for the purpose and nothing is thrown away. What is
compared is how many frames a second come back. The back end has core 0 for itself: testpmd with
two `net_vhost` ports, which copies from one to the other and does nothing else; or Levada, which
guards, schedules and counts each frame on the way, spinning (as testpmd does) or sleeping when it
has nothing to do.

Then nothing is sent, and what a sleeping Levada still takes of its core is counted. At last the
frames of bulk TCP: see `bench.bulk`.

DPDK needs no huge pages for this, and its memory is a memfd without seals, so `sealed = false`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.back_ends import (
    FRONT,
    MACS,
    PROMPT,
    START_S,
    TESTPMD,
    BackEnd,
    cell_of,
    levada,
    spawn_testpmd,
    testpmd,
)
from bench.bulk import bulk
from bench.pairs import COLUMNS, Measure, Pair, interleaved, ratio, row
from lab.cell import Cell
from lab.machine import cpu_use, sample_cpu
from lab.net import Failed, Lab, Process, missing_tools
from lab.programs import Missing
from lab.report import Report, at_least, at_most, middle
from lab.stats import table

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

_WARM_S = 0.5
#: Of testpmd, at either side.
_BUFFERS = "--total-num-mbufs=16384"


def vhost(lab: Lab, report: Report, quick: bool) -> None:
    """Frames between two front ends: Levada and testpmd's net_vhost, a core each; frames of bulk
    TCP, too, and TCP between taps."""
    if missing_tools([TESTPMD]):
        raise Missing(f"vhost needs {TESTPMD}: tools/setup dpdk")
    rows: list[Cell] = []
    ways: dict[str, BackEnd] = {"spinning": levada(spin=True), "sleeping": levada(spin=False)}
    found: dict[tuple[str, str], list[Pair]] = {}
    for size, nbytes in SIZES.items():
        for way, back_end in ways.items():
            ours = _measure(lab, f"levada {way}", back_end, nbytes, WINDOW_S[quick])
            theirs = {
                "testpmd": _measure(lab, "testpmd", testpmd("", _BUFFERS), nbytes, WINDOW_S[quick])
            }
            pairs = interleaved(ROUNDS[quick], ours, theirs, rows)["testpmd"]
            found[size, way] = pairs
    idle = _idle(lab, ways["sleeping"])
    report.cells += [cell.as_row() for cell in rows]
    spinning = found["64 bytes", "spinning"]
    valid = [pair.ours for pair in spinning if pair.valid]
    report.claims += [
        at_least("vhost.vs-testpmd", ratio(spinning), "x testpmd", LEAST),
        at_least("vhost.frames", middle(valid, len(spinning)), "Mpps", SOUGHT_MPPS),
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
    bulk(lab, report, quick)


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
        if mpps == 0:
            raise Failed(f"vhost: no frame came back through {name}:\n{back.output()[-2000:]}")
        labels = {"switch": name, "frame_bytes": nbytes + 4}
        return cell_of(labels, window_s, mpps * 1e6 * nbytes * 8, use), mpps

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
        prompts = self.process.output().count(PROMPT)
        stdin.write(command + "\n")
        stdin.flush()
        self.process.wait_for(
            lambda: self.process.output().count(PROMPT) > prompts, f"answer to {command!r}"
        )

    def rates(self) -> list[int]:
        """Frames a second that each port has received since this was asked last."""
        before = len(self.process.output())
        self.say("show port stats all")
        return received_rates(self.process.output()[before:])


def received_rates(text: str) -> list[int]:
    """Of testpmd's "show port stats all"."""
    rates = [int(rate) for rate in re.findall(r"Rx-pps:\s+(\d+)", text)]
    if len(rates) != len(MACS):
        raise Failed(f"{TESTPMD} told no rates:\n{text[-1000:]}")
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
            for n, mac in enumerate(MACS)
        ]
        options = ["-i", "--forward-mode=5tswap", "--port-topology=loop", f"--txpkts={nbytes}"]
        options.append(_BUFFERS)
        options += [f"--eth-peer={n},{mac}" for n, mac in enumerate(reversed(MACS))]
        process = spawn_testpmd(lab, "front", FRONT, ports, options)
        process.wait_for(lambda: PROMPT in process.output(), "its ports", START_S)
        yield back, FrontEnd(process)
