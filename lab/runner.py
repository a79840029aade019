"""`lab/run EXPERIMENT [--quick] [--only PART] [--out DIR]`: plays an experiment and judges its
claims. `DIR/result.json` has them with all raw rows; without --out it is out/EXPERIMENT, and for a
part or a quick run out/EXPERIMENT-PART, out/EXPERIMENT-quick or out/EXPERIMENT-PART-quick, so that
none takes the place of a full run's.

Exit status: 0 when all claims hold, 1 when one does not, 2 when the experiment could not be
played. `lab/run --clean` removes what a killed run has left. A full run of `bonding` or of
`lb-fig2` to `lb-fig5`, and any of `vcc-fig1`, that was interrupted goes on where it was when it is
started again, unless the program, its tools or the lab have changed since (`lab.kept`); to begin
anew, remove `cells.jsonl` in its folder.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.experiments import EXPERIMENTS
from lab.net import Failed, Lab, remove_leftovers, require_root
from lab.programs import Builds, Missing, require_fresh
from lab.report import Report


def main() -> int:
    """Parses, plays, prints, judges."""
    args = _arguments()
    require_root()
    if args.clean:
        for name in remove_leftovers():
            print(f"removed {name}")
        return 0
    if args.experiment is None:
        print(f"lab/run: name an experiment: {', '.join(EXPERIMENTS)}", file=sys.stderr)
        return 2
    out = args.out or Path("out") / folder_name(args.experiment, args.only, args.quick)
    module = importlib.import_module(EXPERIMENTS[args.experiment])
    parts: Sequence[str] = getattr(module, "PARTS", ())
    if args.only is not None and args.only not in parts:
        what = f"its parts are {', '.join(parts)}" if parts else "it has no parts"
        print(f"lab/run {args.experiment}: no part {args.only}: {what}", file=sys.stderr)
        return 2
    only = {} if args.only is None else {"only": args.only}
    try:
        require_fresh()
        builds = Builds.all()
        with alone(out):
            with Lab() as lab:
                report: Report = module.run(lab, args.quick, out, **only)
            builds.require_same()
            path = report.write(out)
    except (Failed, Missing, OSError, subprocess.SubprocessError) as error:
        print(f"lab/run {args.experiment}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"lab/run {args.experiment}: interrupted; everything was removed", file=sys.stderr)
        return 130
    print(report.text())
    print(f"\nraw rows and claims: {path}")
    return 0 if report.holds() else 1


def folder_name(experiment: str, part: str | None, quick: bool) -> str:
    """Of a run's result."""
    return "-".join([experiment, *([part] if part else []), *(["quick"] if quick else [])])


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Holds a folder of results, which is made if need be: two runs at a time would mix theirs.
    Raises `Failed` where another holds it. A run that is killed holds it no more."""
    out.mkdir(parents=True, exist_ok=True)
    held = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"another run writes to {out}"
            raise Failed(f"{what}: wait for it, or name another with --out") from None
        yield
    finally:
        os.close(held)


def _arguments() -> argparse.Namespace:
    experiments = "\n".join(
        f"  {name}  {importlib.import_module(module).SUMMARY}"
        for name, module in EXPERIMENTS.items()
    )
    parser = argparse.ArgumentParser(
        prog="lab/run",
        description="Plays an experiment and judges its claims.",
        epilog=f"experiments:\n{experiments}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiment", nargs="?", choices=list(EXPERIMENTS), metavar="EXPERIMENT")
    parser.add_argument("--quick", action="store_true", help="one short run a cell")
    parser.add_argument("--only", metavar="PART", help="one part of an experiment that has several")
    parser.add_argument(
        "--out", type=Path, help="folder of the result; default out/EXPERIMENT[-PART][-quick]"
    )
    parser.add_argument("--clean", action="store_true", help="remove what a killed run left")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
