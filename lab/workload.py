"""Workloads between two endpoints: real tools, bounded in time, stopping by themselves.

A flow has a sending and a receiving endpoint. `begin` starts it (receiver first, and waits
until that listens), `end` waits for its own end and reads what the tools report. Rates are
taken at the receiver, over a window of the flow's life, so that slow start and the tail are
left out. Payload rates ("goodput") are what applications saw; the switch's own counters of
wire bytes are sampled beside them by `lab.cell`.

TCP flows are iperf3 with cubic stated. UDP at a rate is iperf3 too; floods of small or
offloaded frames are ports/examples/blast, short connections `lab.swarm`, paced connections whose
gaps count `lab.stream`, what no honest endpoint sends `lab.hostile`, round trips `ping`."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lab import wire
from lab.net import Failed, Namespace, Process
from lab.programs import example
from lab.sender import READY

#: How often iperf3 reports: the resolution of a window over a flow's life.
INTERVAL_S = 0.1
#: How long a flow may take to wind up after its time.
GRACE_S = 60.0
#: How long is waited at a time.
STEP_S = 0.5
#: Receivers outlive their senders by this much.
LINGER_S = 1.0
#: The first port of flows; each flow of a cell has its own.
FIRST_PORT = 5201

_ROOT = Path(__file__).resolve().parents[1]
_TCP_LISTEN = "0A"  # net/tcp_states.h, as /proc/net/tcp prints it
_UDP_BOUND = "07"


@dataclass(frozen=True)
class Guest:
    """A VM or container as a workload sees it: where to run programs, and its address."""

    name: str
    namespace: Namespace
    address: str


@dataclass
class FlowResult:
    """What became of a flow. `rows` are [start, end, bytes] in seconds of its life."""

    name: str
    rows: list[tuple[float, float, float]] = field(default_factory=list)
    #: What else the tools told: retransmissions, loss, round trips.
    detail: dict[str, Any] = field(default_factory=dict)

    def goodput_bps(self, start_s: float, end_s: float) -> float:
        """Mean payload rate at the receiver from `start_s` to `end_s` of the flow's life."""
        bits = 0.0
        for begin, end, nbytes in self.rows:
            overlap = min(end, end_s) - max(begin, start_s)
            if overlap > 0 and end > begin:
                bits += 8 * nbytes * overlap / (end - begin)
        return bits / (end_s - start_s)


class Flow(ABC):
    """A workload between two endpoints. Once begun it ends by itself after `seconds`."""

    #: What starting it takes at most, on a busy machine.
    start_s = 0.1

    def __init__(self, name: str, src: str, dst: str) -> None:
        self.name = name
        self.src = src
        self.dst = dst
        self._receiver: Process | None = None
        self._sender: Process | None = None

    @abstractmethod
    def begin(self, src: Guest, dst: Guest, port: int, seconds: int) -> None:
        """Starts receiver, then sender."""

    @abstractmethod
    def end(self) -> FlowResult:
        """Waits until it has ended."""

    def abort(self) -> None:
        """Ends it now. It will have no result."""
        for process in (self._sender, self._receiver):
            if process is not None:
                process.popen.kill()

    def _report(self, process: Process | None, seconds: float) -> str:
        """Standard output of a process that must end by itself within `seconds`."""
        assert process is not None
        # In steps, so that a (virtual) machine that stands still for a while uses up one only.
        for _ in range(math.ceil(seconds / STEP_S)):
            try:
                out, _ = process.popen.communicate(timeout=STEP_S)
            except subprocess.TimeoutExpired:
                continue
            return out or ""
        process.popen.kill()
        raise Failed(f"flow {self.name}: {process.label} did not end by itself")


class TcpFlow(Flow):
    """iperf3, cubic. `streams` connections; `mss_bytes` below the path's for small frames."""

    def __init__(
        self, name: str, src: str, dst: str, streams: int = 1, mss_bytes: int | None = None
    ) -> None:
        super().__init__(name, src, dst)
        self._options = ["-C", "cubic", "-P", str(streams)]
        if mss_bytes is not None:
            self._options += ["-M", str(mss_bytes)]

    def begin(self, src: Guest, dst: Guest, port: int, seconds: int) -> None:
        self._seconds = seconds
        self._receiver, self._sender = _iperf(self, src, dst, port, seconds, self._options)

    def end(self) -> FlowResult:
        sent = _iperf_report(self, self._report(self._sender, self._seconds + GRACE_S))
        got = _iperf_report(self, self._report(self._receiver, GRACE_S))
        total = sent["end"]["sum_sent"]
        streams = sent["end"]["streams"]
        cpu = sent["end"]["cpu_utilization_percent"]
        cpu_s = (cpu["host_total"] + cpu["remote_total"]) / 100 * total["seconds"]
        return FlowResult(
            self.name,
            _iperf_rows(got),
            {
                "retransmits": total.get("retransmits"),
                "congestion_control": sent["end"].get("sender_tcp_congestion"),
                # Both ends' processor time for a byte, with what the kernel does in their name.
                "cpu_s_per_byte": cpu_s / total["bytes"] if total["bytes"] else None,
                "mean_rtt_us": [s["sender"].get("mean_rtt") for s in streams],
            },
        )


