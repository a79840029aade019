"""What a bond costs a frame: instructions, counted by callgrind.

`datapath/examples/bond_cost` passes frames through one bond, or through none. The difference of two
runs of unlike length is what the frames between them take; that of two kinds is what one of them
does besides. Counts depend on the compiler and not on the machine's calm.

Where the uplink is one port, frames that `levada-sim work vcc-off` passes through a switch, out to
the uplink and in by turns, are counted: instructions on the lines of bonds' own source, of which
there are to be none, and on those of the switch's parts that ask whether there is a bond, or what
numbers come from one that was there.
"""

from __future__ import annotations

from pathlib import Path

from lab import machine
from lab.callgrind import a_frame_on, counted
from lab.net import Lab
from lab.programs import example, simulator
from lab.report import Report, at_most
from lab.stats import table

SUMMARY = "instructions that a bond takes for a frame, counted by callgrind"

#: Frames of the two runs, the difference of which counts: from the first on, as many are kept as
#: are let go.
FRAMES, QUICK_FRAMES = (20_000, 220_000), (8_000, 48_000)
#: Each kind, and which one does the same without it.
KINDS = {
    "none": None,
    "plain": "none",
    "select": "none",
    "send": "none",
    "number": "none",
    "receive": "number",
}
#: Instructions a frame, at most: chosen and numbered, till it leaves; the same, and kept to be sent
#: again until it is let go; and received in order.
MOST = {"select": 200, "send": 200, "receive": 150}
SOURCE = ("datapath/src/bond",)
#: Where a switch asks whether there is a bond; and instructions a frame at most where there is
#: none: 5 as measured, a comparison or two at each call, and what another compiler makes of them.
ASKING = ("datapath/src/switch/members.rs", "datapath/src/switch/past_numbers.rs")
MOST_ASKING = 8


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Counts each kind; claims are of the differences."""
    lengths = QUICK_FRAMES if quick else FRAMES
    counts = {kind: instructions(kind, lengths) for kind in KINDS}
    report = Report("bond-cost", quick, parameters={"frames": list(lengths)})
    report.machine = machine.describe(["valgrind"])
    report.cells = [{"labels": {"kind": kind}, "instructions": n} for kind, n in counts.items()]
    own = {kind: counts[kind] - (counts[base] if base else 0) for kind, base in KINDS.items()}
    rows = [[kind, f"{counts[kind]:.0f}", f"{own[kind]:.0f}"] for kind in KINDS]
    report.tables = [table(["kind", "instructions a frame", "of the bond"], rows)]
    report.claims = [
        at_most(f"{kind}: of the bond", own[kind], "instructions a frame", most)
        for kind, most in MOST.items()
    ]
    for what, parts, most in (
        ("on lines of bonds", SOURCE, 0),
        ("on lines that ask for one", ASKING, MOST_ASKING),
    ):
        found = a_frame_on(parts, lengths, simulator(), "work", "vcc-off")
        report.claims.append(at_most(f"one port: {what}", found, "instructions a frame", most))
    return report


def instructions(kind: str, lengths: tuple[int, int]) -> float:
    """Of one frame, with what makes and frees it."""
    few, many = (counted(example("bond_cost"), kind, str(frames))[0] for frames in lengths)
    return (many - few) / (lengths[1] - lengths[0])
