"""What virtual congestion control costs a frame: instructions, counted by callgrind.

`levada-sim work` passes data and acknowledgements of TCP connections through a switch, one or
10 000 by turns, with `vcc` and without: data from the guest or for it (`in`), over IPv4 or IPv6, to
a peer that answers with RFC 3168's ECN or with AccECN (`accurate`), as another switch does for its
guest; and of a guest that is held to its window (`police`). The difference of two runs of unlike
length is what the frames between them take; that of both kinds is what `vcc` takes. Counts depend
on the compiler and not on the machine's calm.

Where `vcc` is off, instructions on the lines of its own source are counted: those that look whether
it is. What the compiler takes from Rust's library there, a bounds check, is not among them.

Bulk data are frames of 64 KiB between two neighbours with limits, as in `bench/run --only vcc`,
whose queues are those that configuration makes: `vcc` turns a discipline on (`aqm`), which takes
its part too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lab import machine
from lab.callgrind import a_frame_on, counted
from lab.net import Failed, Lab
from lab.programs import simulator
from lab.report import Report, at_most
from lab.stats import table

SUMMARY = "instructions that vcc takes for a frame, counted by callgrind"

#: Frames of the two runs, the difference of which counts.
FRAMES, QUICK_FRAMES = (20_000, 220_000), (4_000, 44_000)
#: Of each group the first is without `vcc`; its peer sends the same as that of the others. Those of
#: RFC 3168's wire have no word for it: there `dctcp` does what `echo` does.
OUT = (
    "vcc-off",
    "vcc-echo",
    "vcc-dctcp",
    "vcc-echo-10000",
    "vcc-dctcp-10000",
)
ACCURATE = ("vcc-accurate-off", "vcc-accurate", "vcc-accurate-10000", "vcc-accurate-police")
IN = ("vcc-in-off", "vcc-in-classic")
ACCURATE_IN = ("vcc-in-accurate-off", "vcc-in-accurate")
IPV6 = ("vcc-ipv6-off", "vcc-ipv6-accurate")
IPV6_IN = ("vcc-ipv6-in-off", "vcc-ipv6-in-accurate")
BULK = ("vcc-bulk-off", "vcc-bulk-echo", "vcc-bulk-dctcp")
GROUPS = (OUT, ACCURATE, IN, ACCURATE_IN, IPV6, IPV6_IN, BULK)
KINDS = tuple(kind for group in GROUPS for kind in group)
#: More than without `vcc` at most, a frame, of one segment or of bulk data.
MOST = 250
#: Where it is off, a frame: it is looked whether vcc is on at both its ends.
MOST_OFF = 10
SOURCE = ("datapath/src/vcc",)
_DONE = re.compile(r"(\d+) operations")


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Counts each kind; claims are of the differences."""
    lengths = QUICK_FRAMES if quick else FRAMES
    counts: dict[str, float] = {}
    for kind in KINDS:
        counts[kind] = instructions(kind, lengths)
        print(f"  {len(counts)} of {len(KINDS)} kinds: {kind}", file=sys.stderr, flush=True)
    report = Report("vcc-cost", quick, parameters={"frames": list(lengths)})
    report.machine = machine.describe(["valgrind"])
    report.cells = [{"labels": {"kind": kind}, "instructions": n} for kind, n in counts.items()]
    more = {kind: counts[kind] - counts[group[0]] for group in GROUPS for kind in group}
    rows = [[kind, f"{n:.0f}", f"{more[kind]:+.0f}"] for kind, n in counts.items()]
    report.tables = [table(["kind", "instructions a frame", "of vcc"], rows)]
    off = a_frame_on(SOURCE, lengths, simulator(), "work", KINDS[0])
    report.claims = [at_most("vcc-off: on lines of vcc", off, "instructions a frame", MOST_OFF)]
    report.claims += [
        at_most(f"{kind}: more than off", more[kind], "instructions a frame", MOST)
        for group in GROUPS
        for kind in group[1:]
    ]
    return report


def instructions(kind: str, lengths: tuple[int, int]) -> float:
    """Of one frame, with what makes and frees it."""
    (few, at_few), (many, at_many) = (count(kind, frames) for frames in lengths)
    return (at_many - at_few) / (many - few)


def count(kind: str, frames: int) -> tuple[int, int]:
    """Frames that were passed, and instructions of the whole run."""
    collected, told = counted(simulator(), "work", kind, str(frames))
    passed = _DONE.search(told)
    if passed is None:
        raise Failed(f"the simulator did not tell what it passed:\n{told[-1000:]}")
    return int(passed[1]), collected