class UdpFlow(Flow):
    """iperf3 UDP at a rate. `datagram_bytes` is the payload of each."""

    def __init__(
        self, name: str, src: str, dst: str, rate_bps: float, datagram_bytes: int = 1448
    ) -> None:
        super().__init__(name, src, dst)
        self._options = ["-u", "-b", f"{rate_bps:.0f}", "-l", str(datagram_bytes)]

    def begin(self, src: Guest, dst: Guest, port: int, seconds: int) -> None:
        self._seconds = seconds
        self._receiver, self._sender = _iperf(self, src, dst, port, seconds, self._options)

    def end(self) -> FlowResult:
        _iperf_report(self, self._report(self._sender, self._seconds + GRACE_S))
        got = _iperf_report(self, self._report(self._receiver, GRACE_S))
        total = got["end"]["sum"]
        detail = {key: total.get(key) for key in ("packets", "lost_packets", "jitter_ms")}
        streams = [stream["udp"] for stream in got["end"]["streams"]]
        detail["out_of_order"] = sum(stream.get("out_of_order", 0) for stream in streams)
        return FlowResult(self.name, _iperf_rows(got), detail)


class Blast(Flow):
    """A UDP flood of ports/examples/blast: frames of a size on the wire at a rate (0: unpaced),
    several handed to the kernel at once as one offloaded frame where `segments` is above one."""

    def __init__(
        self,
        name: str,
        src: str,
        dst: str,
        frame_bytes: int,
        per_s: float,
        segments: int = 1,
        row_ms: int = 100,
    ) -> None:
        super().__init__(name, src, dst)
        self.per_s = per_s
        self.segments = segments
        self._row_ms = row_ms
        payload = frame_bytes - wire.UDP_FRAME_BYTES
        rate = f"{per_s * payload * 8:.0f}" if per_s else "max"
        self._options = ["--length", str(payload * segments), "--rate", rate, "--row", str(row_ms)]
        if segments > 1:
            self._options += ["--gso", str(payload)]

    def begin(self, src: Guest, dst: Guest, port: int, seconds: int) -> None:
        self._seconds = seconds
        sink = ["sink", "--port", str(port), "--seconds", str(seconds + LINGER_S)]
        sink += ["--row", str(self._row_ms)]
        self._receiver = _blast(dst, f"sink-{self.name}", *sink)
        self._receiver.wait_for(lambda: _bound(self._receiver, port, "udp"), "a bound socket")
        to = ("--to", f"{dst.address}:{port}", "--seconds", str(seconds))
        self._sender = _blast(src, f"blast-{self.name}", "send", *to, *self._options)

    def end(self) -> FlowResult:
        sent = _json_report(self, self._report(self._sender, self._seconds + GRACE_S))
        got = _json_report(self, self._report(self._receiver, GRACE_S))
        row_s = got["row_ms"] / 1000
        rows = [(i * row_s, (i + 1) * row_s, float(n)) for i, n in enumerate(got["bytes"])]
        detail = {"sent_frames": sent["datagrams"], "received_frames": got["total_datagrams"]}
        detail |= {"sent_per_s": sent["datagrams"] / sent["seconds"]}
        # When the sender began, what it sent in rows as long, and what of each has arrived.
        detail |= {"sent_at_ns": sent["began_ns"], "sent_rows": sent["sent"]}
        detail |= {"arrived_of_rows": got["sent"], "socket_drops": got["socket_drops"]}
        return FlowResult(self.name, rows, detail | {"refused_batches": sent["refused_batches"]})


def _blast(host: Guest, label: str, *arguments: str) -> Process:
    return host.namespace.spawn(label, example("blast"), *arguments, stdout=subprocess.PIPE)


#: Datagrams that a flood of offloaded frames hands to the kernel at once: few enough that at
#: 1 Gbit/s they come every 100 us and no queue runs dry between.
FLOOD_SEGMENTS = 8


