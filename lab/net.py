"""Hosts made of network namespaces, and the certainty that they go away again.

A `Lab` owns everything an experiment makes on this machine: namespaces (each one a host with
its own devices, addresses and TCP settings), processes, one temporary directory, and settings
of the machine it has to change. All devices live inside namespaces, so deleting these deletes
every veth, tap, bridge and queueing discipline; nothing is made in the machine's own network.

Teardown runs in reverse order of making: on leaving the `with` block, on an exception, on
Ctrl-C, SIGTERM and SIGHUP (turned into exceptions), and from atexit as a last resort. Processes
also carry a parent-death signal, so not even SIGKILL of the lab leaves one running. What
SIGKILL does leave, empty namespaces, the directory and changed settings, `remove_leftovers`
finds by name: `lv-<pid>-<host>` and `levada-lab-<pid>`, where <pid> is no longer a lab.

Needs root and iproute2. Kernel documents: ip-netns(8), network_namespaces(7).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, NamedTuple

from lab import kernel_threads

#: What every namespace of a lab begins with; the process id of its lab follows.
PREFIX = "lv"
#: Where a lab keeps sockets, logs and configuration while it runs; the process id follows.
RUN_DIR = Path(tempfile.gettempdir())
#: What `ip netns` keeps its names under (ip-netns(8)).
NETNS_DIR = Path("/run/netns")
#: How long a process may take to end after SIGTERM before it is killed.
TERM_GRACE_S = 3.0

_PR_SET_PDEATHSIG = 1  # prctl(2)
_CLONE_NEWNET = 0x4000_0000  # setns(2)
_libc = ctypes.CDLL(None, use_errno=True)


class Failed(RuntimeError):
    """A command of the set-up failed, or something it should make did not come."""


class Interrupted(SystemExit):
    """SIGTERM or SIGHUP came: unwinds like Ctrl-C does, so that everything is torn down."""


class Received(NamedTuple):
    """What a device has received; an offloaded frame counts once, with one set of headers."""

    nbytes: int
    frames: int

    def since(self, before: Received) -> Received:
        """What came after `before`."""
        return Received(self.nbytes - before.nbytes, self.frames - before.frames)


class Process:
    """A running program, its log, and who it is in tables of CPU use."""

    def __init__(self, label: str, popen: subprocess.Popen[str], log: Path) -> None:
        self.label = label
        self.popen = popen
        self.log = log

    @property
    def pid(self) -> int:
        """The process id; the program itself, as `ip netns exec` replaces itself by it."""
        return self.popen.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.popen.poll() is None

    def stop(self, first: signal.Signals = signal.SIGTERM, grace_s: float = TERM_GRACE_S) -> None:
        """Asks it to end and, after `grace_s`, makes it."""
        if self.alive():
            self.popen.send_signal(first)
            try:
                self.popen.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()

    def output(self) -> str:
        """What it has said so far on standard output (if not piped) and standard error."""
        return self.log.read_text(errors="replace")

    def wait_for(self, ready: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
        """Returns once `ready()`; a dead process or `timeout_s` is an error with its log."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.alive():
                raise Failed(f"{self.label} ended before {what}:\n{self.output()[-2000:]}")
            if time.monotonic() > deadline:
                raise Failed(f"{self.label}: no {what} in {timeout_s} s:\n{self.output()[-2000:]}")
            time.sleep(0.01)


