"""LXC containers of the lab: a few files of this machine, and a device that LXC moves in.

The file system is made from the machine's own busybox and the programs that a workload needs. The
device lies in the namespace in which the container is started, where its switch has put it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from lab.guest import program_files
from lab.net import Lab, Namespace, Process, missing_tools
from lab.programs import Missing

#: A container ends by itself after this, whatever becomes of the lab.
LONGEST_S = 3600
#: What a container has of busybox by name.
_APPLETS = ("cat", "ip", "ping", "sleep", "timeout")
#: Programs without which there is no container.
TOOLS = ("lxc-start", "lxc-attach", "lxc-info", "lxc-stop", "busybox")


def check() -> None:
    """Raises `Missing` where containers cannot be run."""
    missing = missing_tools(TOOLS)
    if missing:
        raise Missing(f"containers need {', '.join(missing)}: tools/setup guests")


class Container:
    """A container with a device of a namespace, which has `address` (with its length) inside, and
    with these `programs` beside busybox."""

    def __init__(
        self,
        lab: Lab,
        name: str,
        space: Namespace,
        device: str,
        address: str,
        programs: Sequence[str],
    ) -> None:
        self.lab = lab
        self.name = name
        self._space = space
        self._home = lab.dir / "lxc"
        self._device = device
        self._address = address
        self._programs = programs

    def start(self) -> None:
        """Returns when it runs."""
        root = self._home / f"{self.name}.root"
        for folder in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            (root / folder).mkdir(parents=True)
        for path, content in program_files(("busybox", *self._programs)):
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(0o755)
        for applet in _APPLETS:
            (root / "bin" / applet).symlink_to("busybox")
        config = self._home / f"{self.name}.conf"
        config.write_text(self._configuration(root))
        process = self._space.spawn(self.name, *self._tool("lxc-start"), "-F", "-f", str(config))
        self.lab.defer(self.stop)
        process.wait_for(lambda: "RUNNING" in self._state(), "a running container")

    def stop(self) -> None:
        """Ends it; its device is then back where it was."""
        self._space.run(*self._tool("lxc-stop"), "-k", check=False)
        shutil.rmtree(self._home / f"{self.name}.root", ignore_errors=True)

    def run(self, *command: str) -> str:
        """Runs a command inside; what it says."""
        return self._space.run(*self._tool("lxc-attach"), "--", *command)

    def spawn(self, label: str, *command: str) -> Process:
        """Starts a program inside."""
        return self._space.spawn(label, *self._tool("lxc-attach"), "--", *command)

    def _state(self) -> str:
        return self._space.run(*self._tool("lxc-info"), "-s", check=False)

    def _tool(self, tool: str) -> tuple[str, ...]:
        # LXC's own socket is in the network namespace from which it was started.
        return (tool, "-n", self.name, "-P", str(self._home))

    def _configuration(self, root: Path) -> str:
        lines = {
            "uts.name": self.name,
            "rootfs.path": f"dir:{root}",
            "init.cmd": f"/bin/busybox sleep {LONGEST_S}",
            "console.path": "none",
            "mount.auto": "proc",
            "net.0.type": "phys",
            "net.0.link": self._device,
            "net.0.name": "eth0",
            "net.0.flags": "up",
            "net.0.ipv4.address": self._address,
        }
        return "".join(f"lxc.{key} = {value}\n" for key, value in lines.items())
