"""The shuffle job: its arithmetic on made-up jobs, what begins when, and the replay itself over
loopback and between namespaces."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.net import Lab, missing_tools, veth
from lab.shuffle import mremu
from lab.shuffle.__main__ import main, spread
from lab.shuffle.generate import Shape, generate
from lab.shuffle.job import Copy, Job, Map, Reduce, floor
from lab.shuffle.mremu import BadFile
from lab.shuffle.progress import RETRY_S, Progress
from lab.shuffle.replay import Place, Replay, Unplayable

#: Three maps on two hosts, one slot each, and a reducer on each.
JOB = Job(
    name="made",
    hosts=("a", "b"),
    map_slots=1,
    reduce_slots=1,
    parallel_copies=5,
    maps=(Map("m1", "a", 1.0), Map("m2", "a", 2.0), Map("m3", "b", 1.5)),
    reduces=(Reduce("r1", "a", 1, 0.25, 4.0), Reduce("r2", "b", 3, 0.0, 5.0)),
    copies=(
        *(Copy("m1", "r1", 100), Copy("m2", "r1", 200), Copy("m3", "r1", 1000)),
        *(Copy("m1", "r2", 400), Copy("m2", "r2", 500), Copy("m3", "r2", 600)),
    ),
)


def names(copies: list[Copy]) -> list[tuple[str, str]]:
    return [(c.mapper, c.reducer) for c in copies]


def test_maps_take_their_hosts_slots_in_order() -> None:
    assert JOB.map_ends() == {"m1": 1.0, "m2": 3.0, "m3": 1.5}


def test_the_floor_is_the_busiest_links() -> None:
    least = floor(JOB, link_bps=8000, wire_over_payload=1.25)
    assert least is not None
    # a sends 400 + 500, b sends 1000; what stays on a host takes no link.
    assert (least.host, least.direction, least.payload_bytes) == ("b", "egress", 1000)
    assert least.wire_s == pytest.approx(1.25)
    # Into b nothing flows before its reducer starts, with the last map at 3 s: 3 + 1.125 + 5.
    assert least.job_s == pytest.approx(9.125)


def test_a_job_within_one_host_has_no_floor() -> None:
    alone = generate(1, Shape(hosts=1))
    assert floor(alone, 1e9, 1) is None


def test_scaling_multiplies_sizes_and_times() -> None:
    scaled = JOB.scaled(0.001, 0.5)
    assert [c.nbytes for c in scaled.copies] == [1, 1, 1, 1, 1, 1]
    assert JOB.scaled(2, 1).copies[2].nbytes == 2000
    assert scaled.maps[1].seconds == 1.0
    assert (scaled.reduces[0].wait_s, scaled.reduces[0].seconds) == (0.125, 2.0)
    half = floor(JOB.scaled(0.5, 0.5), 8000, 1.25)
    assert half is not None
    assert half.job_s == pytest.approx(9.125 / 2)


def test_what_begins_when() -> None:
    progress = Progress(JOB)
    assert progress.advance(0.0) == []
    assert progress.due() == 1.0
    # m1 has ended, and the first reducer waits.
    assert progress.advance(1.0) == []
    assert progress.due() == 1.25
    assert names(progress.advance(1.25)) == [("m1", "r1")]
    # A task's time runs from when it could begin, also for who looks late.
    assert names(progress.advance(2.9)) == [("m3", "r1")]
    assert progress.due() == 3.0
    progress.copied(2.95, JOB.copies[0])
    # All maps have ended: the second reducer starts, and asks a host for one part at a time.
    assert names(progress.advance(3.1)) == [("m2", "r1"), ("m1", "r2"), ("m3", "r2")]
    for copy in (JOB.copies[1], JOB.copies[2], JOB.copies[5]):
        progress.copied(4.0, copy)
    assert progress.due() == 8.0
    progress.copied(5.0, JOB.copies[3])
    assert names(progress.advance(5.0)) == [("m2", "r2")]
    progress.copied(6.0, JOB.copies[4])
    assert not progress.is_done()
    progress.advance(11.0)
    assert progress.is_done()
    assert [r.end_s for r in progress.reducers.values()] == [8.0, 11.0]
    assert progress.bytes_done == 2800


def test_no_more_copies_at_once_than_allowed() -> None:
    job = generate(3, Shape(hosts=9, maps_per_host=1, parallel_copies=4))
    progress = Progress(job)
    begun = progress.advance(1000.0)
    by_reducer = {r.name: [c for c in begun if c.reducer == r.name] for r in job.reduces}
    assert {len(copies) for copies in by_reducer.values()} == {4}
    progress.copied(1000.0, begun[0])
    assert [c.reducer for c in progress.advance(1000.0)] == [begun[0].reducer]


def test_a_reducer_waits_for_a_slot() -> None:
    job = Job(
        **{
            **vars(JOB),
            "reduces": (Reduce("r1", "a", 0, 0.0, 1.0), Reduce("r2", "a", 0, 0.0, 1.0)),
            "copies": (Copy("m1", "r1", 1), Copy("m1", "r2", 1)),
        }
    )
    progress = Progress(job)
    assert names(progress.advance(1.0)) == [("m1", "r1")]
    progress.copied(2.0, job.copies[0])
    assert progress.due() == 1.5  # a map
    assert names(progress.advance(3.0)) == [("m1", "r2")]


def test_a_copy_that_failed_begins_again_later() -> None:
    progress = Progress(JOB)
    progress.advance(1.0)
    (copy,) = progress.advance(1.25)
    progress.failed(1.3, copy)
    assert progress.advance(1.4) == []
    assert copy in progress.advance(1.3 + RETRY_S)
    assert progress.failures == 1


def test_the_same_seed_makes_the_same_job() -> None:
    assert generate(7) == generate(7)
    assert generate(7) != generate(8)
    job = generate(7)
    assert len(job.hosts) == 26
    assert len(job.copies) == 26 * 2 * 26
    sent = sum(c.nbytes for c in job.copies) / 26
    assert sent == pytest.approx(Shape.host_bytes, rel=0.02)


# --- traces -------------------------------------------------------------------------------


def trace() -> dict[str, Any]:
    """A small one in MRemu's form, with some numbers as strings and a clean-up that is a MAP."""
    return {
        "name": "job_1",
        "config": {"numMapSlots": "1", "numReduceSlots": 2, "maxParallelCopies": "5"},
        "tasks": [
            {"name": "m1", "type": "MAP", "host": "10.0.0.9", "startTime": 1.0, "finishTime": "3"},
            {"name": "m2", "type": "MAP", "host": "10.0.0.10", "startTime": 1.5, "finishTime": 4},
            {
                **{"name": "r", "type": "REDUCE", "host": "10.0.0.9", "startTime": 3.5},
                **{"finishTime": 20.0, "sortingTime": "0.5", "processingTime": "2.5"},
            },
            {"name": "m3", "type": "MAP", "host": "10.0.0.9", "startTime": 21, "finishTime": 22},
            {"name": "c", "type": "CLEANUP", "host": "10.0.0.9", "startTime": 23, "finishTime": 24},
        ],
        "transfers": [
            {"mapper": "m2", "reducer": "r", "size": "700", "startTime": 5.0},
            {"mapper": "m1", "reducer": "r", "size": 300, "startTime": 4.0},
        ],
    }


