"""What virtual congestion control leaves of the rate of one TCP connection.

Three pairs of endpoints of one switch, each a tenant: `vcc` is `off`, `echo` and `dctcp`. All have
a limit, far above what is reached, so that every frame is queued and scheduled, as in the section
`tcp`. Guests have no ECN. A rate has much chance in it, as it depends on which processors the
kernel gives the programs, so the processor time for a byte is shown beside. So is what `vcc` did:
where nothing is marked, and no window lowered, what differs is what it takes for a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from bench.pairs import COLUMNS, Measure, Pair, interleaved, row
from bench.peers import VccLevada
from bench.throughput import WINDOW_S, ns_per_byte, switch_ns_per_byte
from lab.cell import Cell, measure
from lab.net import Lab
from lab.report import Claim, Report, at_least
from lab.stats import median, median_interval, table
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import TcpFlow

#: A limit that nothing here reaches.
_FAR_ABOVE_BPS = 100_000_000_000
#: The modes that are compared with `off`.
MODES = ("echo", "dctcp")
#: How much of the rate without it they have to reach, at the lower end of the median's interval.
AT_LEAST = 0.99
#: What is shown of an endpoint's `vcc` (`levada show vcc`).
COUNTED = ("translated", "hidden_marks", "marked_bytes", "lowered", "reductions")
#: Pairs of each mode: fewer than six have no interval of 95 %.
ROUNDS = {False: 10, True: 6}


def vcc(lab: Lab, report: Report, quick: bool) -> None:
    """One TCP connection with `vcc` next to one without."""
    rows: list[Cell] = []
    switch = VccLevada(lab, topology())
    with switch.running():

        def measured(mode: str) -> Measure:
            def once() -> tuple[Cell, float]:
                labels = {"section": "vcc", "switch": "levada", "vcc": mode}
                flow = TcpFlow("flow", f"{mode}0", f"{mode}1")
                cell = measure(switch, [flow], WINDOW_S[quick], labels)
                # The CPU is meant to bind it: it counts unless something disturbed it.
                cell = replace(cell, valid=cell.disturbed is None)
                return cell, cell.goodput_bps["flow"] / 1e9

            return once

        off = {"off": measured("off")}
        results = {m: interleaved(ROUNDS[quick], measured(m), off, rows)["off"] for m in MODES}
        counted = [
            [e["path"].rsplit("/", 1)[1], *(str(e[name]) for name in COUNTED)]
            for e in switch.vcc_of_endpoints()
        ]
    report.cells += [cell.as_row() for cell in rows]
    report.claims += claims(results)
    report.parameters["vcc_pairs"] = {mode: [asdict(p) for p in ps] for mode, ps in results.items()}
    lines = [row(f"off ({mode})", ps, ".3f") for mode, ps in results.items()]
    report.tables.append("vcc: with it against without; Gbit/s\n" + table(["", *COLUMNS], lines))
    times = [times_row(mode, rows) for mode in ("off", *MODES)]
    title = "vcc: processor time, medians of all cells; ns a byte"
    report.tables.append(f"{title}\n" + table(["", "switch", "switch and both ends"], times))
    report.tables.append("vcc: what it did\n" + table(["endpoint", *COUNTED], counted))


def times_row(mode: str, rows: Sequence[Cell]) -> list[str]:
    """A mode's processor time for a byte: the switch's, and all."""
    cells = [cell for cell in rows if cell.labels["vcc"] == mode]
    times = [median([time(c) for c in cells]) for time in (switch_ns_per_byte, ns_per_byte)]
    return [mode, *(f"{ns:.4f}" for ns in times)]


def topology() -> Topology:
    """One switch with a pair of endpoints of a tenant for each mode, named after it."""
    modes = ("off", *MODES)
    ends = tuple(
        Endpoint(f"{mode}{n}", mode, "levada", limit_bps=_FAR_ABOVE_BPS)
        for mode in modes
        for n in range(2)
    )
    return Topology(tuple(Tenant(mode) for mode in modes), ends, (Host("levada", _FAR_ABOVE_BPS),))


def claims(results: dict[str, list[Pair]]) -> list[Claim]:
    """That each mode, against `off` in the same run, reaches what it has to, with 95 %
    confidence."""
    return [
        at_least(f"vcc.{m}, lower end of 95 %", low(pairs), "x off", AT_LEAST)
        for m, pairs in results.items()
    ]


def low(pairs: list[Pair]) -> float | None:
    """The lower end of the interval of the pairs' median ratio; None where too few count."""
    ends = median_interval([pair.ratio for pair in pairs if pair.valid])
    return ends[0] if ends else None
