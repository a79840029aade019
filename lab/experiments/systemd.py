"""The unit under systemd: a virtual machine with Debian, its systemd as the first process, and
`packaging/levada@.service` as docs/howto/operating.md installs it.

TCP connections between two endpoints, and to a service of six backends, are open all the time. The
daemon is reloaded (by a good file and a bad one), restarted, killed, and stopped by SIGSTOP, so
that the watchdog ends it. No connection may end, and each must be answered again; devices keep
their index. An endpoint of a container that has ended must not appear in a stranger that has its
process's number. Then the machine is started anew, and the unit is stopped.

The machine is emulated: times say nothing, and none is judged. There is one size of it.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lab import guest, machine
from lab.guest import Machine
from lab.net import Failed, Lab
from lab.net import run as run_command
from lab.programs import Missing, program
from lab.report import Claim, Report, at_least, at_most
from lab.stats import table

SUMMARY = "the unit under systemd in a QEMU guest: reload, restart, kill -9, watchdog, boot, stop"

_TREE = Path(__file__).resolve().parents[2]
#: Debian with systemd, as `tools/setup systemd` gets it.
DEBIAN = guest.FETCHED / "debian.tar"
_UNIT = "levada@demo"
_SERVERS = [f"s{n}" for n in range(1, 7)]
_SPACES = ["a", "b", "out", *_SERVERS]
_DIRECT = "10.1.0.2:7000"
_SERVICE = "10.1.0.100:7000"
_OPEN = {_DIRECT: 4, _SERVICE: 24}
_STATE = "/run/talk.state"
_PATIENCE_S = 90.0
#: What systemd-analyze says of how open the unit is, at most (docs/reference/privileges.md).
EXPOSURE = 3.7

_FILES = {
    "etc/systemd/system/lab.service": """[Unit]
Description=The line that the lab speaks to
[Service]
ExecStart=/usr/local/sbin/lab-line
StandardInput=null
""",
    "usr/local/sbin/lab-line": """#!/bin/sh
exec </dev/ttyS0 >/dev/ttyS0 2>&1
stty -echo -onlcr
echo "levada: ready"
while read -r line; do
    sh -c "$line" </dev/null
    echo "levada: done $?"
done
""",
    # What a host has before its switch: namespaces and interfaces.
    "etc/systemd/system/spaces.service": f"""[Unit]
Description=Namespaces and interfaces
DefaultDependencies=no
After=local-fs.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ec 'for s in {" ".join(_SPACES)}; do ip netns add $s; done; \\
  ip link add up0 type veth peer name eth0 netns out; ip link set up0 up; \\
  ip -n out address add 10.1.0.99/24 dev eth0; ip -n out link set eth0 up'
""",
    f"etc/systemd/system/{_UNIT}.service.d/spaces.conf": """[Unit]
