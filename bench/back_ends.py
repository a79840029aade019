"""The back ends of vhost-user that are compared: each has core 0, and waits for front ends.

Source of testpmd's options: DPDK's "Testpmd Application User Guide" and "Poll Mode Driver that
wraps vhost library".
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.cell import Cell, disturbance
from lab.machine import CpuUse
from lab.net import Lab, Process
from lab.programs import program
from lab.switches.levada import rate_text, toml_table

#: Above what is reached: all it does is to send every frame through the scheduler.
FAR_ABOVE_BPS = 100_000_000_000
TESTPMD = "dpdk-testpmd"
#: Cores of the back end and of its front ends.
BACK, FRONT = 0, 1
MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
START_S = 20.0
PROMPT = "testpmd> "

#: What testpmd's first frames are from (RFC 2544, appendix C.2.2).
_NETWORK = "198.18.0.0/15"

#: What a back end is: given a directory for its sockets, its process, ready for front ends.
BackEnd = Callable[[Lab, Path], Process]


def cell_of(labels: dict[str, Any], window_s: float, bps: float, use: CpuUse) -> Cell:
    """One measurement: what came, in bit/s, and what the processors did meanwhile."""
    disturbed = disturbance(use, 0.0)
    return Cell(
        labels={"section": "vhost", **labels},
        window_s=window_s,
        goodput_bps={"frames": bps},
        flows={},
        wire={},
        idle=use.idle,
        cores=use.cores,
        strangers=use.strangers,
        worker=None,
        bound=None,
        disturbed=disturbed,
        valid=disturbed is None,
    )


def spawn_testpmd(lab: Lab, label: str, core: int, ports: list[str], options: list[str]) -> Process:
    """testpmd with one forwarding thread, all of it on one core."""
    devices = [word for port in ports for word in ("--vdev", port)]
    return lab.spawn(
        f"testpmd-{label}",
        # What it says is not to wait in its buffer.
        *("stdbuf", "-oL", TESTPMD, "--no-huge", "-m", "256", "--no-pci", "--no-telemetry"),
        *("--file-prefix", f"{lab.tag}-{label}", "--lcores", f"0@{core},1@{core}", *devices),
        *("--", "--nb-cores=1", "--no-mlockall", *options),
    )


def testpmd(port_options: str = "", *options: str) -> BackEnd:
    """DPDK's vhost library, two ports, frames from the one to the other. `port_options` begin with
    a comma."""

    def start(lab: Lab, sockets: Path) -> Process:
        paths = [sockets / f"{n}.sock" for n in range(len(MACS))]
        ports = [f"net_vhost{n},iface={path}{port_options}" for n, path in enumerate(paths)]
        ways = ["-i", "--forward-mode=io", "--auto-start", *options]
        process = spawn_testpmd(lab, "back", BACK, ports, ways)
        process.wait_for(lambda: PROMPT in process.output(), "its sockets", START_S)
        return process

    return start


def levada(spin: bool) -> BackEnd:
    """Levada with `configuration`."""

    def start(lab: Lab, sockets: Path) -> Process:
        config = lab.dir / "vhost.toml"
        # Beside a daemon that is named after the lab.
        name = f"{lab.tag}-vhost"
        config.write_text(configuration(name, sockets, spin))
        process = lab.spawn(
            "levada",
            *("taskset", "-c", str(BACK), str(program()), "run", "-c", str(config)),
            env={"LEVADA_RUN_DIR": str(lab.dir / "run")},
        )
        lab.defer(lambda: process.stop(signal.SIGTERM))
        ready = f"levada: {name} ready"
        process.wait_for(lambda: ready in process.output(), "its sockets", START_S)
        return process

    return start


def configuration(name: str, sockets: Path, spin: bool) -> str:
    """Two endpoints of a tenant, with addresses and a limit that holds nothing back."""
    knobs: dict[str, Any] = {"limit": rate_text(FAR_ABOVE_BPS), "ip": _NETWORK}
    ends = [
        toml_table(
            "[switch.tenant.endpoint]",
            name=f"e{n}",
            port=f"vhost-user://{sockets}/{n}.sock",
            listen=True,
            sealed=False,
            mac=mac,
            **knobs,
        )
        for n, mac in enumerate(MACS)
    ]
    parts = [
        toml_table("daemon", name=name, spin=spin),
        toml_table("[switch]", name="s"),
        toml_table("[switch.tenant]", name="t"),
    ]
    return "\n".join(parts + ends)
