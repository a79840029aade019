"""Virtual machines of the lab: Debian's cloud kernel under QEMU, with an initial file system of a
few files, and a shell on the serial line that the lab speaks to.

Nothing of this is in the project: `tools/setup guests` gets QEMU and the kernel's package by apt,
and the initial file system is made here from the machine's own busybox and iperf3. The machine is
emulated (TCG): a guest is slow, and what is measured is mostly QEMU. The accelerator is stated in
each result. (A /dev/kvm that opens is not yet one that runs Debian's kernel.)
"""

from __future__ import annotations

import gzip
import json
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.net import Failed, Lab, Namespace, Process, run
from lab.programs import Missing

#: How the machines run.
ACCELERATOR = "tcg"
#: With this the guest's kernel has not crashed under QEMU 7.2 (CONTRIBUTING.md).
_CPU = "Nehalem,-cx16"
#: What apt has fetched and `tools/setup guests` has unpacked.
FETCHED = Path(__file__).resolve().parents[1] / "target" / "guests"
#: Programs without which there is no machine, and the Debian packages that hold them.
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "iperf3": "iperf3"}
#: In the order in which they are loaded.
_MODULES = (
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
)
#: What a guest with a disk does: it loads what it needs, and goes on from the disk.
_FROM_DISK = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in MODULES; do insmod /lib/$module.ko; done
mount -t ext4 /dev/vda /tmp
umount /proc /dev
exec switch_root /tmp /sbin/init
"""
#: What any other does: it loads what it needs, and then runs each line of the serial line.
_INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in MODULES; do insmod /lib/$module.ko; done
stty -F /dev/ttyS0 -echo -onlcr
exec </dev/ttyS0 >/dev/ttyS0 2>&1
ip link set lo up
ip link set eth0 up
echo "levada: ready"
while read -r line; do
    sh -c "$line" </dev/null
    echo "levada: done $?"
done
"""
_BOOT_S = 90.0


@dataclass(frozen=True)
class Image:
    """A kernel, and the file system that it begins with."""

    kernel: Path
    initrd: Path
    version: str


def image(
    lab: Lab,
    more: tuple[str, ...] = (),
    programs: tuple[str, ...] = (),
    from_disk: bool = False,
) -> Image:
    """Makes a guest's file system, with these modules of the kernel and programs of this machine
    beside the usual ones. Raises `Missing` with what to do."""
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        raise Missing(f"virtual machines need {', '.join(missing)}: tools/setup guests")
    root = next((r for r in (FETCHED, Path("/")) if list(r.glob("boot/vmlinuz-*-cloud-*"))), None)
    if root is None:
        raise Missing("virtual machines need Debian's cloud kernel: tools/setup guests")
    kernel = sorted(root.glob("boot/vmlinuz-*-cloud-*"))[-1]
    version = kernel.name.removeprefix("vmlinuz-")
    names = (*_MODULES, *more)
    files = dict(_modules(root / "lib" / "modules" / version, names))
    init = _FROM_DISK if from_disk else _INIT
    files["init"] = init.replace("MODULES", " ".join(names)).encode()
    files.update(program_files(("busybox", "iperf3", *programs)))
    initrd = lab.dir / "guest.initrd"
    initrd.write_bytes(gzip.compress(_cpio(files), compresslevel=1))
    return Image(kernel, initrd, version)


