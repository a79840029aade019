"""Virtual congestion control and a MapReduce job, simulated: the published negative result.

A shuffle job's hosts share two switches of a network with endless ECN flows; every queue marks what
can be marked and drops the rest. The job's hosts know ECN (`native`), do not (`legacy`), or do not
but are behind Levada, which does as the published systems do (`published`) or as it should
(`echo`; `dctcp` beside DCTCP). The network is `sim/src/shuffle.rs`, which says what is in it. A
quick run has live cells too (`lab.vcc_live`).

Control cells, whose guests end in `-all`, are the same but for one thing: all packets of hosts with
ECN are capable (draft-ietf-tcpm-generalized-ecn), so no queue drops a native's acknowledgement or
SYN where it would mark another packet. What differs in such cells is what the switch itself does.
Those that end in `-late` are the same, and natives do not hurry to acknowledge a mark either, which
the receiver of a guest without ECN cannot do.

The same seeds are on both sides of each ratio. A claim holds if the upper end of the 95 % interval
of its number is within the bound, fails if the lower end is beyond it, and is undecided otherwise.
`--only` with `published` has `native`, `legacy` and `published` alone, and judges whether each
direction that the study reports is decided; with `echo`, `echo-all`, `echo-late` or `dctcp` it has
these and their natives alone; all with ten seeds and RED2 with p = 1 (`red3`) too. With `trace` it
has all guests, with five seeds and without `red3`, and the jobs are traces in $LEVADA_TRACES.
Results of cells are kept in `cells.jsonl` beside the report: a run after one goes on where that
was, ended or not, as long as nobody has edited the lab (`lab.kept`); the report says so.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lab import machine, plot, vcc_live
from lab.kept import Kept, digest_with_lab
from lab.net import Failed, Lab
from lab.programs import Builds, simulator
from lab.report import Claim, Report
from lab.shuffle import mremu
from lab.shuffle.generate import Shape, generate
from lab.shuffle.job import WIRE_OVER_PAYLOAD, Copy, Job
from lab.stats import mean, table

SUMMARY = "a MapReduce job beside ECN flows, simulated: as published, why it failed, and ours"

#: A folder of MRemu's traces, of which three are played, or one trace. Without it the job is
#: generated.
TRACES_VARIABLE = "LEVADA_TRACES"
#: Machines of the simulated network, half of them at each switch, and the rate of its links.
MACHINES = 16
LINK_BPS = 1e9
#: What is generated: copies of 8 MB, as the published workload's; few, so that a run is short.
SHAPE = Shape(hosts=6, maps_per_host=1, map_s=0.05, reduce_s=0.0, host_bytes=48_000_000)
#: A trace has so many bytes at most, or one wave of copies: see `shortened`.
MOST_BYTES = 1_500_000_000

#: What the job's hosts are compared with: the same beside the same background.
NATIVE_OF = {
    "echo": "native",
    "published": "native",
    "legacy": "native",
    "dctcp": "native-dctcp",
    "echo-all": "native-all",
    "echo-late": "native-late",
}
#: What control cells are called beside the others, and what the simulator is told; see above.
CONTROLS = {"-all": ["all-capable"], "-late": ["all-capable", "late-marks"]}
#: Those that claims are of.
JUDGED = ("echo", "dctcp", "echo-all", "echo-late")
#: Bounds: job time against the natives', with `echo` and with `dctcp`; `auto` against the better
#: fixed setting; the background's rate.
ECHO_MOST, DCTCP_MOST, AUTO_MOST, BACKGROUND_WITHIN = 1.05, 1.02, 1.02, 0.03
KINDS = ("SYN", "ACK", "retransmission", "data")
#: What may be the study's RED2.
RED2S = ("red2", "red3")


@dataclass(frozen=True)
class Plan:
    """Which cells are run."""

    guests: tuple[str, ...]
    queues: tuple[str, ...]
    pairs: tuple[int, ...]
    seeds: int


_CLASSIC = ("native", "legacy", "published", "echo", "native-all", "echo-all")
_DCTCP = ("native-dctcp", "dctcp")
QUICK = Plan((*_CLASSIC, *_DCTCP), ("red1", "red2", "auto"), (2, 8), 3)
FULL = Plan(
    (*_CLASSIC, *_DCTCP, "legacy-dctcp"),
    ("red1", "red2", "red3", "auto"),
    (0, 2, 4, 8),
    10,
)

_PAIRS = (2, 4, 8)
#: The part that plays traces instead of what is generated: all guests. They take long, so they have
#: fewer seeds, in a full run too.
TRACE = "trace"
TRACE_SEEDS = 5
#: The part in which what the study reports is decided.
PUBLISHED = "published"
#: Parts by name: some guests and their natives alone, with the seeds of a full run.
PARTS = {TRACE: replace(QUICK, pairs=_PAIRS, seeds=TRACE_SEEDS)} | {
    part: replace(FULL, guests=guests, pairs=_PAIRS)
    for part, guests in (
        (PUBLISHED, ("native", "legacy", "published")),
        ("echo", ("native", "echo")),
        ("echo-all", ("native-all", "echo-all")),
        ("echo-late", ("native-late", "echo-late")),
        ("dctcp", _DCTCP),
    )
}

Played = tuple[Plan, Job]
#: job, queue, guests, pairs, seed
Key = tuple[str, str, str, int, int]


def run(lab: Lab, quick: bool, out: Path, only: str | None = None) -> Report:
    """Runs the cells on all processors, then judges."""
    plan = PARTS[only] if only else QUICK if quick else FULL
    played = [] if only == TRACE else [(plan, generate(1, SHAPE))]
    if only == TRACE or not (only or quick):
        of_traces = replace(plan, seeds=TRACE_SEEDS)
        played += [(of_traces, job) for job in _traces()]
    if not played:
        raise Failed(f"the part {TRACE} needs ${TRACES_VARIABLE}: a folder of MRemu's traces")
    report = Report("vcc-fig1", quick, parameters=_parameters(played))
    cells, resumed = _play(played, out)
    report.parameters |= resumed
    report.machine = machine.describe([])
    report.cells = [
        {"labels": dict(zip(("job", "queue", "guests", "pairs", "seed"), key, strict=True)), **cell}
        for key, cell in cells.items()
    ]
    for plan, job in played:
        view = View(plan, job, cells)
        report.tables += [view.times(), view.losses(), view.published()]
        view.draw(out)
        report.claims += view.claims()
        if only == PUBLISHED or not (only or quick):
            report.claims += view.decided()
    if quick and not only:
        live = [vcc_live.play(lab, guests) for guests in vcc_live.GUESTS]
        report.cells += [{"labels": {"live": cell.guests}, **asdict(cell)} for cell in live]
        report.tables.append(vcc_live.text(live))
        report.claims += vcc_live.claims(live)
    return report


def _parameters(played: Sequence[Played]) -> dict[str, Any]:
    floors = {job.name: f"{floor_s(job):.3f} s" for _, job in played}
    seeds = {job.name: plan.seeds for plan, job in played}
    at_once = {job.name: most_at_once(job) for _, job in played}
    of_jobs = {"seeds": seeds, "floor": floors, "copies at once, at most": at_once}
    return {**of_jobs, "link": "1 Gbit/s", "round trip": "300 us"}


def _traces() -> list[Job]:
    """Those that are played: of a folder, with the fewest copies at once, the median, the most."""
    named = os.environ.get(TRACES_VARIABLE)
    if named is None:
        return []
    is_one = Path(named).is_file()
    paths = [Path(named)] if is_one else sorted(Path(named).glob("job_*_trace.json"))
    if not paths:
        raise Failed(f"${TRACES_VARIABLE} is {named}: no job_*_trace.json is there")
    try:
        jobs = {path: shortened(mremu.read(path)) for path in paths}
    except mremu.BadFile as error:
        raise Failed(str(error)) from error
    in_order = sorted(paths, key=lambda path: most_at_once(jobs[path]))
    chosen = dict.fromkeys([in_order[0], in_order[len(paths) // 2], in_order[-1]])
    for path in chosen:
        if floor_s(jobs[path]) == 0:
            raise Failed(f"{path}: nothing is copied from one machine to another")
    return [jobs[path] for path in chosen]


def _crossing(job: Job) -> dict[str, list[Copy]]:
    """By reducer, the copies that take a network, in their order."""
    where = job.host_of()
    copies: dict[str, list[Copy]] = {reduce.name: [] for reduce in job.reduces}
    for copy in job.copies:
        if where[copy.mapper] != where[copy.reducer]:
            copies[copy.reducer].append(copy)
    return copies


def most_at_once(job: Job) -> int:
    """Copies at once at most: a reducer has so many, from as many hosts, and all reducers copy."""
    where = job.host_of()
    sources = ({where[copy.mapper] for copy in copies} for copies in _crossing(job).values())
    return sum(min(len(hosts), job.parallel_copies) for hosts in sources)


def shortened(job: Job) -> Job:
    """The job with the first copies of each reducer, of those that take a network. A wave is what
    all reducers have at once; there are as many whole waves as `MOST_BYTES` allow, one at least.
    Copies keep their size. Maps take less time by as much as there are less bytes: so as many
    copies as before become ready in a second, and as many are under way at once."""
    where = job.host_of()
    left = _crossing(job)
    whole = sum(copy.nbytes for copies in left.values() for copy in copies)
    kept: set[Copy] = set()
    while any(left.values()):
        wave: list[Copy] = []
        for reducer, copies in left.items():
            first: dict[str, Copy] = {}
            for copy in copies:
                if len(first) < job.parallel_copies:
                    first.setdefault(where[copy.mapper], copy)
            left[reducer] = [copy for copy in copies if first.get(where[copy.mapper]) is not copy]
            wave += first.values()
        if kept and sum(copy.nbytes for copy in (*kept, *wave)) > MOST_BYTES:
            break
        kept.update(wave)
    if not kept:
        return job
    part = sum(copy.nbytes for copy in kept) / whole
    return replace(job.scaled(1, part), copies=tuple(copy for copy in job.copies if copy in kept))


def placed(job: Job) -> dict[str, int]:
    """The machine of each host: dealt to both sides in turn."""
    half = MACHINES // 2
    place = (number % MACHINES for number in range(len(job.hosts)))
    return {h: p % 2 * half + p // 2 for h, p in zip(job.hosts, place, strict=True)}


def lines(job: Job) -> str:
    """The job as the simulator reads it; times begin with the first copy that is ready."""
    where, machines = job.host_of(), placed(job)
    ends = job.map_ends()
    first = min(ends[copy.mapper] for copy in job.copies)
    numbers = {reduce.name: number for number, reduce in enumerate(job.reduces)}
    copies = [
        f"copy {machines[where[c.mapper]]} {numbers[c.reducer]} {machines[where[c.reducer]]}"
        f" {round(1e6 * (ends[c.mapper] - first))} {c.nbytes}"
        for c in job.copies
    ]
    return "\n".join([f"parallel {job.parallel_copies}", *copies]) + "\n"


def floor_s(job: Job) -> float:
    """What the job's busiest link needs at line rate: a machine's, or the one between switches."""
    where, machines = job.host_of(), placed(job)
    links: dict[tuple[str, int], int] = {}
    for copy in job.copies:
        sender, receiver = machines[where[copy.mapper]], machines[where[copy.reducer]]
        if sender == receiver:
            continue
        sides = [machine // (MACHINES // 2) for machine in (sender, receiver)]
        trunk = [("trunk", sides[0])] if sides[0] != sides[1] else []
        for link in [("egress", sender), ("ingress", receiver), *trunk]:
            links[link] = links.get(link, 0) + copy.nbytes
    return 8 * WIRE_OVER_PAYLOAD * max(links.values(), default=0) / LINK_BPS


# --- running -------------------------------------------------------------------------------


Cells = dict[Key, dict[str, Any]]


def _play(played: Sequence[Played], out: Path) -> tuple[Cells, dict[str, str]]:
    """All cells, and how many are of an earlier start (`Kept.resumed`)."""
    texts = {job.name: lines(job) for _, job in played}
    keys: list[Key] = [
        (job.name, queue, guests, pairs, seed)
        for plan, job in played
        for queue in plan.queues
        for pairs in plan.pairs
        for seed in range(1, plan.seeds + 1)
        for guests in plan.guests
    ]
    program = simulator()
    builds = Builds([Path(program)])
    kept = Kept(out / "cells.jsonl", digest_with_lab(Path(program), texts), builds=builds)

    def play(key: Key) -> None:
        name, queue, guests, pairs, seed = key
        control = next((suffix for suffix in CONTROLS if guests.endswith(suffix)), "")
        command = [program, "shuffle", queue, guests.removesuffix(control), str(pairs), str(seed)]
        command += CONTROLS.get(control, [])
        done = subprocess.run(
            command, input=texts[name], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
        kept.add(key, json.loads(done.stdout))
        print(f"\r{len(kept.results)} of {len(keys)} cells", end="", file=sys.stderr, flush=True)

    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for _ in pool.map(play, kept.missing(keys)):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
        print(file=sys.stderr)
    return {key: kept.results[key] for key in keys}, kept.resumed()


# --- judging -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """A mean and where it lies with 95 %."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Of one value there is no interval: it is taken as it is."""
        middle = mean(values)
        half = middle.half_width or 0.0
        return cls(middle.value, middle.value - half, middle.value + half)

    @classmethod
    def of_ratios(cls, ratios: Sequence[float]) -> Interval:
        """Of numbers that are quotients: their geometric mean, so that a ratio and its inverse say
        the same."""
        logs = cls.of([math.log(ratio) for ratio in ratios])
        return cls(*(math.exp(log) for log in (logs.value, logs.low, logs.high)))

    def verdict(self, least: float, most: float) -> str:
        """See the module."""
        if least <= self.low and self.high <= most:
            return "holds"
        if self.low > most or self.high < least:
            return "fails"
        return "undecided"