Wants=spaces.service
After=spaces.service
""",
}


def disk(lab: Lab) -> Path:
    """Debian with the unit installed, as a disk. Raises `Missing` with what to do."""
    if not DEBIAN.is_file() or shutil.which("mkfs.ext4") is None:
        raise Missing("a guest with systemd needs Debian's packages: tools/setup systemd")
    root, image = lab.dir / "root", lab.dir / "disk"
    root.mkdir()
    run_command("tar", "-xf", str(DEBIAN), "-C", str(root), "--exclude=./dev/*")
    for name, text in _FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    system = root / "etc/systemd/system"
    (root / "usr/local/sbin/lab-line").chmod(0o755)
    (system / "multi-user.target.wants").mkdir(exist_ok=True)
    (system / "multi-user.target.wants/lab.service").symlink_to("../lab.service")
    (system / "serial-getty@ttyS0.service").symlink_to("/dev/null")
    (root / "etc/levada").mkdir()
    shutil.copy(_TREE / "lab/unit/demo.toml", root / "etc/levada/demo.toml")
    shutil.copy(_TREE / "lab/unit/talk.py", root / "usr/local/lib/talk.py")
    shutil.copy(_TREE / "packaging/levada@.service", system / "levada@.service")
    run_command("strip", "-o", str(root / "usr/local/bin/levada"), str(program()))
    run_command("mkfs.ext4", "-q", "-F", "-d", str(root), str(image), "600M")
    shutil.rmtree(root)
    return image


@dataclass
class Unit:
    """The guest, and what was seen of its unit."""

    vm: Machine
    ended: int = 0
    rows: list[list[str]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    def show(self, name: str) -> str:
        """A property of the unit."""
        return self.vm.run(f"systemctl show --value -p {name} {_UNIT}").strip()

    def pid(self) -> int:
        """The number of its process, once it is ready."""
        self.until("it is ready", lambda: self.show("ActiveState") == "active")
        return int(self.show("MainPID"))

    def follows(self, pid: int) -> None:
        """Another process is there than this one."""
        self.until("another process", lambda: self.pid() != pid)

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Waits for something. Raises `Failed` where it does not come."""
        deadline = time.monotonic() + _PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline:
                log = self.vm.run(f"journalctl --no-pager -n 40 -u {_UNIT}")
                raise Failed(f"{what}: not within {_PATIENCE_S:.0f} s\n{log}")
            time.sleep(0.3)

    def is_so(self, what: str, is_so: bool) -> None:
        """One more claim that something is so, as 1 of 1."""
        self.claims.append(at_least(what, float(is_so), "", 1))

    def devices(self) -> str:
        """Names and indices of the devices of endpoints, by namespace."""
        names = " ".join(["a", "b", *_SERVERS])
        text = self.vm.run(f"for s in {names}; do ip -c=never -n $s -o link; done")
        found = re.findall(r"^(\d+): (\w+)[@:]", text, re.MULTILINE)
        return " ".join(f"{name}={index}" for index, name in found if name != "lo")

    def answers(self) -> dict[str, list[int]]:
        """Of each address: connections, those that have ended, answers of the one with fewest."""
        lines = self.vm.run(f"cat {_STATE}").split("\n")
        fields = [line.split() for line in lines if line]
        return {one[0]: [int(n) for n in one[1:]] for one in fields}

    def goes_on(self, what: str, devices: str | None = None) -> None:
        """Each connection is answered again, or has ended; the devices are those from before."""
        before = self.answers()

        def is_answered() -> bool:
            now = self.answers()
            all_open = [a for a in now if now[a][1] == 0]
            return all(now[a][2] > before[a][2] for a in all_open)

        self.until(f"answers after {what}", is_answered)
        now = self.answers()
        was_ended, self.ended = self.ended, sum(one[1] for one in now.values())
        ended = self.ended - was_ended
        self.rows.append([what, str(sum(_OPEN.values()) - was_ended), str(ended)])
        self.claims.append(at_most(f"{what}: connections ended", float(ended), "", 0))
        if devices is not None:
            is_same = self.devices() == devices and devices.count("=") == len(_SERVERS) + 2
            self.is_so(f"{what}: devices are the same", is_same)

    def is_true(self, command: str) -> bool:
        """Whether a command of the guest succeeds."""
        return "is-true" in self.vm.run(f"if {command}; then echo is-true; fi")

    def open(self) -> None:
        """Servers answer, and connections to them are open."""
        servers = " ".join(["b", *_SERVERS])
        start = "systemd-run -q --collect --unit"
        wanted = " ".join(f"{address}={count}" for address, count in _OPEN.items())
        self.vm.run(f"{start}=serve python3 /usr/local/lib/talk.py serve 7000 {servers}")
        time.sleep(2.0)
        self.vm.run(f"{start}=open python3 /usr/local/lib/talk.py open {_STATE} a {wanted}")
        self.ended = 0
        self.until("connections are open", lambda: self.is_true(f"test -e {_STATE}"))

    def reaches_outside(self, what: str) -> None:
        """An endpoint has the uplink's other end."""
        ping = "ip netns exec a ping -c 1 -W 5 10.1.0.99 >/dev/null"
        self.until(f"the uplink after {what}", lambda: self.is_true(ping))


def run(lab: Lab, quick: bool, out: Path) -> Report:
    """Boots the guest, walks through the unit's life and judges."""
    del out
    report = Report("systemd", quick)
    image = guest.image(lab, more=("virtio_blk", "tun", "veth"), from_disk=True)
    options = "loglevel=1 systemd.show_status=false"
    vm = Machine(lab, "systemd", image, None, "", memory_mb=512, disk=disk(lab), options=options)
    vm.start()
    vm.await_boot()
    unit = Unit(vm)
    version = vm.run("systemctl --version").split("\n")[0]
    report.parameters |= {
        "guest_kernel": image.version,
        "systemd": version,
        "accelerator": guest.ACCELERATOR,
    }
    report.machine = machine.describe(["qemu-system-x86_64", str(program())])
    _life(unit)
    report.claims = unit.claims
    report.cells = [{"what": row[0], "open": row[1], "ended": row[2]} for row in unit.rows]
    report.tables = [version, table(["after", "connections", "ended"], unit.rows)]
    return report