class Namespace:
    """One host: a network namespace with loopback up and IPv6 off (its chatter is noise)."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab = lab
        self.name = name

    def run(self, *command: str, check: bool = True) -> str:
        """Runs a command inside; its standard output. Raises `Failed` with its complaint."""
        return run("ip", "netns", "exec", self.name, *command, check=check)

    def ip(self, arguments: str) -> str:
        """`ip ARGUMENTS` inside, without paying for a second process."""
        return run("ip", "-n", self.name, *arguments.split())

    def tc(self, arguments: str) -> str:
        """`tc ARGUMENTS` inside."""
        return run("tc", "-n", self.name, *arguments.split())

    def spawn(self, label: str, *command: str, stdout: int | None = None) -> Process:
        """Starts a program inside that ends with the lab; see `Lab.spawn`."""
        return self.lab.spawn(label, "ip", "netns", "exec", self.name, *command, stdout=stdout)

    def sysctl(self, key: str, value: str) -> None:
        """Sets a setting of this namespace only."""
        self.run("sysctl", "-qw", f"{key}={value}")

    def received(self, device: str) -> Received:
        """What a device inside has received so far. Read by this process itself, which visits
        the namespace for it: quick, so that many can be read at one moment."""
        with inside(self.name):
            table = Path("/proc/self/net/dev").read_text()
        for line in table.splitlines():
            name, _, fields = line.partition(":")
            if name.strip() == device:
                nbytes, frames = fields.split()[:2]
                return Received(int(nbytes), int(frames))
        raise Failed(f"{self.name} has no device {device}")

    def counters(self) -> dict[str, int]:
        """What the kernel has counted inside, with nstat's names."""
        with inside(self.name):
            tables = [Path(f"/proc/self/net/{name}").read_text() for name in ("snmp", "netstat")]
        return parse_counters("".join(tables))

    def has_device(self, device: str) -> bool:
        """Whether a device of that name is inside."""
        done = subprocess.run(
            ["ip", "-n", self.name, "link", "show", "dev", device], capture_output=True, check=False
        )
        return done.returncode == 0


def parse_counters(text: str) -> dict[str, int]:
    """Lines in pairs, each with the same first word: names, and values."""
    counters = {}
    lines = [line.split() for line in text.splitlines()]
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        group = names[0].rstrip(":")
        pairs = zip(names[1:], values[1:], strict=True)
        counters.update({group + name: int(value) for name, value in pairs})
    return counters


class Lab:
    """What an experiment made on this machine. Use as a context manager.

    `machine_settings` false leaves alone what is the machine's and not a namespace's, which root of
    a user namespace may not change (`lab.rootless`): hosts then have the machine's congestion
    control, and only programs that ask for cubic get it."""

    def __init__(self, machine_settings: bool = True) -> None:
        self._machine_settings = machine_settings
        self.tag = f"{PREFIX}-{os.getpid()}"
        self.dir = RUN_DIR / f"levada-lab-{os.getpid()}"
        self._undo = contextlib.ExitStack()
        self._handlers = contextlib.ExitStack()
        self._spawned = 0

    def __enter__(self) -> Lab:
        atexit.register(self.close)
        self._handlers.enter_context(_signals_as_exceptions())
        try:
            self.dir.mkdir()
            self._undo.callback(shutil.rmtree, self.dir, ignore_errors=True)
            if self._machine_settings:
                _allow_cubic(self._undo, self.dir / _SAVED_CC)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Undoes everything, newest first. Further Ctrl-C is ignored meanwhile; safe twice."""
        with _signals_ignored():
            self._undo.close()
        self._handlers.close()
        atexit.unregister(self.close)

    @contextlib.contextmanager
    def stage(self) -> Iterator[None]:
        """A part of the lab's life: what is made inside is undone on leaving it."""
        outer = self._undo
        self._undo = contextlib.ExitStack()
        outer.push(self._undo)
        try:
            yield
        finally:
            with _signals_ignored():
                self._undo.close()
            self._undo = outer

    def defer(self, undo: Callable[[], object]) -> None:
        """`undo` will be called at teardown."""
        self._undo.callback(undo)

    def move_kernel_threads(self, core: int) -> None:
        """Moves the kernel's threads off a processor until teardown (`lab.kernel_threads`)."""
        own = self.dir / kernel_threads.SAVED
        self.defer(lambda: kernel_threads.put_back(own, _saved_beside(own)))
        kernel_threads.move(core, own, _saved_beside(own))

    def namespace(self, host: str) -> Namespace:
        """A new host. Names are short: `host` is part of `ip netns list` only."""
        name = f"{self.tag}-{host}"
        self.defer(lambda: run("ip", "netns", "delete", name, check=False))
        run("ip", "netns", "add", name)
        space = Namespace(self, name)
        space.run("sysctl", "-qw", *_HOST_SETTINGS)
        if self._machine_settings:
            space.run("sysctl", "-qw", _CUBIC)
        space.ip("link set lo up")
        return space

    def spawn(
        self,
        label: str,
        *command: str,
        stdout: int | None = None,
        env: dict[str, str] | None = None,
    ) -> Process:
        """Starts a program that ends with the lab. Its output goes to a log in `dir`, or
        standard output where `stdout` says (subprocess.PIPE)."""
        self._spawned += 1
        log = self.dir / f"{self._spawned:04d}-{label.replace('/', '_')}.log"
        with log.open("w") as out:
            popen = _popen(command, out if stdout is None else stdout, out, env)
        process = Process(label, popen, log)
        self.defer(process.stop)
        return process