Number = Callable[[dict[str, Any]], float]
#: queue, guests, pairs
Cell = tuple[str, str, int]


def job_s(cell: dict[str, Any]) -> float:
    """The job's time."""
    return float(cell["job_ns"]) / 1e9


def lost(cell: dict[str, Any]) -> float:
    """Segments of the job that the network lost."""
    return float(sum(cell["job_lost"]))


def background_bps(cell: dict[str, Any]) -> float:
    """What the background received while the job ran, a second."""
    return 8 * float(cell["background_bytes"]) / job_s(cell)


def _count(what: str) -> Number:
    return lambda cell: float(cell[what])


def _kind(what: str, kind: int) -> Number:
    return lambda cell: float(cell[what][kind])


@dataclass(frozen=True)
class View:
    """The cells of one job."""

    plan: Plan
    job: Job
    cells: Cells

    def values(self, queue: str, guests: str, pairs: int, number: Number) -> list[float]:
        """A number of each seed's cell."""
        seeds = range(1, self.plan.seeds + 1)
        return [number(self.cells[(self.job.name, queue, guests, pairs, s)]) for s in seeds]

    def ratio(self, one: Cell, other: Cell, n: Number) -> Interval:
        """Of two cells (queue, guests, pairs), seed by seed."""
        both = zip(self.values(*one, n), self.values(*other, n), strict=True)
        return Interval.of_ratios([a / b for a, b in both])

    def _grid(self) -> Iterable[tuple[str, int]]:
        return ((queue, pairs) for queue in self.plan.queues for pairs in self.plan.pairs)

    def times(self) -> str:
        """Job time and the background's rate."""
        rows = []
        for queue, pairs in self._grid():
            for guests in self.plan.guests:
                seconds = mean(self.values(queue, guests, pairs, job_s))
                rate = mean(self.values(queue, guests, pairs, background_bps)).over(1e6)
                timeouts, others = (
                    mean(self.values(queue, guests, pairs, _count(what)))
                    for what in ("timeouts", "background_timeouts")
                )
                native = NATIVE_OF.get(guests)
                ratio = "-"
                if native in self.plan.guests:
                    against = self.ratio((queue, guests, pairs), (queue, native, pairs), job_s)
                    ratio = f"{against.value:.3f}"
                numbers = [f"{seconds:.3f}", ratio, f"{rate:.0f}"]
                counts = [f"{timeouts.value:.1f}", f"{others.value:.1f}"]
                rows.append([queue, str(pairs), guests, *numbers, *counts])
        header = ["queue", "pairs", "job's hosts", "job, s", "x native", "background, Mbit/s"]
        title = f"{self.job.name}: no network plays it in less than {floor_s(self.job):.3f} s"
        return title + "\n" + table([*header, "timeouts", "of the background"], rows)

    def draw(self, out: Path) -> None:
        """The published figure's two halves: a box plot of job times, and one of what was lost. And
        the same of those beside DCTCP."""
        groups = [f"{pairs} pairs" for pairs in self.plan.pairs]
        for file, what, unit, number in (
            ("times", "the job's time", "s", job_s),
            ("losses", "what it lost", "segments, and one", lambda cell: 1 + lost(cell)),
        ):
            for beside_dctcp in (False, True):
                guests = [g for g in self.plan.guests if ("dctcp" in g) == beside_dctcp]
                if not guests:
                    continue
                beside = {
                    queue: {
                        g: [self.values(queue, g, pairs, number) for pairs in self.plan.pairs]
                        for g in guests
                    }
                    for queue in self.plan.queues
                }
                name = f"{self.job.name}-dctcp" if beside_dctcp else self.job.name
                plot.boxes(out / f"{file}-{name}", f"{name}: {what}", unit, groups, beside)

    def losses(self) -> str:
        """What the job's connections lost, by kind, as a part of what they sent."""
        rows = []
        for queue, pairs in self._grid():
            for guests in self.plan.guests:
                row = [queue, str(pairs), guests]
                for kind in range(len(KINDS)):
                    gone, sent = (
                        sum(self.values(queue, guests, pairs, _kind(what, kind)))
                        for what in ("job_lost", "job_sent")
                    )
                    row.append(f"{gone:.0f} ({100 * gone / sent:.1f} %)" if sent else "0")
                rows.append(row)
        return table(["lost", "pairs", "job's hosts", *KINDS], rows)

    def directions(self) -> list[tuple[str, Interval]]:
        """Each direction that the study reports, and the ratio that is above 1 if it is so here.
        With which probability its RED2 marks it does not say."""
        pairs_here = [pairs for pairs in self.plan.pairs if pairs]
        some, most = min(pairs_here), max(pairs_here)
        found: list[tuple[str, Interval]] = []

        def compare(what: str, one: Cell, two: Cell, n: Number) -> None:
            known = all(q in self.plan.queues and g in self.plan.guests for q, g, _ in (one, two))
            if known and min(*self.values(*one, n), *self.values(*two, n)) > 0:
                found.append((what, self.ratio(one, two, n)))

        for queue in RED2S:
            for pairs in pairs_here:
                one, two = (queue, "native", pairs), ("red1", "native", pairs)
                compare(f"natives, {pairs} pairs: {queue} slower than red1", one, two, job_s)
            for pairs in pairs_here:
                one, two = (queue, "legacy", pairs), ("red1", "legacy", pairs)
                compare(f"legacy, {pairs} pairs: {queue} loses more than red1", one, two, lost)
        for queue in ("red1", *RED2S):
            one, two = (queue, "legacy", most), (queue, "legacy", some)
            compare(f"legacy, {queue}: loss grows from {some} to {most} pairs", one, two, lost)
        one, two = ("red1", "legacy", most), ("red1", "legacy", some)
        compare(f"legacy, red1: so does the time, {some} to {most} pairs", one, two, job_s)
        for queue in ("red1", *RED2S):
            one, two = (queue, "published", most), (queue, "legacy", most)
            compare(f"published, {most} pairs, {queue}: slower than legacy", one, two, job_s)
        one, two = ("red1", "published", most), ("red1", "legacy", most)
        compare(f"published, {most} pairs, red1: loses more than legacy", one, two, lost)
        return found

    def published(self) -> str:
        """Whether each of them is reproduced."""
        rows = [
            [what, f"{ratio.value:.2f}", f"{ratio.low:.2f} .. {ratio.high:.2f}", _direction(ratio)]
            for what, ratio in self.directions()
        ]
        return table(["published direction", "ratio here", "95 %", ""], rows)

    def decided(self) -> list[Claim]:
        """Each direction is reproduced or denied."""
        return [
            Claim(
                f"{self.job.name}: {what}",
                ratio.value,
                f"x ({ratio.low:.3f} .. {ratio.high:.3f}: {_direction(ratio)})",
                "1 lies outside",
                _direction(ratio) != "undecided",
            )
            for what, ratio in self.directions()
        ]

    def claims(self) -> list[Claim]:
        """What has to be so in every cell with background."""
        made = []
        for queue, pairs in self._grid():
            if pairs == 0:
                continue
            at = f"{self.job.name}, {queue}, {pairs} pairs"
            for guests in JUDGED:
                most = DCTCP_MOST if guests == "dctcp" else ECHO_MOST
                native = NATIVE_OF[guests]
                if {guests, native} <= set(self.plan.guests):
                    mine, other = (queue, guests, pairs), (queue, native, pairs)
                    ratio = self.ratio(mine, other, job_s)
                    made.append(_claim(f"{at}: {guests}, job time / native", ratio, "x", most=most))
                    more = [
                        a - b
                        for a, b in zip(
                            self.values(*mine, lost), self.values(*other, lost), strict=True
                        )
                    ]
                    name = f"{at}: {guests}, segments lost more than native"
                    made.append(_claim(name, Interval.of(more), "segments", most=0.0))
                    rate = self.ratio(mine, other, background_bps)
                    name = f"{at}: {guests}, background's rate / beside native"
                    least, most_rate = 1 - BACKGROUND_WITHIN, 1 + BACKGROUND_WITHIN
                    made.append(_claim(name, rate, "x", least=least, most=most_rate))
        fixed = [queue for queue in self.plan.queues if queue != "auto"]
        if "auto" in self.plan.queues and fixed:
            for guests in filter(self.plan.guests.__contains__, JUDGED):
                for pairs in filter(None, self.plan.pairs):
                    times = zip(*(self.values(q, guests, pairs, job_s) for q in fixed), strict=True)
                    auto = self.values("auto", guests, pairs, job_s)
                    ratios = [a / min(others) for a, others in zip(auto, times, strict=True)]
                    name = f"{self.job.name}, {pairs} pairs: {guests}, auto / better fixed setting"
                    made.append(_claim(name, Interval.of_ratios(ratios), "x", most=AUTO_MOST))
        return made


def _direction(ratio: Interval) -> str:
    """What it says of a direction: whether it lies above 1, below, or on both sides."""
    return "reproduced" if ratio.low > 1 else "denied" if ratio.high < 1 else "undecided"


def _claim(
    what: str, number: Interval, unit: str, *, most: float, least: float = float("-inf")
) -> Claim:
    verdict = number.verdict(least, most)
    target = f"<= {most:g}" if least == float("-inf") else f"{least:g} .. {most:g}"
    spread = f"{unit} ({number.low:.3f} .. {number.high:.3f}: {verdict})"
    return Claim(what, number.value, spread, target, verdict == "holds")