def _life(unit: Unit) -> None:
    vm = unit.vm
    vm.run("groupadd watchers; useradd -G watchers member; useradd stranger")
    vm.run(f"systemd-analyze verify --man=no {_UNIT}.service")
    exposure = vm.run(f"systemd-analyze security --no-pager {_UNIT}.service | tail -n 1")
    found = re.search(r": ([\d.]+) ", exposure)
    value = float(found[1]) if found else None
    unit.claims.append(at_most("systemd-analyze security", value, "", EXPOSURE))

    vm.run(f"systemctl enable --now {_UNIT}", _PATIENCE_S)
    unit.open()
    unit.reaches_outside("a start")
    unit.goes_on("a start")
    _confinement(unit)

    devices = unit.devices()
    vm.run("cp /etc/levada/demo.toml /tmp/good")
    vm.run("sed -i 's/^rate = .*/rate = \"900 Mbit\\/s\"/' /etc/levada/demo.toml")
    vm.run(f"systemctl reload {_UNIT}")
    unit.is_so("a reload: its change is made", "900 Mbit/s" in vm.run("levada show"))
    unit.goes_on("a reload", devices)
    vm.run("echo nonsense >> /etc/levada/demo.toml")
    pid = unit.pid()
    vm.run(f"systemctl reload {_UNIT}")
    status = unit.show("StatusText")
    unit.is_so("a reload of a bad file: the status says so", "not reloaded" in status)
    unit.is_so("a reload of a bad file: it runs on", unit.pid() == pid)
    unit.goes_on("a reload of a bad file", devices)
    vm.run("cp /tmp/good /etc/levada/demo.toml")

    for what, command in [
        ("restart", f"systemctl restart {_UNIT}"),
        ("a second restart", f"systemctl restart {_UNIT}"),
        ("kill -9", f"systemctl kill -s KILL {_UNIT}"),
        ("a standstill (watchdog)", f"systemctl kill -s STOP --kill-whom=main {_UNIT}"),
    ]:
        pid = unit.pid()
        vm.run(command, _PATIENCE_S)
        unit.follows(pid)
        unit.goes_on(what, devices)
        unit.reaches_outside(what)
    _stranger(unit)

    vm.run("systemctl stop open serve")
    vm.reboot("systemctl reboot; sleep 60")
    unit.pid()
    unit.reaches_outside("the machine's start")
    unit.is_so("the machine's start: it runs by itself", unit.show("ActiveState") == "active")
    unit.open()
    unit.goes_on("the machine's start")

    vm.run("systemctl stop open serve")
    vm.run(f"systemctl stop {_UNIT}", _PATIENCE_S)
    # What the next start goes on from (docs/howto/operating.md).
    kept = "grep -vx -e service-key -e processes"
    files = vm.run(f"ls -A /run/levada/demo | {kept} || true; ls -d /run/vde/d 2>/dev/null || true")
    left = files.split()
    unit.claims.append(at_most("a stop: other files left", float(len(left)), "", 0))
    left = unit.devices().split()
    is_persistent = len(left) == 1 and left[0].startswith("tb=")
    unit.is_so("a stop: the persistent device is left, and no other", is_persistent)


def _confinement(unit: Unit) -> None:
    """What the unit may do beside moving frames, and who may look."""
    vm = unit.vm
    mode = vm.run("stat -c %A /run/vde/d/ctl 2>/dev/null || echo none").strip()
    unit.is_so("vde: its socket is there", mode.startswith("s"))
    looks = "su -s /bin/sh {} -c '/usr/local/bin/levada show' >/dev/null 2>&1"
    unit.is_so("a member of socket_group looks", unit.is_true(looks.format("member")))
    unit.is_so("others do not", not unit.is_true(looks.format("stranger")))


def _stranger(unit: Unit) -> None:
    """An endpoint is in a container that ends; a stranger gets its process's number, and the daemon
    is started anew."""
    vm = unit.vm
    vm.run("systemd-run -q --collect --unit=container unshare -n sleep 1000")
    unit.until("a container", lambda: "sleep" in vm.run("pgrep -a sleep || true"))
    pid = int(vm.run("systemctl show --value -p MainPID container").strip())
    endpoint = f"""[[switch.tenant.endpoint]]
name = "c"
port = "tap://tc"
netns = "/proc/{pid}/ns/net"
"""
    text = (_TREE / "lab/unit/demo.toml").read_text()
    first = "[[switch.tenant.service]]"
    whole = text.replace(first, endpoint + first, 1).replace("\n", "\\n").replace("'", "'\\''")
    vm.run(f"printf '%b' '{whole}' > /etc/levada/demo.toml")
    # A daemon that began without a namespace below /proc may not look there: it is passed on.
    vm.run("levada apply /etc/levada/demo.toml")
    has_device = "nsenter -t {} -n ip link show tc >/dev/null 2>&1"
    unit.until("a container's device", lambda: unit.is_true(has_device.format(pid)))
    vm.run("systemctl stop container")
    again = (
        f"for n in 1 2 3 4 5 6 7 8 9; do echo {pid - 1} > /proc/sys/kernel/ns_last_pid; "
        "unshare -n sleep 1000 & "
        f"sleep 0.3; test -d /proc/{pid} && break; kill $!; done; echo $!"
    )
    got = vm.run(f"setsid sh -c '{again}'").split()
    if got[-1:] != [str(pid)]:
        raise Failed(f"no process got the number {pid}: {got}")
    for what, command in [("restart", "restart"), ("kill -9", "kill -s KILL")]:
        before = unit.pid()
        vm.run(f"systemctl {command} {_UNIT}", _PATIENCE_S)
        unit.follows(before)
        # It is given the time to do the wrong thing.
        vm.run("sleep 3")
        is_there = unit.is_true(has_device.format(pid))
        unit.is_so(f"{what}: a stranger has no device of a container's", not is_there)
    vm.run(f"kill {pid}; cp /tmp/good /etc/levada/demo.toml; systemctl reload {_UNIT}")