def flood(name: str, src: str, dst: str, wire_bps: float, *, offload: bool) -> Blast:
    """Full UDP frames that do not react to anything, at a rate on the wire."""
    frame_bytes = wire.MTU_BYTES + wire.ETHERNET_BYTES + 4
    per_s = wire_bps / 8 / wire.FULL_BYTES
    return Blast(name, src, dst, frame_bytes, per_s, FLOOD_SEGMENTS if offload else 1)


class Swarm(Flow):
    """Short TCP connections of `nbytes` each, `concurrency` at a time and at most `per_s` a second
    (0: as fast as it goes)."""

    # Two interpreters, where the others start two programs.
    start_s = 0.5

    def __init__(
        self,
        name: str,
        src: str,
        dst: str,
        concurrency: int = 16,
        nbytes: int = 64 << 10,
        per_s: float = 0,
    ) -> None:
        super().__init__(name, src, dst)
        self.concurrency = concurrency
        self.nbytes = nbytes
        self.per_s = per_s

    def begin(self, src: Guest, dst: Guest, port: int, seconds: int) -> None:
        self._seconds = seconds
        common = ["--port", str(port), "--seconds"]
        self._receiver = _python(
            dst, f"serve-{self.name}", "lab.swarm", "serve", *common, str(seconds + LINGER_S)
        )
        self._receiver.wait_for(lambda: _bound(self._receiver, port, "tcp"), "a listening socket")
        size = ["--bytes", str(self.nbytes), "--concurrency", str(self.concurrency)]
        size += ["--per-s", str(self.per_s)]
        self._sender = _python(
            src,
            f"swarm-{self.name}",
            "lab.swarm",
            *("run", "--to", dst.address, *common, str(seconds), *size),
        )

    def end(self) -> FlowResult:
        told = _json_report(self, self._report(self._sender, self._seconds + GRACE_S))
        self._report(self._receiver, GRACE_S)
        # A connection's bytes are spread over its life.
        rows = [(end - took, end, float(self.nbytes)) for end, took in told["rows"]]
        durations = [took for _, took in told["rows"]]
        detail: dict[str, Any] = {"connections": told["connections"], "failed": told["failed"]}
        if durations:
            detail["p50_s"], detail["p99_s"] = percentiles(durations, (50, 99))
        return FlowResult(self.name, rows, detail)


class Stream(Flow):
    """Paced TCP connections that run until `end`, `seconds` at most; see `lab.stream`. The result's
    rows are those of all connections together; `arrivals` has each one's, in monotonic time."""

    def __init__(
        self, name: str, src: str, dst: str, rate_bps: int, connections: int = 1, row_ms: float = 1
    ) -> None:
        super().__init__(name, src, dst)
        self._rate = ["--rate-bps", str(rate_bps), "--connections", str(connections)]
        self._rows = ["--row-ms", str(row_ms)]
        #: For each connection, [time in s, bytes so far].
        self.arrivals: list[list[tuple[float, int]]] = []

    def begin(self, src: Guest, dst: Guest, port: int, seconds: int) -> None:
        bound = ["--port", str(port), "--seconds"]
        serve = ("serve", *bound, str(seconds + LINGER_S), *self._rows)
        self._receiver = _python(dst, f"serve-{self.name}", "lab.stream", *serve)
        self._receiver.wait_for(lambda: _bound(self._receiver, port, "tcp"), "a listening socket")
        send = ("send", "--to", dst.address, *bound, str(seconds), *self._rate)
        self._sender = _python(src, f"stream-{self.name}", "lab.stream", *send)

    def end(self) -> FlowResult:
        """Stops it. `detail` says what became of the connections."""
        assert self._sender is not None and self._receiver is not None
        self._sender.popen.terminate()
        sent = _json_report(self, self._report(self._sender, GRACE_S))
        time.sleep(LINGER_S / 2)
        self._receiver.popen.terminate()
        got = _json_report(self, self._report(self._receiver, GRACE_S))["connections"]
        self.arrivals = [c["rows"] for c in got]
        # An orderly end is the sender's wish, which it has only now.
        errors = sum(c["end"] not in (None, "closed") for c in got)
        detail = {"wanted": sent["connections"], "accepted": len(got), "ended_early": errors}
        return FlowResult(self.name, detail={**detail, "broken": sent["broken"]})

    def goodput_bps(self, start_s: float, end_s: float) -> float:
        """Payload that arrived between two monotonic times, once it has ended."""
        both = [[_bytes_at(rows, t) for rows in self.arrivals] for t in (start_s, end_s)]
        return 8 * (sum(both[1]) - sum(both[0])) / (end_s - start_s)


