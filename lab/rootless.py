"""Runs a program as root of namespaces of its own, where the caller is not root.

    python -m lab.rootless PROGRAM [ARGUMENT...]

Root runs the program as it is. Anyone else gets a user namespace in which they are root, with
mounts and a network of its own, and an empty /run, in which `ip netns` keeps its names
(user_namespaces(7), mount_namespaces(7), ip-netns(8)). All of it goes away with the program.

Systems differ in whether they allow that. Where this one does not, or keeps /dev/net/tun to
root, the setting that blocks is named, and sudo offered.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x0002_0000, 0x1000_0000, 0x4000_0000
_MS_REC, _MS_PRIVATE = 0x4000, 0x4_0000  # mount(2)
_TUN = Path("/dev/net/tun")
_SYSCTLS = Path("/proc/sys")

#: What sudo would drop of the environment and the program needs.
_KEPT = ("PATH", "PYTHONPATH", "LEVADA")

_libc = ctypes.CDLL(None, use_errno=True)


class Blocked(RuntimeError):
    """The system does not allow it; the text says which setting and how to change it."""


def enter() -> None:
    """Makes this process root of new user, mount and network namespaces. It must have one
    thread. Raises `Blocked`."""
    _check_tun()
    uid, gid = os.getuid(), os.getgid()
    try:
        _call(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWNET))
        # A group may be mapped without privilege only once setgroups(2) is given up.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        _call(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
        _call(_libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, None))
    except OSError as error:
        raise Blocked(diagnose(error, _SYSCTLS)) from error


def rootless() -> bool:
    """Whether this process is root only of a user namespace that lacks the machine's root."""
    inside, outside, _ = Path("/proc/self/uid_map").read_text().split()[:3]
    return (inside, outside) != ("0", "0")


def diagnose(error: OSError, sysctls: Path) -> str:
    """Which setting most likely made the system refuse, and the remedy."""
    why = f"the system allows no user namespace here ({error.strerror})"
    for key, blocking, allowing in (
        ("user.max_user_namespaces", "0", "10000"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ):
        try:
            value = (sysctls / key.replace(".", "/")).read_text().strip()
        except OSError:  # this kernel has no such setting
            continue
        if value == blocking:
            return f"{why}: {key} is {value}; allow it with: sudo sysctl -w {key}={allowing}"
    if error.errno in (errno.ENOSPC, errno.EUSERS):
        return f"{why}: user.max_user_namespaces are in use already, or 32 are nested"
    return f"{why}: no setting of the kernel says why; a container's or chroot's seccomp may"


def with_sudo(command: Sequence[str]) -> list[str] | None:
    """Asks at the terminal whether to run `command` by sudo; what to run then. Elsewhere only
    says how."""
    if shutil.which("sudo") is None:
        print("Or run it as root.", file=sys.stderr)
        return None
    kept = [f"{key}={os.environ[key]}" for key in _KEPT if key in os.environ]
    elevated = ["sudo", "env", *kept, *command]
    print(f"Or run it as root: {shlex.join(elevated)}", file=sys.stderr)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    print("Do that now? [y/N] ", end="", file=sys.stderr, flush=True)
    return elevated if sys.stdin.readline().strip().lower() in ("y", "yes") else None


def _check_tun() -> None:
    try:
        os.close(os.open(_TUN, os.O_RDWR))
    except FileNotFoundError as error:
        raise Blocked(f"{_TUN} is missing: sudo modprobe tun") from error
    except PermissionError as error:
        mode = oct(_TUN.stat().st_mode & 0o777)[2:]
        raise Blocked(
            f"{_TUN} is closed to you (mode {mode}; Debian and Ubuntu have 666):"
            f" sudo chmod 666 {_TUN}"
        ) from error


def _call(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main() -> int:
    """Enters, and becomes the program."""
    command = sys.argv[1:]
    if os.geteuid() != 0:
        try:
            enter()
        except Blocked as blocked:
            print(f"Without root: {blocked}", file=sys.stderr)
            command = with_sudo(command) or []
    if command:
        os.execvp(command[0], command)
    return 2


if __name__ == "__main__":
    sys.exit(main())
