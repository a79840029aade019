"""A campaign: all fuzz targets on all processors for some hours, in slices, so that it can be
stopped at any time and continued with the same command (fuzz/run --campaign).

Each target gets the same time. What is found stays in fuzz/found, and is minimised at the end:
inputs that reach nothing new are left out. A target that crashes goes on from what was found; its
inputs are in fuzz/artifacts, each a crash to be cured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
STATE = HERE / "found" / "campaign.json"
#: Seconds of a slice: so much is lost at most when a campaign is killed.
SLICE_S = 60
#: A target that crashed so often is left out: it finds the same again and again.
MOST_CRASHES = 5
#: As in fuzz/run: no input may take more than 10 s or 1 GiB.
LIMITS = ("-timeout=10", "-rss_limit_mb=1024", "-max_len=4096")

#: The exit code of a fuzzer that was told to stop (libFuzzer's option interrupted_exitcode).
INTERRUPTED = 72


@dataclass
class Progress:
    """What a target has had."""

    seconds: float = 0.0
    executions: int = 0
    coverage: int = 0
    inputs: int = 0
    crashes: int = 0


@dataclass
class Slice:
    """A fuzzer that runs."""

    target: str
    process: subprocess.Popen[bytes]
    log: Path


def begin(binaries: Path, target: str, seconds: int) -> Slice:
    """Starts a slice of a target."""
    found, corpus, artifacts = (HERE / kind / target for kind in ("found", "corpus", "artifacts"))
    for folder in (found, corpus, artifacts):
        folder.mkdir(parents=True, exist_ok=True)
    log = artifacts / "log"
    command = [str(binaries / target), f"-max_total_time={seconds}", "-print_final_stats=1"]
    command += [*LIMITS, f"-artifact_prefix={artifacts}/", str(found), str(corpus)]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=HERE)
    return Slice(target, process, log)


def account(progress: Progress, log: str, failed: bool, seconds: float) -> None:
    """Adds what a slice did. `log` is what libFuzzer printed."""
    executed = re.findall(r"stat::number_of_executed_units:\s+(\d+)|^Done (\d+) runs", log, re.M)
    counts = [int(one or other) for one, other in executed]
    passed = [int(count) for count in re.findall(r"^#(\d+)\s", log, re.M)]
    progress.executions += max(counts + passed, default=0)
    covered = [int(count) for count in re.findall(r"\bcov: (\d+)", log)]
    progress.coverage = max([progress.coverage, *covered])
    corpora = re.findall(r"\bcorp: (\d+)/", log)
    progress.inputs = int(corpora[-1]) if corpora else progress.inputs
    progress.crashes += failed
    progress.seconds += seconds


def play(binaries: Path, state: dict[str, Progress], wanted_s: float, processors: int) -> None:
    """Runs slices until each target has had its time, the one with the least first."""
    running: list[Slice] = []
    try:
        while True:
            busy = {one.target for one in running}
            rest = [
                (progress.seconds, target)
                for target, progress in state.items()
                if target not in busy
                and progress.seconds < wanted_s
                and progress.crashes < MOST_CRASHES
            ]
            if rest and len(running) < processors:
                had, target = min(rest)
                seconds = max(1, min(SLICE_S, int(wanted_s - had) + 1))
                running.append(begin(binaries, target, seconds))
                continue
            if not running:
                return
            time.sleep(0.2)
            for one in list(running):
                if reap(state, one, os.WNOHANG):
                    running.remove(one)
    finally:
        for one in running:
            one.process.send_signal(signal.SIGINT)
        for one in running:
            reap(state, one, 0)


def reap(state: dict[str, Progress], one: Slice, options: int) -> bool:
    """Counts a slice that is over, in seconds of a processor, and keeps the count."""
    pid, status, used = os.wait4(one.process.pid, options)
    if pid == 0:
        return False
    code = one.process.returncode = os.waitstatus_to_exitcode(status)
    failed = code not in (0, INTERRUPTED, -signal.SIGINT, -signal.SIGTERM)
    log = one.log.read_text(errors="replace")
    account(state[one.target], log, failed, used.ru_utime + used.ru_stime)
    if failed:
        kept = one.log.with_name(f"log-{state[one.target].crashes}")
        one.log.replace(kept)
        print(f"{one.target}: failed; see {kept.relative_to(HERE.parent)}", flush=True)
    STATE.parent.mkdir(exist_ok=True)
    aside = STATE.with_suffix(".new")
    aside.write_text(json.dumps({name: asdict(had) for name, had in state.items()}, indent=1))
    aside.replace(STATE)
    return True


def minimise(binaries: Path, target: str) -> None:
    """Leaves out what reaches nothing that others do not reach."""
    found, least = HERE / "found" / target, HERE / "found" / f"{target}.least"
    shutil.rmtree(least, ignore_errors=True)
    least.mkdir()
    command = [str(binaries / target), "-merge=1", *LIMITS, str(least), str(found)]
    command.append(str(HERE / "corpus" / target))
    merged = subprocess.run(command, check=False, capture_output=True, cwd=HERE)
    if merged.returncode == 0:
        shutil.rmtree(found)
        least.rename(found)
    else:
        shutil.rmtree(least)


def summary(state: dict[str, Progress], wanted_s: float) -> str:
    """A table, a line a target."""
    head = ["target", "seconds", "executions", "coverage", "inputs", "crashes"]
    rows = [head]
    for name, had in sorted(state.items()):
        counts = [had.executions, had.coverage, had.inputs, had.crashes]
        part = "" if had.seconds >= wanted_s else f" ({had.seconds * 100 / wanted_s:.0f} %)"
        rows.append([name, f"{had.seconds:.0f}{part}", *map(str, counts)])
    seconds = sum(had.seconds for had in state.values())
    executions = sum(had.executions for had in state.values())
    crashes = sum(had.crashes for had in state.values())
    rows.append(["all", f"{seconds:.0f}", str(executions), "", "", str(crashes)])
    lines = [f"{row[0]:10}" + "".join(f"{cell:>15}" for cell in row[1:]) for row in rows]
    return "\n".join(lines)


def main() -> int:
    """See fuzz/run."""
    parser = argparse.ArgumentParser(prog="fuzz/run --campaign", description=__doc__)
    parser.add_argument("binaries", type=Path, help="where the targets' programs are")
    parser.add_argument("hours", type=float, help="hours on all processors, earlier parts included")
    parser.add_argument("targets", nargs="+")
    asked = parser.parse_args()
    known = json.loads(STATE.read_text()) if STATE.exists() else {}
    state = {name: Progress(**known.get(name, {})) for name in asked.targets}
    processors = len(os.sched_getaffinity(0))
    wanted_s = asked.hours * 3600 * processors / len(state)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    try:
        play(asked.binaries, state, wanted_s, processors)
    except (KeyboardInterrupt, SystemExit):
        print(f"{summary(state, wanted_s)}\nstopped: the same command continues")
        return 130
    for target in state:
        minimise(asked.binaries, target)
    print(summary(state, wanted_s))
    return 1 if any(had.crashes for had in state.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
