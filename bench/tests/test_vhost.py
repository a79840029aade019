"""What is read of testpmd, and what Levada is told. Nothing is started."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from bench.back_ends import configuration
from bench.vhost import BURSTS, RING, received_rates
from lab.net import Failed

_SHOWN = """
  ######################## NIC statistics for port 0  ########################
  RX-packets: 19232640   RX-missed: 0          RX-bytes:  1077027840
  Throughput (since last show)
  Rx-pps:      1914848          Rx-bps:    857851960
  Tx-pps:      1915324          Tx-bps:    858065288
  ######################## NIC statistics for port 1  ########################
  Rx-pps:            7          Rx-bps:    857937000
  Tx-pps:      1915387          Tx-bps:    858093448
"""


def test_the_rates_of_both_ports_are_read() -> None:
    assert received_rates(_SHOWN) == [1914848, 7]


def test_half_an_answer_is_no_rate() -> None:
    with pytest.raises(Failed, match="told no rates"):
        received_rates(_SHOWN[: len(_SHOWN) // 2])


def test_what_goes_round_fits_into_a_ring() -> None:
    assert 2 * BURSTS * 32 <= RING


def test_each_frame_is_guarded_and_scheduled() -> None:
    told = tomllib.loads(configuration("bench", Path("/run/x"), spin=True))
    assert told["daemon"] == {"name": "bench", "spin": True}
    (tenant,) = told["switch"][0]["tenant"]
    ends = tenant["endpoint"]
    assert [end["port"] for end in ends] == [
        "vhost-user:///run/x/0.sock",
        "vhost-user:///run/x/1.sock",
    ]
    assert all({"mac", "ip", "limit"} <= end.keys() for end in ends)