#: Settings of every host: no memory of earlier connections, so that a cell does not colour
#: the next; and cubic, as the published experiments used, stated rather than inherited.
_HOST_SETTINGS = (
    "net.ipv6.conf.all.disable_ipv6=1",
    "net.ipv6.conf.default.disable_ipv6=1",
    "net.ipv4.tcp_no_metrics_save=1",
)
_CUBIC = "net.ipv4.tcp_congestion_control=cubic"

#: Programs without privilege may choose among these (kernel: networking/ip-sysctl).
_ALLOWED_CC = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
#: The file in a lab's directory with what that list was before.
_SAVED_CC = "allowed_congestion_control"


def run(*command: str, check: bool = True, env: dict[str, str] | None = None) -> str:
    """Runs a command to its end; its standard output. Raises `Failed` with its complaint."""
    environment = None if env is None else {**os.environ, **env}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if check and done.returncode != 0:
        complaint = (done.stderr or done.stdout).strip()
        raise Failed(f"{' '.join(command)}: status {done.returncode}: {complaint}")
    return done.stdout


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """The calling thread, its program's only one, is in a network namespace meanwhile. Sockets
    that it makes there stay there."""
    with (NETNS_DIR / namespace).open() as there, Path("/proc/self/ns/net").open() as here:
        _setns(there)
        try:
            yield
        finally:
            _setns(here)


def veth(a: Namespace, a_device: str, b: Namespace, b_device: str, mtu: int = 1500) -> None:
    """A cable between two hosts; both ends up."""
    a.ip(f"link add {a_device} mtu {mtu} type veth peer name {b_device} mtu {mtu} netns {b.name}")
    a.ip(f"link set dev {a_device} up")
    b.ip(f"link set dev {b_device} up")


def tap(host: Namespace, device: str, mtu: int = 1500) -> None:
    """A tap device for a program to open; up."""
    host.ip(f"tuntap add dev {device} mode tap")
    host.ip(f"link set dev {device} mtu {mtu} up")


def bridge(host: Namespace, device: str, ports: Sequence[str] = ()) -> None:
    """A Linux bridge without spanning tree or multicast snooping, with its ports."""
    host.ip(f"link add {device} type bridge stp_state 0 mcast_snooping 0")
    for port in ports:
        host.ip(f"link set dev {port} master {device}")
    host.ip(f"link set dev {device} up")


def ifb(host: Namespace, device: str, source: str) -> None:
    """An intermediate device that everything arriving at `source` passes, so that ingress
    can have a queueing discipline (tc-mirred(8))."""
    host.ip(f"link add {device} type ifb")
    host.ip(f"link set dev {device} txqueuelen 1000 up")
    host.tc(f"qdisc add dev {source} handle ffff: ingress")
    host.tc(
        f"filter add dev {source} parent ffff: protocol all prio 1 u32 match u32 0 0"
        f" action mirred egress redirect dev {device}"
    )


def missing_tools(names: Sequence[str]) -> list[str]:
    """Those of the named programs that are not installed. The search includes /usr/sbin,
    which an ordinary user's PATH lacks."""
    return [name for name in names if find_tool(name) is None]


