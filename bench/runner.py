"""`bench/run [--quick] [--only SECTION ...] [--out DIR]`: measures, prints, judges.

Exit status: 0 when all claims hold, 1 when one does not, 2 when it could not be measured. The
claims are the project's promised numbers; `DIR/result.json` (default bench/out) holds them with all
raw rows. `bench/run --clean` removes what a killed run has left.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.core import core
from bench.latency import latency
from bench.memory import memory
from bench.shares import shares
from bench.throughput import packet, pairs, small, tcp
from bench.tunnel import tunnel
from bench.vcc import vcc
from bench.vhost import vhost
from lab.machine import describe
from lab.net import Failed, Lab, remove_leftovers, require_root
from lab.programs import Builds, Missing, require_fresh
from lab.report import Report
from lab.switches import Ovs, Vde

#: In the order of running. Each adds its cells, claims and tables.
SECTIONS: dict[str, Callable[[Lab, Report, bool], None]] = {
    "core": core,
    "tcp": tcp,
    "packet": packet,
    "pairs": pairs,
    "small": small,
    "vhost": vhost,
    "tunnel": tunnel,
    "shares": shares,
    "ping": latency,
    "memory": memory,
    "vcc": vcc,
}

_OUT = Path(__file__).resolve().parent / "out"
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def main() -> int:
    """Parses, measures, prints, judges."""
    args = _arguments()
    require_root()
    if args.clean:
        for name in remove_leftovers():
            print(f"removed {name}")
        return 0
    try:
        require_fresh()
    except Missing as error:
        print(f"bench/run: {error}", file=sys.stderr)
        return 2
    builds = Builds.all()
    report = Report("bench", args.quick, machine=_machine())
    failed = False
    try:
        with Lab() as lab:
            for name in args.only or SECTIONS:
                failed |= not _section(name, lab, report, args.quick)
    except KeyboardInterrupt:
        print("bench/run: interrupted; everything was removed", file=sys.stderr)
        return 130
    try:
        builds.require_same()
        path = report.write(args.out)
    except (Failed, OSError) as error:
        print(f"bench/run: {error}", file=sys.stderr)
        return 2
    # The tables were printed by their sections.
    print(replace(report, tables=[]).text())
    print(f"\nraw rows and claims: {path}")
    if failed:
        return 2
    return 0 if report.holds() else 1


def _section(name: str, lab: Lab, report: Report, quick: bool) -> bool:
    """Plays one section and prints its tables. False where it could not be measured, which
    is no reason to lose the others."""
    print(f"bench: {name} ...", file=sys.stderr, flush=True)
    start, tables = time.monotonic(), len(report.tables)
    try:
        # What a section made goes with it.
        with lab.stage():
            SECTIONS[name](lab, report, quick)
    except Exception as error:
        # What nobody has thought of costs its section too, and no other.
        if not isinstance(error, (Failed, Missing)):
            traceback.print_exc()
        print(f"bench: {name} could not be measured: {error}", file=sys.stderr, flush=True)
        return False
    print(f"bench: {name} took {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    print("\n\n".join(report.tables[tables:]), end="\n\n", flush=True)
    return True


def _machine() -> dict[str, object]:
    """What it runs on, and how noisy that was before anything was started."""
    machine = describe((*Ovs.tools[2:], *Vde.tools[:1], "iperf3", "ping", "ip"))
    governor = _GOVERNOR.read_text().strip() if _GOVERNOR.is_file() else "not told (a guest?)"
    return machine | {"governor": governor, "load_average": os.getloadavg()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run",
        description="Measures Levada next to its peers and judges the promised numbers.",
        epilog="sections: "
        + "; ".join(f"{name}: {(f.__doc__ or '').strip()}" for name, f in SECTIONS.items()),
    )
    parser.add_argument("--quick", action="store_true", help="few short cells, under 3 minutes")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--out", type=Path, default=_OUT, help="folder of result.json")
    parser.add_argument("--clean", action="store_true", help="remove what a killed run left")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