def written(tmp_path: Path, value: object) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_trace_is_read(tmp_path: Path) -> None:
    job = mremu.read(written(tmp_path, trace()))
    assert job == Job(
        name="job_1",
        hosts=("10.0.0.9", "10.0.0.10"),
        map_slots=1,
        reduce_slots=2,
        parallel_copies=5,
        maps=(Map("m1", "10.0.0.9", 2.0), Map("m2", "10.0.0.10", 2.5)),
        reduces=(Reduce("r", "10.0.0.9", 1, 0.0, 3.0),),
        copies=(Copy("m1", "r", 300), Copy("m2", "r", 700)),
    )


def _set(*path: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def change(value: dict[Any, Any]) -> None:
        for step in path[:-1]:
            value = value[step]
        value[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_set("config", "numMapSlots", to="two"), "config.numMapSlots is 'two', not a number"),
        (_set("config", "maxParallelCopies", to=1.5), "maxParallelCopies is 1.5, not a whole"),
        (_set("config", to=[]), "config is not an object"),
        (_set("tasks", 1, "startTime", to="NaN"), r"tasks\[1\].startTime is 'NaN', not a number"),
        (_set("tasks", 0, "finishTime", to=0.5), r"tasks\[0\].finishTime is before startTime"),
        (_set("tasks", 1, "name", to="m1"), r"tasks\[1\].name 'm1' is there twice"),
        (_set("tasks", 2, "processingTime", to=None), "processingTime is None, not a number"),
        (_set("transfers", 1, "mapper", to="r"), r"transfers\[1\].mapper 'r' is no task of type"),
        (_set("transfers", 0, "size", to=-1), r"transfers\[0\].size is -1, not a number from 1"),
        (_set("transfers", to=[]), "transfers is not a list with something in it"),
        (lambda t: t.pop("tasks"), "tasks is missing"),
    ],
)
def test_errors_name_file_and_field(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    broken = trace()
    change(broken)
    with pytest.raises(BadFile, match=complaint) as told:
        mremu.read(written(tmp_path, broken))
    assert "trace.json: " in str(told.value)


def test_what_is_no_trace_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="not JSON"):
        mremu.read(written(tmp_path, "{"))
    with pytest.raises(BadFile, match="the file is not an object"):
        mremu.read(written(tmp_path, "[]"))
    with pytest.raises(BadFile, match="No such file"):
        mremu.read(tmp_path / "none")