def find_tool(name: str) -> str | None:
    """Where a program is, if it is installed; see `missing_tools`."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def remove_leftovers() -> list[str]:
    """Removes what labs that were killed have left; the names of what was removed."""
    removed = []
    for name in sorted(space.name for space in NETNS_DIR.glob(f"{PREFIX}-*")):
        # Others may call theirs lv-web-1.
        owner = re.fullmatch(rf"{PREFIX}-(\d+)-.+", name)
        if owner and not _is_lab(owner.group(1)):
            _kill_inside(name)
            run("ip", "netns", "delete", name)
            removed.append(name)
    for folder in sorted(RUN_DIR.glob("levada-lab-*")):
        owner = re.fullmatch(r"levada-lab-(\d+)", folder.name)
        if owner and not _is_lab(owner.group(1)):
            _put_back(folder)
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(str(folder))
    return removed


def _put_back(folder: Path) -> None:
    """What a dead lab has changed of the machine. Labs that run put it back when they end."""
    allowed, threads = folder / _SAVED_CC, folder / kernel_threads.SAVED
    if allowed.is_file() and not _saved_beside(allowed):
        _ALLOWED_CC.write_text(allowed.read_text())
    kernel_threads.put_back(threads, _saved_beside(threads))


def _kill_inside(namespace: str) -> None:
    """Kills what still runs in a dead lab's namespace. Its parent-death signal missed it."""
    for pid in run("ip", "netns", "pids", namespace).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _is_lab(pid: str) -> bool:
    """Whether `pid` is a running Python, which is all a lab can be told by; a process id
    used anew by another Python only delays the removal."""
    try:
        command = Path(f"/proc/{int(pid)}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False
    return b"python" in command.split(b"\0")[0]


def _setns(namespace: IO[str]) -> None:
    """Moves the calling thread, a lab's only one, into a network namespace."""
    if _libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise Failed(f"setns: {os.strerror(number)}")


def _popen(
    command: Sequence[str], out: IO[str] | int, err: IO[str], env: dict[str, str] | None
) -> subprocess.Popen[str]:
    parent = os.getpid()

    def end_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    # Standard input stays open and silent: vde_switch takes its end for a wish to quit.
    # A process group of its own: Ctrl-C at the terminal reaches the lab alone, which then
    # ends its processes in order. (No session: dpipe refuses to lead one.)
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=out,
        stderr=err,
        text=True,
        process_group=0,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - a lab has one thread
        env=None if env is None else {**os.environ, **env},
    )


def _allow_cubic(undo: contextlib.ExitStack, saved: Path) -> None:
    """Lists cubic among what programs may choose, and puts the list back at teardown.
    The list is also saved in a file, for whoever cleans up after a killed lab.

    The list is the machine's, not a namespace's; making cubic a namespace's default
    would also list it, unasked, and leave it there. Labs side by side share it: what
    one of them has changed, the last one puts back."""
    before = _ALLOWED_CC.read_text()
    beside = _saved_beside(saved)
    if "cubic" in before.split() and not beside:
        return
    original = beside[0].read_text() if beside else before
    saved.write_text(original)
    try:
        _ALLOWED_CC.write_text(f"{original.strip()} cubic")
    except OSError as error:
        raise Failed(
            f"cannot list cubic in net.ipv4.tcp_allowed_congestion_control ({error});"
            " it must be built into the kernel and the lab run as root"
        ) from error

    def put_back() -> None:
        saved.unlink()
        if not _saved_beside(saved):
            _ALLOWED_CC.write_text(original)

    undo.callback(put_back)


def _saved_beside(own: Path) -> list[Path]:
    """What other labs that run have saved."""
    files = RUN_DIR.glob(f"levada-lab-*/{own.name}")
    return [f for f in files if f != own and _is_lab(f.parent.name.rsplit("-", 1)[1])]


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    def unwind(number: int, frame: FrameType | None) -> None:
        raise Interrupted(128 + number)

    before = {s: signal.signal(s, unwind) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {s: signal.signal(s, signal.SIG_IGN) for s in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def require_root() -> None:
    """Ends the program with the remedy where it is not run as root."""
    if os.geteuid() != 0:
        sys.exit("lab: building network namespaces needs root; run it with sudo")