class Pulse(Flow):
    """A datagram each millisecond, with when it was sent and when it came; see `lab.pulse`."""

    def __init__(self, name: str, src: str, dst: str, interval_s: float = 0.001) -> None:
        super().__init__(name, src, dst)
        self.interval_s = interval_s
        #: Nanoseconds of the wall clock: of each that was sent; with its number, of each that came.
        self.sent: list[int] = []
        self.came: list[tuple[int, int]] = []

    def begin(self, src: Guest, dst: Guest, port: int, seconds: int) -> None:
        self._seconds = seconds
        bound = ("--port", str(port), "--seconds", str(seconds + LINGER_S))
        self._receiver = _python(dst, f"serve-{self.name}", "lab.pulse", "serve", *bound)
        self._receiver.wait_for(lambda: _bound(self._receiver, port, "udp"), "a bound socket")
        at = ("--to", dst.address, "--port", str(port), "--seconds", str(seconds))
        pace = ("--interval", str(self.interval_s))
        self._sender = _python(src, f"pulse-{self.name}", "lab.pulse", "send", *at, *pace)

    def end(self) -> FlowResult:
        """How many were sent, never came, and came twice."""
        assert self._receiver is not None
        self.sent = _json_report(self, self._report(self._sender, self._seconds + GRACE_S))["sent"]
        # What is sent again after a fault is on its way for 20 ms.
        time.sleep(LINGER_S / 2)
        self._receiver.popen.terminate()
        self.came = _json_report(self, self._report(self._receiver, GRACE_S))["came"]
        numbers = [number for number, _ in self.came]
        twice = len(numbers) - len(set(numbers))
        lost = len(self.sent) - len(set(numbers))
        return FlowResult(self.name, detail={"sent": len(self.sent), "lost": lost, "twice": twice})


def _bytes_at(rows: Sequence[tuple[float, int]], at_s: float) -> float:
    """Bytes that had arrived at a time, taken to come evenly between two rows."""
    return float(np.interp(at_s, [t for t, _ in rows], [n for _, n in rows], left=0))


