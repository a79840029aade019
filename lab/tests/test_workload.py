"""Each workload over a plain cable between two hosts, and the reading of what tools say."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lab.net import Failed, Lab, missing_tools, veth
from lab.workload import (
    Blast,
    Flow,
    FlowResult,
    Guest,
    Ping,
    Swarm,
    TcpFlow,
    UdpFlow,
    parse_ping,
    percentiles,
)

needs_root = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(bool(missing_tools(["iperf3", "ping"])), reason="needs iperf3 and ping"),
]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Guest, Guest]]:
    with Lab() as lab:
        a, b = lab.namespace("a"), lab.namespace("b")
        veth(a, "eth0", b, "eth0")
        a.ip("addr add 10.9.0.1/24 dev eth0")
        b.ip("addr add 10.9.0.2/24 dev eth0")
        yield Guest("a", a, "10.9.0.1"), Guest("b", b, "10.9.0.2")


def play(flow: Flow, pair: tuple[Guest, Guest], seconds: int = 2) -> FlowResult:
    flow.begin(*pair, 5201, seconds)
    return flow.end()


class TestLive:
    pytestmark = needs_root

    def test_tcp_is_cubic_and_moves_bytes(self, pair: tuple[Guest, Guest]) -> None:
        result = play(TcpFlow("f", "a", "b", streams=2), pair)
        assert result.detail["congestion_control"] == "cubic"
        assert result.goodput_bps(0.5, 1.5) > 0

    def test_udp_keeps_its_rate(self, pair: tuple[Guest, Guest]) -> None:
        # A busy machine may send less; in a row of its own it makes some of that good.
        result = play(UdpFlow("f", "a", "b", rate_bps=20e6), pair)
        assert 0 < result.goodput_bps(0, 2) < 1.1 * 20e6

    def test_a_blast_of_small_frames_keeps_its_rate(self, pair: tuple[Guest, Guest]) -> None:
        result = play(Blast("f", "a", "b", frame_bytes=64, per_s=20_000), pair)
        # What a busy machine makes it miss is forgone, not sent later.
        assert 0 < result.detail["sent_per_s"] < 20_500
        assert result.detail["received_frames"] == pytest.approx(result.detail["sent_frames"])
        # 18 bytes of payload a frame; some of a window's frames may have been sent before it.
        received = result.detail["received_frames"]
        assert sum(nbytes for _, _, nbytes in result.rows) == pytest.approx(18 * received)

    def test_a_blast_of_offloaded_frames_counts_segments(self, pair: tuple[Guest, Guest]) -> None:
        flow = Blast("f", "a", "b", frame_bytes=1518, per_s=20_000, segments=10)
        result = play(flow, pair)
        assert 0 < result.detail["sent_frames"] < 41_000
        assert result.detail["sent_frames"] % 10 == 0
        assert result.detail["received_frames"] == pytest.approx(result.detail["sent_frames"])

    def test_a_swarm_finishes_its_connections(self, pair: tuple[Guest, Guest]) -> None:
        result = play(Swarm("f", "a", "b", concurrency=4, nbytes=10_000), pair)
        assert result.detail["connections"] >= 4
        assert result.detail["failed"] == 0
        assert 0 < result.detail["p50_s"] <= result.detail["p99_s"]

    def test_a_swarm_keeps_to_its_rate(self, pair: tuple[Guest, Guest]) -> None:
        result = play(Swarm("f", "a", "b", concurrency=4, nbytes=1000, per_s=40), pair)
        # Each of the four begins at once, and then every tenth of a second for 2 s.
        assert 4 <= result.detail["connections"] <= 84
        assert result.detail["failed"] == 0

    def test_ping_gives_raw_round_trips(self, pair: tuple[Guest, Guest]) -> None:
        result = play(Ping("f", "a", "b"), pair, seconds=1)
        assert len(result.detail["rtt_ms"]) > 1
        assert result.detail["lost"] <= 1  # the one in flight when the time was up

    def test_nobody_there_is_told(self, pair: tuple[Guest, Guest]) -> None:
        a, _ = pair
        flow = TcpFlow("f", "a", "a")
        with pytest.raises(Failed, match="flow f"):
            play(flow, (Guest("a", a.namespace, "10.9.0.99"), Guest("a", a.namespace, "10.9.0.99")))


def test_goodput_takes_the_overlap_with_the_window() -> None:
    result = FlowResult("f", [(0.0, 1.0, 1000.0), (1.0, 2.0, 2000.0), (2.0, 3.0, 4000.0)])
    assert result.goodput_bps(1.0, 3.0) == 8 * 6000 / 2
    assert result.goodput_bps(0.5, 1.5) == 8 * (500 + 1000)


def test_parse_ping() -> None:
    detail = parse_ping(
        "64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.050 ms\n"
        "64 bytes from 10.0.0.2: icmp_seq=2 ttl=64 time=1.25 ms\n\n"
        "--- 10.0.0.2 ping statistics ---\n"
        "3 packets transmitted, 2 received, 33.3333% packet loss, time 4ms\n"
    )
    assert detail["rtt_ms"] == [0.05, 1.25]
    assert detail["lost"] == 1


def test_percentiles_of_a_line() -> None:
    assert percentiles(range(101), (50, 99)) == [50, 99]