def _modules(modules: Path, names: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        found = sorted(modules.rglob(f"{name}.ko*"))
        if not found:
            raise Failed(f"{modules} has no module {name}")
        yield f"lib/{name}.ko", _unpacked(found[0])


def program_files(names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Programs of this machine, in `bin`, and the libraries that they need, where they are here."""
    yield "etc/protocols", b"tcp 6 TCP\nudp 17 UDP\n"
    for name in names:
        path = shutil.which(name) or name
        yield f"bin/{name}", Path(path).read_bytes()
        for library in re.findall(r"(/\S+) \(0x", run("ldd", path, check=False)):
            yield library.lstrip("/"), Path(library).read_bytes()


def _unpacked(module: Path) -> bytes:
    if module.suffix == ".xz":
        return subprocess.run(["xz", "-dc", module], capture_output=True, check=True).stdout
    if module.suffix == ".zst":
        return subprocess.run(["zstd", "-dc", module], capture_output=True, check=True).stdout
    return module.read_bytes()


def _cpio(files: dict[str, bytes]) -> bytes:
    """An archive in the "newc" form (kernel: driver-api/early-userspace/buffer-format.rst)."""
    folders = {str(parent) for name in files for parent in Path(name).parents} - {"."}
    entries = [(name, 0o040755, b"") for name in sorted(folders | {"dev", "proc", "sys", "tmp"})]
    entries += [(name, 0o100755, content) for name, content in files.items()]
    entries.append(("TRAILER!!!", 0, b""))
    archive = bytearray()
    for number, (name, mode, content) in enumerate(entries):
        path = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        archive += b"070701" + b"".join(b"%08X" % field for field in fields) + path
        archive += bytes(-len(archive) % 4) + content
        archive += bytes(-len(archive) % 4)
    return bytes(archive)


@dataclass(frozen=True)
class Tap:
    """What a card may be instead of rings behind a socket: a TAP that QEMU opens."""

    device: str


#: What is behind a card: the socket of a vhost-user port, or a TAP.
Card = Path | Tap


@dataclass
class Machine:
    """One virtual machine with a network card, whose rings are behind a socket that QEMU makes, and
    further ones of other sockets and MAC addresses, `more`. Cards say that they have 1 Gbit/s.

    `queues` are their pairs of rings, `memory_mb` its memory, `disk` what it has beside its first
    file system. QEMU runs in `space`, where there is one."""

    lab: Lab
    name: str
    image: Image
    card: Card | None
    mac: str
    queues: int = 1
    memory_mb: int = 160
    #: Whether the switch makes the socket, and QEMU connects to it.
    connects: bool = False
    more: tuple[tuple[Card, str], ...] = ()
    space: Namespace | None = None
    disk: Path | None = None
    #: More for the kernel's command line.
    options: str = ""
    process: Process = field(init=False)
    #: From QEMU's start to the guest's word.
    boot_s: float = field(init=False, default=0.0)
    _heard: str = field(init=False, default="")

    def start(self) -> None:
        """Starts QEMU; `await_boot` waits for the guest."""
        self._begun = time.monotonic()
        self._heard = ""
        place = self.space or self.lab
        self.process = place.spawn(self.name, *self._command(), stdout=subprocess.PIPE)

    def reboot(self, command: str = "reboot -f") -> None:
        """The guest begins anew, in the same QEMU; returns when it is there."""
        self.begin(command)
        self._begun = time.monotonic()
        self.await_boot()

    def restart(self) -> None:
        """QEMU is killed and started again; returns when the guest is there."""
        self.process.popen.kill()
        self.process.popen.wait()
        self.start()
        self.await_boot()

    def await_boot(self) -> None:
        """Returns once the guest's shell has said that it is there."""
        self._until(r"levada: ready\n", self._begun + _BOOT_S)
        self.boot_s = time.monotonic() - self._begun

    def _command(self) -> list[str]:
        memory = f"{self.memory_mb}M"
        cards: list[str] = []
        first = [] if self.card is None else [(self.card, self.mac)]
        for number, (card, mac) in enumerate([*first, *self.more]):
            cards += self._card(number, card, mac)
        if self.disk is not None:
            cards += ["-drive", f"file={self.disk},if=virtio,format=raw"]
        return [
            "qemu-system-x86_64",
            *("-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio"),
            *("-accel", ACCELERATOR, "-cpu", _CPU, "-smp", str(self.queues), "-m", memory),
            *("-object", f"memory-backend-memfd,id=m,size={memory},share=on"),
            *("-machine", "q35,memory-backend=m"),
            *("-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd)),
            *("-append", f"console=ttyS0 quiet panic=-1 mitigations=off {self.options}"),
            *cards,
        ]

    def _card(self, number: int, behind: Card, mac: str) -> list[str]:
        card = f"virtio-net-pci,netdev=n{number},mac={mac},vectors=0,rx_queue_size=1024"
        card += ",speed=1000,duplex=full"
        if self.queues > 1:
            card += ",mq=on"
        if isinstance(behind, Tap):
            tap = f"tap,id=n{number},ifname={behind.device},script=no,downscript=no"
            return ["-netdev", tap, "-device", card]
        who = "reconnect=1" if self.connects else "server=on,wait=off"
        return [
            *("-chardev", f"socket,id=c{number},path={behind},{who}"),
            *("-netdev", f"vhost-user,id=n{number},chardev=c{number},queues={self.queues}"),
            *("-device", card),
        ]

    def begin(self, command: str) -> None:
        """Sends the guest a command; `end` waits for it."""
        assert self.process.popen.stdin is not None
        self.process.popen.stdin.write(command + "\n")
        self.process.popen.stdin.flush()

    def end(self, timeout_s: float = 30.0) -> str:
        """What the command has said. Raises `Failed` where it fails or does not end."""
        text = self._until(r"levada: done (\d+)\n", time.monotonic() + timeout_s)
        said, _, status = text.rpartition("levada: done ")
        if status.strip() != "0":
            raise Failed(f"{self.name}: a command ended with {status.strip()}:\n{said[-2000:]}")
        return said

    def run(self, command: str, timeout_s: float = 30.0) -> str:
        """Runs a command in the guest; what it has said."""
        self.begin(command)
        return self.end(timeout_s)

    def _until(self, pattern: str, deadline: float) -> str:
        """What the guest says up to a pattern, with that."""
        assert self.process.popen.stdout is not None
        descriptor = self.process.popen.stdout.fileno()
        while (found := re.search(pattern, self._heard)) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise Failed(f"{self.name}: nothing like {pattern!r}:\n{self._heard[-2000:]}")
            part = os.read(descriptor, 65536)
            if not part:
                raise Failed(f"{self.name}: QEMU has ended:\n{self._heard}{self.process.output()}")
            self._heard += part.decode(errors="replace").replace("\r", "")
        text, self._heard = self._heard[: found.end()], self._heard[found.end() :]
        return text


def iperf_report(text: str) -> dict[str, Any]:
    """The report of `iperf3 --json` among what a guest has said."""
    start, end = text.find("{"), text.rfind("}")
    try:
        report: dict[str, Any] = json.loads(text[start : end + 1])
    except json.JSONDecodeError as error:
        raise Failed(f"iperf3 gave no report:\n{text[-1000:]}") from error
    if "error" in report:
        raise Failed(f"iperf3: {report['error']}")
    return report