class Tool(Flow):
    """A sender of the lab, `lab.MODULE` with options, started by `prefix` (chrt(1), say). Nobody
    receives; the result's detail is what it writes."""

    def __init__(
        self,
        name: str,
        src: str,
        dst: str,
        module: str,
        options: Sequence[str],
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__(name, src, dst)
        self._module = module
        self._options = options
        self._prefix = prefix

    def begin(self, src: Guest, dst: Guest, port: int, seconds: int) -> None:
        self._seconds = seconds
        options = (*self._options, "--seconds", str(seconds))
        label = f"{self._module}-{self.name}"
        module = f"lab.{self._module}"
        self._sender = sender = _python(src, label, module, *options, prefix=self._prefix)
        sender.wait_for(lambda: READY in sender.output(), "its frames")

    def stop(self) -> None:
        """Has one that sends frames (`lab.sender`) end now."""
        assert self._sender is not None
        self._sender.popen.terminate()

    def end(self) -> FlowResult:
        told = _json_report(self, self._report(self._sender, self._seconds + GRACE_S))
        return FlowResult(self.name, [], told)


class Hostile(Tool):
    """An attack of `lab.hostile`. `who` are its options that say who is who."""

    def __init__(
        self, name: str, src: str, dst: str, kind: str, per_s: float, who: Sequence[str]
    ) -> None:
        super().__init__(name, src, dst, "hostile", [kind, "--per-s", str(per_s), *who])


class Ping(Flow):
    """Round trips every `interval_s` (2 ms is the least ping allows without flooding), by ping(8)
    started by `prefix` (chrt(1), say)."""

    def __init__(
        self,
        name: str,
        src: str,
        dst: str,
        interval_s: float = 0.002,
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__(name, src, dst)
        self.interval_s, self.prefix = interval_s, prefix

    def begin(self, src: Guest, dst: Guest, port: int, seconds: int) -> None:
        self._seconds = seconds
        self._sender = src.namespace.spawn(
            f"ping-{self.name}",
            *(
                *self.prefix,
                "ping",
                "-D",
                "-O",
                "-n",
                "-i",
                str(self.interval_s),
                "-w",
                str(seconds),
                dst.address,
            ),
        )

    def stop(self) -> None:
        """Has it end now."""
        assert self._sender is not None
        self._sender.popen.send_signal(signal.SIGINT)

    def text(self) -> str:
        """What it has printed so far."""
        assert self._sender is not None
        # Into a log, as it talks all the time: a pipe nobody reads yet would stop it.
        return self._sender.output()

    def end(self) -> FlowResult:
        self._report(self._sender, self._seconds + GRACE_S)
        return FlowResult(self.name, [], parse_ping(self.text()))


def parse_ping(text: str) -> dict[str, Any]:
    """Round trips in ms in the order of arrival, their percentiles, and how many were lost."""
    trips = [float(ms) for ms in re.findall(r"time=([\d.]+) ms", text)]
    counts = re.search(r"(\d+) packets transmitted, (\d+) received", text)
    if counts is None:
        raise Failed(f"ping ended without a summary: {text[-300:]!r}")
    sent, received = int(counts.group(1)), int(counts.group(2))
    detail: dict[str, Any] = {"sent": sent, "lost": sent - received, "rtt_ms": trips}
    if trips:
        detail["p50_ms"], detail["p99_ms"] = percentiles(trips, (50, 99))
    return detail


def trips_between(text: str, start_s: float, end_s: float) -> list[float]:
    """Round trips in ms of the pings that were sent between two times of the wall clock, told by
    ping's -D; infinite where no answer came, of which -O tells when the next one is sent."""
    sent, trips = {}, {}
    for told, number in re.findall(r"\[([\d.]+)\] no answer yet for icmp_seq=(\d+)", text):
        sent[int(number)] = float(told)
    for told, number, ms in re.findall(r"\[([\d.]+)\].*icmp_seq=(\d+) .*time=([\d.]+) ms", text):
        sent[int(number)] = float(told) - float(ms) / 1000
        trips[int(number)] = float(ms)
    inside = [n for n, at in sent.items() if start_s <= at < end_s]
    if not inside:
        return []
    return [trips.get(n, math.inf) for n in range(min(inside), max(inside) + 1)]


def percentiles(values: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """Percentiles of raw values; linear between neighbours."""
    return [float(p) for p in np.percentile(np.asarray(values), list(wanted))]


def _iperf(
    flow: Flow, src: Guest, dst: Guest, port: int, seconds: int, options: Sequence[str]
) -> tuple[Process, Process]:
    """An iperf3 server for one client, and that client."""
    common = ["-p", str(port), "-J", "-i", str(INTERVAL_S)]
    server = dst.namespace.spawn(
        f"iperf3-server-{flow.name}", "iperf3", "-s", "-1", *common, stdout=subprocess.PIPE
    )
    server.wait_for(lambda: _bound(server, port, "tcp"), "a listening socket")
    client = src.namespace.spawn(
        f"iperf3-client-{flow.name}",
        *("iperf3", "-c", dst.address, "-t", str(seconds), "--connect-timeout", "3000"),
        *(*common, *options),
        stdout=subprocess.PIPE,
    )
    return server, client


def _iperf_report(flow: Flow, text: str) -> dict[str, Any]:
    report = _json_report(flow, text)
    if "error" in report:
        raise Failed(f"flow {flow.name}: iperf3: {report['error']}")
    return report


def _iperf_rows(report: dict[str, Any]) -> list[tuple[float, float, float]]:
    return [
        (i["sum"]["start"], i["sum"]["end"], float(i["sum"]["bytes"])) for i in report["intervals"]
    ]


def _json_report(flow: Flow, text: str) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise Failed(f"flow {flow.name}: no report but {text[-300:]!r}") from error
    return report


def _python(
    host: Guest, label: str, module: str, *arguments: str, prefix: Sequence[str] = ()
) -> Process:
    """A tool of the lab, run in a guest."""
    return host.namespace.spawn(
        label,
        *("env", f"PYTHONPATH={_ROOT}", *prefix, sys.executable, "-m", module, *arguments),
        stdout=subprocess.PIPE,
    )


def _bound(process: Process | None, port: int, protocol: str) -> bool:
    """Whether somebody in the process's namespace listens on a port."""
    assert process is not None
    state = _TCP_LISTEN if protocol == "tcp" else _UDP_BOUND
    for version in ("", "6"):
        try:
            table = Path(f"/proc/{process.pid}/net/{protocol}{version}").read_text()
        except OSError:
            continue
        for line in table.splitlines()[1:]:
            columns = line.split()
            if columns[1].endswith(f":{port:04X}") and columns[3] == state:
                return True
    return False
