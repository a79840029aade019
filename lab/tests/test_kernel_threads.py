"""The kernel's threads come back to where they were, also after a lab that was killed, and with
labs side by side."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from lab import kernel_threads, net
from lab.kernel_threads import SAVED, mask, move, processors, put_back

#: Of four processors; the last thread is bound to one.
BEFORE = {"5@100": {0, 1, 2, 3}, "6@100": {0, 1}, "7@100": {0}}


class Kernel:
    """Stands for the kernel, its threads and its work queues' mask."""

    def __init__(self, workqueues: Path) -> None:
        self.threads = {name: set(allowed) for name, allowed in BEFORE.items()}
        self.workqueues = workqueues
        workqueues.write_text("ffffffff,ffffffff\n")

    def _thread(self, pid: int) -> str:
        return next(name for name in self.threads if name.startswith(f"{pid}@"))

    def get(self, pid: int) -> set[int]:
        """sched_getaffinity(2)."""
        return set(self.threads[self._thread(pid)])

    def set(self, pid: int, allowed: Iterable[int]) -> None:
        """sched_setaffinity(2)."""
        name = self._thread(pid)
        if len(BEFORE.get(name, {0, 1})) == 1:
            raise OSError(22, "Invalid argument")
        self.threads[name] = set(allowed)

    def is_as_before(self) -> bool:
        mask_ = self.workqueues.read_text().strip()
        return self.threads == BEFORE and mask_ == "ffffffff,ffffffff"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """In the place of the machine's."""
    made = Kernel(tmp_path / "cpumask")
    monkeypatch.setattr(kernel_threads, "WORKQUEUES", made.workqueues)
    monkeypatch.setattr(kernel_threads, "_threads", lambda: list(made.threads))
    monkeypatch.setattr(os, "sched_getaffinity", made.get)
    monkeypatch.setattr(os, "sched_setaffinity", made.set)
    return made


def test_masks_have_a_comma_after_32_processors() -> None:
    assert mask({0, 1, 3}) == "b"
    assert mask(range(1, 40)) == "ff,fffffffe"
    assert mask({64}) == "1,00000000,00000000"
    assert mask([]) == "0"
    for text in ("ff,fffffffe", "1,00000000,00000000", "b", "0"):
        assert mask(processors(text)) == text


def test_what_is_moved_is_put_back(kernel: Kernel, tmp_path: Path) -> None:
    own = tmp_path / "own"
    move(0, own, [])
    assert kernel.threads == {"5@100": {1, 2, 3}, "6@100": {1}, "7@100": {0}}
    assert kernel.workqueues.read_text() == "ffffffff,fffffffe"
    put_back(own, [])
    assert kernel.is_as_before()
    assert not own.exists()
    put_back(own, [])


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_of_two_labs_the_last_one_puts_back_what_was_before_both(
    first_to_end: int, kernel: Kernel, tmp_path: Path
) -> None:
    labs = [tmp_path / "a", tmp_path / "b"]
    move(0, labs[0], [])
    move(3, labs[1], [labs[0]])
    first, last = labs[first_to_end], labs[1 - first_to_end]
    put_back(first, [last])
    assert 3 not in kernel.threads["5@100"], "the other one still needs it"
    put_back(last, [])
    assert kernel.is_as_before()


def test_an_id_that_was_used_anew_is_another_thread(kernel: Kernel, tmp_path: Path) -> None:
    own = tmp_path / "own"
    move(0, own, [])
    del kernel.threads["5@100"]
    kernel.threads["5@900"] = {2}
    put_back(own, [])
    assert kernel.threads["5@900"] == {2}
    assert kernel.threads["6@100"] == {0, 1}


def test_what_a_killed_lab_has_moved_is_put_back(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net, "RUN_DIR", tmp_path)
    monkeypatch.setattr(net, "NETNS_DIR", tmp_path / "none")
    monkeypatch.setattr(net, "_is_lab", lambda pid: pid == "8")
    dead, running = (tmp_path / f"levada-lab-{pid}" for pid in (7, 8))
    dead.mkdir()
    move(0, dead / SAVED, [])
    assert net.remove_leftovers() == [str(dead)]
    assert kernel.is_as_before()
    # Where another lab runs that needs it, that one puts back what was before both.
    for folder in (dead, running):
        folder.mkdir()
    move(0, dead / SAVED, [])
    move(0, running / SAVED, [dead / SAVED])
    assert net.remove_leftovers() == [str(dead)]
    assert not kernel.is_as_before()
    put_back(running / SAVED, [])
    assert kernel.is_as_before()


def test_a_file_that_was_not_written_whole_puts_nothing_back(
    kernel: Kernel, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.write_text('{"threads": {"5@1')
    put_back(own, [])
    assert kernel.is_as_before()


def test_the_machines_own_threads_are_the_children_of_one() -> None:
    kthreadd = Path("/proc/2/stat")
    if not kthreadd.is_file() or "(kthreadd)" not in kthreadd.read_text():
        pytest.skip("this process sees no thread of the kernel")
    pids = {int(name.partition("@")[0]) for name in kernel_threads._threads()}
    assert pids
    assert os.getpid() not in pids
