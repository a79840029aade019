"""What the machine is and how busy it was: without both, a figure says nothing.

CPU use is read from /proc (proc(5)) at both ends of a measured window: ticks of each process
of the switch, of everybody together, and of strangers, which are all user processes that the
lab did not start. Interrupt work done for others shows only in the machine's figures.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lab.net import Process, find_tool

#: A switch thread busier than this had no time to spare: its order of service, not the
#: link's schedule, decided who got what.
BUSY_LIMIT = 0.95
#: A machine with less idle time than this starved somebody.
IDLE_LIMIT = 0.03
#: Strangers taking more than this part of one core disturb what is measured.
STRANGERS_LIMIT = 0.25
#: The same of what the machine's own host takes, where it is a virtual one: that stops who runs,
#: whatever its priority is.
STOLEN_LIMIT = 0.05

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KTHREADD = 2  # parent of all kernel threads


class _Stat(NamedTuple):
    """Of /proc/PID/stat."""

    parent: int
    own_ticks: int
    #: Of children that have ended and been waited for.
    ended_ticks: int


@dataclass(frozen=True)
class CpuSample:
    """Counters at one moment. Ticks of `SC_CLK_TCK`."""

    at_s: float
    idle_ticks: int
    all_ticks: int
    process_ticks: dict[str, int]
    stranger_ticks: int
    stolen_ticks: int


@dataclass(frozen=True)
class CpuUse:
    """What happened between two samples."""

    #: Part of all cores' time that was idle or waiting for disk, 0 to 1.
    idle: float
    #: Cores used by each process of the switch: 1.0 is one core all the time.
    cores: dict[str, float]
    #: Cores used by user processes that are not the lab's.
    strangers: float
    #: Cores that the machine's host used while somebody here wanted them (steal, proc_stat(5)).
    stolen: float = 0.0

    def bound(self, worker_busy: float | None = None) -> str | None:
        """Why this cell was bound by the CPU and not by the link, or None.

        `worker_busy` is the busy part of the switch's worker where it tells; a poll loop may
        use a whole core and still have time to spare, so for such a switch the process's
        own use is not asked."""
        if self.idle < IDLE_LIMIT:
            return f"machine idle {self.idle:.1%} < {IDLE_LIMIT:.0%}"
        busiest = max(self.cores.values(), default=0.0)
        busy = busiest if worker_busy is None else worker_busy
        if busy > BUSY_LIMIT:
            return f"switch busy {busy:.1%} > {BUSY_LIMIT:.0%}"
        return None

    def disturbed(self) -> str | None:
        """Why nothing measured meanwhile can be compared, or None."""
        if self.strangers > STRANGERS_LIMIT:
            return f"other programs used {self.strangers:.2f} cores > {STRANGERS_LIMIT}"
        if self.stolen > STOLEN_LIMIT:
            return f"the machine's host used {self.stolen:.2f} cores > {STOLEN_LIMIT}"
        return None


def sample_cpu(processes: Iterable[Process]) -> CpuSample:
    """The counters now. `processes` are the switch's; what they started counts for them
    (dpipe, for one, only starts others)."""
    fields = [int(f) for f in _first_line("/proc/stat").split()[1:9]]
    stats = _all_stats()
    children = _children(stats)
    ours = _tree(os.getpid(), children)
    strangers = [
        s
        for pid, s in stats.items()
        if pid not in ours and pid != _KTHREADD and s.parent != _KTHREADD
    ]
    return CpuSample(
        time.monotonic(),
        idle_ticks=fields[3] + fields[4],
        all_ticks=sum(fields),
        process_ticks={
            p.label: sum(stats[pid].own_ticks for pid in _tree(p.pid, children) if pid in stats)
            for p in processes
        },
        # Ended children's ticks move to their parents, so that short-lived compilers count.
        stranger_ticks=sum(s.own_ticks + s.ended_ticks for s in strangers),
        stolen_ticks=fields[7],
    )


def cpu_use(start: CpuSample, end: CpuSample) -> CpuUse:
    """Use of the CPUs between two samples at least a few ticks apart."""
    everything = max(1, end.all_ticks - start.all_ticks)
    wall_ticks = (end.at_s - start.at_s) * _TICKS_PER_S
    return CpuUse(
        idle=(end.idle_ticks - start.idle_ticks) / everything,
        cores={
            label: (ticks - start.process_ticks.get(label, 0)) / wall_ticks
            for label, ticks in end.process_ticks.items()
        },
        strangers=max(0, end.stranger_ticks - start.stranger_ticks) / wall_ticks,
        stolen=max(0, end.stolen_ticks - start.stolen_ticks) / wall_ticks,
    )


def describe(tools: Iterable[str]) -> dict[str, object]:
    """The machine, its kernel, and the versions of the named tools."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.*)", cpuinfo)
    return {
        "cpu": model.group(1) if model else platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "system": _system_name(),
        "python": platform.python_version(),
        "tools": {Path(tool).name: _version(tool) for tool in tools},
    }


def _all_stats() -> dict[int, _Stat]:
    stats = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
        except OSError:  # it has ended meanwhile
            continue
        # The name in parentheses may hold anything. After it: state, parent (fields 3, 4),
        # utime, stime, cutime, cstime (14 to 17).
        fields = stat.rsplit(")", 1)[1].split()
        own, ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        stats[int(folder.name)] = _Stat(int(fields[1]), own, ended)
    return stats


def _children(stats: dict[int, _Stat]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    return children


def _tree(root: int, children: dict[int, list[int]]) -> set[int]:
    """A process and all that descend from it."""
    tree, open_ends = set(), [root]
    while open_ends:
        pid = open_ends.pop()
        tree.add(pid)
        open_ends += children.get(pid, [])
    return tree


def _system_name() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.split("=", 1)[1].strip('"')
    return platform.system()


#: How each tool is asked for its version where not by --version.
_VERSION_FLAGS = {
    **dict.fromkeys(("ip", "tc", "ping"), "-V"),
    **dict.fromkeys(("apache2", "haproxy", "nginx"), "-v"),
    "busybox": "--help",
}


def _version(tool: str) -> str:
    """What a tool tells of itself; of one that does not, such as NPtcp, what is in its file."""
    path = find_tool(tool)
    if path is None:
        return "not installed"
    command = [path, _VERSION_FLAGS.get(Path(tool).name, "--version")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    told = (done.stdout.strip() or done.stderr.strip()) if done.returncode == 0 else ""
    if told:
        return told.splitlines()[0]
    return f"unknown, sha256 {hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]}"


def _first_line(path: str) -> str:
    with Path(path).open() as lines:
        return lines.readline()
