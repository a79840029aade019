"""FS-VDE's published tables (`fs_vde`) with the endpoints attached as published: by libvdeplug.

The guests of both switches have the same vde_plug2tap; only what its other end is plugged into
differs. That program moves one frame a system call, so that with six of them on a machine the
CPU is what limits, whatever the switch; hence two questions, each with its own cells:

    table    the shares, on a link that the plugs can fill: 300 Mbit/s; the wire is as much faster
             than what host 1 drains as in `fs_vde`, and for the same reason
    speed    the throughput, on links that are no bottleneck, next to plain vde_switch

Being bound by the CPU is the expected state in `speed`, and of plain vde_switch; not in `table`.
Byte fairness is not asked again: it is the scheduler's, and `fs-vde` measures it where small frames
are not the plugs' burden.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab import machine
from lab.cell import Cell, play
from lab.experiments.fs_vde import (
    CLIENTS,
    FLOWS,
    FULL,
    MBIT,
    QUICK,
    SHARE_PERCENT,
    SPARE,
    Kind,
    Plan,
    client_bps,
    flow_table,
    progress,
    select,
    shape_of_plain_vde,
    tcp_flows,
    times,
    topology,
    total,
    worst_share,
)
from lab.net import Lab
from lab.programs import program
from lab.report import Claim, Report, at_least
from lab.stats import mean, table
from lab.switches import LevadaVde, LevadaVdeUnpaced, Switch, Vde
from lab.topology import Topology

SUMMARY = "the published tables of FS-VDE with the endpoints plugged in as published"

#: The tables' link: less than six plugs move on two cores.
TABLE_LINK_BPS = 300 * MBIT
#: A link that no plug fills.
SPEED_LINK_BPS = 20_000 * MBIT


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Plays all cells, peers in turn, and judges them."""
    program()  # before minutes are spent on the others
    plan = QUICK if quick else FULL
    report = Report("fs-vde-vde", quick, parameters=_parameters(plan))
    report.machine = machine.describe(["iperf3", "vde_switch", "ip", str(program())])
    cells: list[Cell] = []
    for repetition in range(plan.repetitions):
        kinds = _kinds()
        # There and back: what drifts with time falls on all alike.
        for kind in kinds if repetition % 2 == 0 else reversed(kinds):
            make = functools.partial(kind.make, lab)
            for cell in play(make, kind.flows, plan.window_s, kind.labels(repetition)):
                cells.append(cell)
                print(f"  {progress(cell)}", file=sys.stderr)
    report.cells = [cell.as_row() for cell in cells]
    report.tables = [
        *(flow_table(cells, direction) for direction in FLOWS),
        *(_speed_table(cells, direction) for direction in FLOWS),
    ]
    report.claims = claims(cells)
    return report


def _kinds() -> list[Kind]:
    kinds = []
    for direction in FLOWS:
        paced = topology(direction, TABLE_LINK_BPS, wire_bps=SPARE * TABLE_LINK_BPS)
        free = topology(direction, SPEED_LINK_BPS, wire_bps=SPEED_LINK_BPS)
        tcp = tcp_flows(direction)
        kinds += [
            Kind("table", direction, "levada", "fair", _levada(paced, paced=True), tcp),
            Kind("table", direction, "vde", None, _vde(free), tcp),
            Kind("speed", direction, "levada", "fair", _levada(free, paced=False), tcp),
        ]
    return kinds


def _vde(shape: Topology) -> Callable[[Lab], Switch]:
    return lambda lab: Vde(lab, shape)


def _levada(shape: Topology, paced: bool) -> Callable[[Lab], Switch]:
    return lambda lab: LevadaVde(lab, shape) if paced else LevadaVdeUnpaced(lab, shape)


def claims(cells: Sequence[Cell]) -> list[Claim]:
    """Shares as in `fs-vde`, and throughput above plain vde_switch's."""
    made = []
    for direction in FLOWS:
        vde = select(cells, "table", direction, "vde")
        ours = select(cells, "table", direction, "levada")
        speed = select(cells, "speed", direction, "levada")
        share = f"{direction}: worst client's share"
        made.append(at_least(share, worst_share(ours), "% of ideal", SHARE_PERCENT))
        made.append(shape_of_plain_vde(vde, direction))
        name = f"{direction}: throughput over plain vde_switch's"
        made.append(at_least(name, times(speed, vde), "x", 1.0))
    return made


def _speed_table(cells: Sequence[Cell], direction: str) -> str:
    rows = []
    for part, peer in (("table", "vde"), ("speed", "levada")):
        chosen = select(cells, part, direction, peer)
        if not chosen:
            rows.append([peer, *["invalid"] * (len(CLIENTS) + 1)])
            continue
        by_client = [f"{mean([client_bps(c)[t.name] / 1e6 for c in chosen]):.0f}" for t in CLIENTS]
        rows.append([peer, *by_client, f"{total(chosen).value / 1e6:.0f}"])
    header = [f"{direction}, no link in the way, Mbit/s", *(t.name for t in CLIENTS), "total"]
    return table(header, rows)


def _parameters(plan: Plan) -> dict[str, Any]:
    return {
        "repetitions": plan.repetitions,
        "window_s": plan.window_s,
        "weights": {c.name: c.weight for c in CLIENTS},
        "flows": {d: {f: list(ends) for f, ends in flows.items()} for d, flows in FLOWS.items()},
        "table_link_bps": TABLE_LINK_BPS,
        "speed_link_bps": SPEED_LINK_BPS,
        "congestion_control": "cubic",
    }
