"""Frames of bulk TCP between two vhost-user front ends: Levada, testpmd, and Levada's TAPs.

The front ends are the same for both back ends: one process on core 1 that drives the rings of a
sender and of a receiver (ports/examples/bulk.rs). It is no guest and has no TCP: it sends the same
frames of 64 KiB, yet to be segmented, again and again, and receives them in merged buffers. Each
has to arrive whole, with its virtio header: one that is wrong fails the run. A receiver that has no
buffer left loses frames to either back end; they are counted and do not fail it.

The back end has core 0. Levada spins, guards, schedules and counts; testpmd copies from one
`net_vhost` to the other. What testpmd is told is what was fastest among several sizes of buffers
and bursts: a frame fits into one buffer, and a burst into the cache. With its usual 32 frames of
buffers of 2 KiB it has a quarter of that. `tso` offers segmentation offload; only with
`legacy-ol-flags` does what the receiver's header says survive forwarding without a look at it.

TCP between two TAPs of one Levada (iperf3, cubic) is measured in turn with them, its worker on core
0 and both ends on core 1. There the kernel's TCP, and the copies to and from the programs, are part
of what is measured; over vhost-user that is the guests' work, and is not.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from bench.back_ends import BACK, FAR_ABOVE_BPS, FRONT, START_S, BackEnd, cell_of, levada, testpmd
from bench.pairs import COLUMNS, Measure, Pair, interleaved, ratio, row
from lab.cell import Cell, measure
from lab.machine import cpu_use, sample_cpu
from lab.net import Failed, Lab
from lab.programs import example
from lab.report import Claim, Report, at_least
from lab.stats import table
from lab.switches import Levada
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import TcpFlow

#: What of each peer's rate Levada reaches at least by vhost-user.
TARGETS = {"testpmd": 0.95, "tap": 1.0}
WINDOW_S = {False: 2.0, True: 0.8}
ROUNDS = {False: 5, True: 1}

_WARM_S = 0.5
#: What the front end says when its window begins.
_BEGUN = "bulk: begun\n"
_END_S = 10.0
_TSO = ",tso=1,legacy-ol-flags=1"
_BURSTS = ("--total-num-mbufs=1100", "--mbuf-size=65535", "--mbcache=16", "--burst=8")


@dataclass(frozen=True)
class Came:
    """What came in the window, and of the whole run the frames that were lost, and read whole."""

    payload_bytes: int
    seconds: float
    lost: int
    checked: int

    @property
    def bps(self) -> float:
        """TCP's payload, in bit/s."""
        return 8 * self.payload_bytes / self.seconds


def came(text: str) -> Came:
    """Of what the front end has printed. Raises `Failed` where it printed nothing, where nothing
    came, where a frame was wrong, or where none was read whole."""
    try:
        told = json.loads(text.removeprefix(_BEGUN))
    except json.JSONDecodeError as error:
        raise Failed(f"the front end of bulk frames said:\n{text[-1000:]}") from error
    if told["wrong"]:
        raise Failed(f"{told['wrong']} frames of bulk TCP arrived wrong")
    if not told["frames"] or not told["checked"]:
        raise Failed("no frame of bulk TCP was read whole")
    return Came(told["bytes"], told["seconds"], told["lost"], told["checked"])


def bulk(lab: Lab, report: Report, quick: bool) -> None:
    """Frames of bulk TCP: Levada by vhost-user, spinning, next to testpmd and to its TAPs."""
    rows: list[Cell] = []
    switch = _Taps(lab, _topology())
    with switch.running():
        ours = _by_vhost(lab, "levada", levada(spin=True), WINDOW_S[quick])
        peers = {
            "testpmd": _by_vhost(lab, "testpmd", testpmd(_TSO, *_BURSTS), WINDOW_S[quick]),
            "tap": _by_taps(switch, WINDOW_S[quick]),
        }
        pairs = interleaved(ROUNDS[quick], ours, peers, rows)
    report.cells += [cell.as_row() for cell in rows]
    report.claims += claims(pairs)
    report.parameters["vhost_bulk_pairs"] = {n: [asdict(p) for p in ps] for n, ps in pairs.items()}
    lines = [row(name, ps, ".1f") for name, ps in pairs.items()]
    title = (
        "vhost: frames of 64 KiB from a front end without TCP, Levada, isolation on, against"
        " testpmd's\nnet_vhost and against TCP between Levada's TAPs; Gbit/s of TCP's payload"
    )
    report.tables.append(f"{title}\n" + table(["", *COLUMNS], lines))


def claims(pairs: dict[str, list[Pair]]) -> list[Claim]:
    """That Levada reaches of each peer what it has to, in the same run."""
    return [
        at_least(f"vhost.bulk-vs-{name}", ratio(pairs[name]), f"x {name}", least)
        for name, least in TARGETS.items()
    ]


def _by_vhost(lab: Lab, name: str, back_end: BackEnd, window_s: float) -> Measure:
    def once() -> tuple[Cell, float]:
        with lab.stage():
            sockets = lab.dir / "bulk"
            sockets.mkdir(mode=0o700, exist_ok=True)
            back = back_end(lab, sockets)
            front = lab.spawn(
                "bulk",
                *("taskset", "-c", str(FRONT), example("bulk")),
                *(str(sockets / f"{n}.sock") for n in range(2)),
                *(str(_WARM_S), str(window_s)),
            )
            # Until then it waits for a back end that answers from the core that it copies on.
            front.wait_for(lambda: _BEGUN in front.output(), "first frames", START_S)
            before = sample_cpu([back, front])
            time.sleep(window_s)
            use = cpu_use(before, sample_cpu([back, front]))
            front.popen.wait(_END_S)
            found = came(front.output())
        labels = {"switch": name, "bulk": True, "lost": found.lost, "checked": found.checked}
        return cell_of(labels, found.seconds, found.bps, use), found.bps / 1e9

    return once


class _Taps(Levada):
    """Levada on the core of back ends."""

    def _command(self, config: str) -> list[str]:
        return ["taskset", "-c", str(BACK), *super()._command(config)]


def _topology() -> Topology:
    """One switch with two endpoints of a tenant, with a limit that holds nothing back."""
    ends = tuple(Endpoint(f"bulk{n}", "bulk", "host", limit_bps=FAR_ABOVE_BPS) for n in range(2))
    return Topology((Tenant("bulk"),), ends, (Host("host", FAR_ABOVE_BPS),))


def _by_taps(switch: Levada, window_s: float) -> Measure:
    def once() -> tuple[Cell, float]:
        labels = {"section": "vhost", "switch": "tap", "bulk": True}
        with _children_on(FRONT):
            cell = measure(switch, [TcpFlow("flow", "bulk0", "bulk1")], window_s, labels)
        # The CPU is meant to bind it: it counts unless something disturbed it.
        cell = replace(cell, valid=cell.disturbed is None)
        return cell, cell.goodput_bps["flow"] / 1e9

    return once


@contextmanager
def _children_on(core: int) -> Iterator[None]:
    """What is started meanwhile runs on that core, and so does who starts it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