def test_hosts_take_places_at_equal_distances() -> None:
    places = [Place(str(i), f"10.0.0.{i}") for i in range(4)]
    assert [p.name for p in spread(JOB, places).values()] == ["0", "2"]
    with pytest.raises(Unplayable, match="2 hosts, but there are 1 places"):
        spread(JOB, places[:1])


# --- playing ------------------------------------------------------------------------------

TINY = generate(1, Shape(hosts=3, host_bytes=2_000_000)).scaled(1, 0.02)


def test_a_tiny_job_is_played_over_loopback() -> None:
    # All of 127/8 is this machine.
    places = {host: Place(host, f"127.0.1.{i}") for i, host in enumerate(TINY.hosts, start=1)}
    told = Replay(TINY, places).play(60)
    assert told["finished"]
    wanted = sum(c.nbytes for c in TINY.copies)
    assert told["bytes"]["wanted"] == told["bytes"]["copied"] == wanted
    assert told["copies"]["copied"] == 18
    assert told["copies"]["failed"] == 0
    least = max(TINY.map_ends().values()) + min(r.seconds for r in TINY.reduces)
    assert least <= told["completion_s"] <= told["played_s"]
    begin, end = told["phases"]["shuffle"]
    assert begin <= max(TINY.map_ends().values()) <= end


def test_a_job_that_takes_too_long_is_given_up() -> None:
    places = {host: Place(host, "127.0.0.1") for host in TINY.hosts}
    told = Replay(TINY.scaled(1, 1000), places).play(0.2)
    assert not told["finished"]
    assert told["completion_s"] is None
    assert told["phases"]["reduce"] == [None, None]


def test_an_address_of_somebody_else_is_told() -> None:
    places = {host: Place(f"at {host}", "192.0.2.1") for host in TINY.hosts}
    with pytest.raises(Unplayable, match=r"at host1: cannot listen on 192\.0\.2\.1"):
        Replay(TINY, places).play(5)


def test_the_command_tells_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [{"name": n, "address": f"127.0.2.{i}"} for i, n in enumerate("abc", start=1)]
    at = written(tmp_path, places)
    job = ["--generate", "1", "--hosts", "3", "--bytes-factor", "1e-5", "--time-factor", "0.01"]
    assert main([*job, "--places", str(at), "--link-rate", "1e6"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["finished"]
    assert told["floor"]["link_bps"] == 1e6
    assert {r["place"] for r in told["reducers"]} == {"a", "b", "c"}
    assert main([*job, "--places", str(tmp_path / "none")]) == 2
    assert "none: No such file" in capsys.readouterr().err


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.skipif(bool(missing_tools(["ip"])), reason="needs iproute2")
def test_one_process_plays_between_namespaces() -> None:
    job = generate(2, Shape(hosts=2, host_bytes=4_000_000)).scaled(1, 0.01)
    with Lab() as lab:
        a, b = lab.namespace("a"), lab.namespace("b")
        veth(a, "eth0", b, "eth0")
        a.ip("addr add 10.9.0.1/24 dev eth0")
        b.ip("addr add 10.9.0.2/24 dev eth0")
        before = b.received("eth0")
        places = [Place("a", "10.9.0.1", a.name), Place("b", "10.9.0.2", b.name)]
        told = Replay(job, spread(job, places)).play(60)
        crossed = b.received("eth0").since(before).nbytes
        gone = Place("a", "10.9.0.1", f"{a.name}-none")
        with pytest.raises(Unplayable, match="cannot enter network namespace"):
            Replay(job, spread(job, [gone, places[1]])).play(5)
    assert told["finished"]
    where = job.host_of()
    inward = sum(
        c.nbytes for c in job.copies if (where[c.mapper], where[c.reducer]) == ("host1", "host2")
    )
    # With headers and the other direction's acknowledgements; what stays within a host is not here.
    assert inward < crossed < 1.2 * inward
