"""What the bonding experiment makes of faults of a link."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time

from lab.experiments.bonding_faults import PLAYED, Fault, claims, faults_table
from lab.pulse import longest_wait_ns


def faults(lost: int, twice: int, wait_ms: float, broken: int = 0) -> list[Fault]:
    return [
        Fault(mode, kind, turn, 1000, lost, twice, wait_ms, broken)
        for mode, kinds in PLAYED
        for kind in kinds
        for turn in range(3)
    ]


def test_with_numbers_nothing_is_lost_and_nowhere_anything_twice() -> None:
    good = claims(faults(0, 0, 4.0), 3)
    assert len(good) == 36 and all(claim.holds for claim in good)
    assert [claim.holds for claim in claims(faults(1, 0, 4.0), 3)].count(False) == 6
    assert [claim.holds for claim in claims(faults(0, 1, 4.0), 3)].count(False) == 12
    assert [claim.holds for claim in claims(faults(0, 0, 4.0, 1), 3)].count(False) == 12
    # Over 20 ms all bounds are broken; that of a silent link is the longest.
    assert [claim.holds for claim in claims(faults(0, 0, 19.0), 3)].count(False) == 5
    assert [claim.holds for claim in claims(faults(0, 0, 21.0), 3)].count(False) == 6
    assert "balance-xor" in faults_table(faults(0, 0, 4.0))


def test_a_cable_flaps_and_is_pulled_in_each_mode() -> None:
    assert all({"pulled", "flapping"} <= set(kinds) for _, kinds in PLAYED)


def test_without_a_fault_that_counts_nothing_holds() -> None:
    assert len(claims([], 3)) == 36
    assert not any(claim.holds for claim in claims([], 3))


def test_a_median_needs_two_thirds_of_the_rounds() -> None:
    waits = [claim for claim in claims(faults(0, 0, 4.0), 5) if "median" in claim.id]
    assert len(waits) == 6
    assert [claim.value for claim in waits] == [None] * 6


def test_a_wait_is_until_it_or_a_later_one_came() -> None:
    sent = [0, 10, 20, 30, 40]
    assert longest_wait_ns(sent, [(n, 10 * n + 2) for n in range(5)], 0, 40) == 2
    # Two are lost, and one comes late: others pass it.
    assert longest_wait_ns(sent, [(0, 2), (3, 33), (4, 41)], 0, 40) == 23
    assert longest_wait_ns(sent, [(0, 2), (1, 39), (2, 22), (3, 33), (4, 41)], 0, 40) == 12
    # What is sent before or after what is looked at is no matter.
    assert longest_wait_ns(sent, [(0, 2), (3, 33), (4, 41)], 30, 40) == 3
    # Nothing comes any more.
    assert longest_wait_ns(sent, [(0, 2)], 0, 40) == 30


def test_a_receiver_that_is_told_to_end_while_it_writes_writes_the_rest() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "lab.pulse", "serve", "--port", str(port), "--seconds", "2"]
    receiver = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
    assert receiver.stdout is not None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        # More than a pipe holds, in half of its time.
        end = time.monotonic() + 1.5
        for number in range(1_000_000):
            out.sendto(number.to_bytes(8, "big").ljust(100, b"\0"), ("127.0.0.1", port))
            time.sleep(0.0001)
            if time.monotonic() > end:
                break
    begun = receiver.stdout.read(1)
    receiver.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    assert len(json.loads(begun + receiver.communicate(timeout=60)[0])["came"]) > 1000
    assert receiver.returncode == 0
