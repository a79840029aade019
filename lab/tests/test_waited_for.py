"""A machine's memory and words are what a switch takes; who waits for its calls."""

from __future__ import annotations

import os
import socket
import struct
import threading

from lab import waited_for
from lab.waited_for import Machine


def test_all_buffers_are_offered_again_when_they_were_used() -> None:
    machine = Machine()
    memory = machine._memory
    assert struct.unpack_from("<H", memory, waited_for.AVAILABLE + 2) == (waited_for.ENTRIES,)
    for used in (1, 300, 65_535):
        struct.pack_into("<H", memory, waited_for.USED + 2, used)
        machine.give_back()
        available = struct.unpack_from("<H", memory, waited_for.AVAILABLE + 2)[0]
        assert (available - used) & 0xFFFF == waited_for.ENTRIES
    heads = struct.unpack_from(f"<{waited_for.ENTRIES}H", memory, waited_for.AVAILABLE + 4)
    assert sorted(heads) == list(range(waited_for.ENTRIES))
    last = struct.unpack_from("<QIHH", memory, 16 * (waited_for.ENTRIES - 1))
    end = last[0] - waited_for.GUEST + last[1]
    assert end == waited_for.MEMORY_BYTES
    assert last[2:] == (2, 0)


def test_what_it_says_is_answered_where_an_answer_is_due() -> None:
    ours, theirs = socket.socketpair()
    asked = []

    def back_end() -> None:
        while True:
            head, descriptors, _, _ = socket.recv_fds(theirs, 12, 2)
            if not head:
                return
            number, flags, size = struct.unpack("=III", head)
            payload = theirs.recv(size, socket.MSG_WAITALL) if size else b""
            asked.append((number, flags, len(payload), len(descriptors)))
            for descriptor in descriptors:
                os.close(descriptor)
            if number in (1, 15, 17):
                theirs.send(struct.pack("=IIIQ", number, 5, 8, 0))

    thread = threading.Thread(target=back_end)
    thread.start()
    Machine().speak(ours)
    ours.close()
    thread.join(5)
    theirs.close()
    assert [n for n, *_ in asked] == [1, 15, 16, 3, 2, 5, *[8, 10, 9, 12, 13, 18] * 2, 17]
    assert {n: count for n, _, _, count in asked if count} == {5: 1, 12: 1, 13: 1}
    assert all(flags == 1 for _, flags, _, _ in asked)
    assert {n: size for n, _, size, _ in asked if size}[9] == 40


def test_who_waits_is_told_of_each_call() -> None:
    machine = Machine()
    waiters = waited_for.wait_for(machine.calls[0], 3)
    os.eventfd_write(machine.calls[0], 2)
    assert all(waiter.poll(0) for waiter in waiters)
    assert (machine.look(), machine.look()) == (2, 2)
    for waiter in waiters:
        waiter.close()


def test_the_last_line_says_how_often_it_was_called() -> None:
    assert waited_for.last_told("called: 3\nlab: sending\ncalled: 12\ncalled: 1") == 1
    assert waited_for.last_told("lab: sending\n") == 0
