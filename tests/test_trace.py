"""A trace against Chrome's trace event format, from real runs in virtual time; and what a window showed."""

import json
import math
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import make_model

from autobyte.config import Config
from autobyte.errors import FileError, InputError
from autobyte.job import Cluster, Job
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.tiling import cut, cut_and_fuse
from autobyte.simulator.simulate import simulate
from autobyte.trace import BlockSpan, Measurement, RuntimeStats, Span, Trace

MODEL = make_model(500_000, [], (200_000, 100, 0), 60_000, forward_s=0.002, backward_s=0.003)
RING = Cluster(4, up_bytes_per_s=(1e8,), down_bytes_per_s=(1e8,))
SERVED = replace(RING, servers=4, slowdown=(1.0, 1.0, 1.5, 1.0))
STEPS, PIECE = 3, 400_000


def run(cluster: Cluster, *, fuse: bool = False) -> Trace:
    """Three steps of the toy."""
    job = Job(MODEL, cluster)
    tile = cut_and_fuse if fuse else cut
    trace = simulate(Plan(job, tile(job.gradients, PIECE), 2 * PIECE), iterations=STEPS, trace=True).trace
    assert trace is not None
    return trace


@pytest.fixture(params=["ring", "servers", "fused"], scope="module")
def trace(request: pytest.FixtureRequest) -> Trace:
    return {"ring": lambda: run(RING), "servers": lambda: run(SERVED), "fused": lambda: run(RING, fuse=True)}[
        request.param
    ]()


@pytest.fixture
def events(trace: Trace) -> list[dict[str, Any]]:
    return json.loads(json.dumps(trace.to_chrome()))["traceEvents"]


def of(events: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] in kinds]


def test_every_event_has_the_fields_of_its_kind(events) -> None:
    needed = {
        "M": {"name", "pid", "args"},
        "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
        "C": {"name", "pid", "ts", "args"},
        **{kind: {"name", "cat", "id", "pid", "tid", "ts"} for kind in "stf"},
    }
    assert {event["ph"] for event in events} == set(needed)
    assert [event for event in events if not needed[event["ph"]] <= set(event)] == []
    times = [event[key] for event in events for key in ("ts", "dur") if key in event]
    assert all(isinstance(time, float) and 0 <= time < math.inf for time in times)
    assert {event["bp"] for event in of(events, "f")} == {"e"}  # binds to the slice around it, not to the next


def test_ranks_are_processes_and_lanes_are_threads(events, trace: Trace) -> None:
    ranks = {span.rank for span in trace.spans}
    named = {event["pid"]: event["args"]["name"] for event in of(events, "M") if event["name"] == "process_name"}
    assert named == trace.names
    assert set(named) == ranks
    assert named[0].startswith("rank 0, and ")
    alike = [int(name.split()[3]) if "," in name else 0 for name in named.values()]
    assert len(named) + sum(alike) == 4  # everybody is somebody's like
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in of(events, "M")
        if event["name"] == "thread_name"
    }
    assert {event["pid"] for event in of(events, "X")} == ranks
    for slice_ in of(events, "X"):
        assert threads[slice_["pid"], slice_["tid"]] == slice_["cat"]


def test_slices_of_a_thread_follow_each_other(events) -> None:
    threads = defaultdict(list)
    for slice_ in of(events, "X"):
        threads[slice_["pid"], slice_["tid"]].append((slice_["ts"], slice_["ts"] + slice_["dur"]))
    assert {lane for _, lane in threads} == {0, 1, 2, 3, 4}
    for slices in threads.values():
        slices.sort()
        for (_, stop), (start, _) in pairwise(slices):
            assert start >= stop - 1e-6  # µs


def test_compute_is_written_as_it_was(events, trace: Trace) -> None:
    layers, ranks = len(MODEL.layers), len({span.rank for span in trace.spans})
    compute = [slice_ for slice_ in of(events, "X") if slice_["cat"] == "compute"]
    assert len(compute) == len(trace.spans) == ranks * STEPS * layers * 2
    names = {f"{phase} {layer.name}" for phase in ("forward", "backward") for layer in MODEL.layers}
    assert {slice_["name"] for slice_ in compute} == names
    first = min((slice_ for slice_ in compute if slice_["pid"] == 0), key=lambda slice_: slice_["ts"])
    assert (first["name"], first["ts"], first["args"]) == ("backward l3", 0.0, {"step": 0, "layer": 3})
    assert first["dur"] == pytest.approx(3000)


def test_a_step_is_compute_exposed_communication_and_idle_time(events, trace: Trace) -> None:
    steps = [slice_ for slice_ in of(events, "X") if slice_["cat"] == "step"]
    assert len(steps) == len({span.rank for span in trace.spans}) * STEPS
    for step in steps:
        parts = step["args"]
        names = ("compute_ms", "exposed_communication_ms", "idle_ms")
        assert sum(parts[name] for name in names) == pytest.approx(step["dur"] / 1e3)
        assert parts["exposed_communication_ms"] > 0
    for step in (each for each in steps if each["pid"] == 0):  # the simulator's slowest worker does nothing else
        assert step["args"]["idle_ms"] == pytest.approx(0.0, abs=1e-9)
        assert 0 < step["args"]["overlap"] < 1


def test_waits_fill_the_gaps_of_computing(events) -> None:
    rows = defaultdict(list)
    for slice_ in of(events, "X"):
        if slice_["cat"] in ("compute", "wait"):
            rows[slice_["pid"]].append((slice_["ts"], slice_["ts"] + slice_["dur"], slice_["cat"]))
    for row in rows.values():
        row.sort()
        assert {lane for _, _, lane in row} == {"compute", "wait"}
        for (_, stop, _), (start, _, _) in pairwise(row):
            assert start == pytest.approx(stop)


def test_passes_that_send_nothing_are_computing() -> None:
    job = Job(MODEL, RING, accumulation=3)
    recorded = simulate(Plan(job, cut(job.gradients, PIECE), 2 * PIECE), trace=True).trace
    (step,) = [e for e in recorded.to_chrome()["traceEvents"] if e.get("cat") == "step"]
    assert step["args"]["compute_ms"] == pytest.approx(3 * MODEL.compute_s * 1e3)
    assert step["args"]["idle_ms"] == pytest.approx(0.0, abs=1e-9)


def test_every_block_is_on_the_wire_once_a_step(events, trace: Trace) -> None:
    wire = [slice_ for slice_ in of(events, "X") if slice_["cat"] == "network"]
    assert len(wire) == len(trace.blocks)
    ranks = {block.rank for block in trace.blocks}
    total = MODEL.parameters * 4
    for rank in ranks:
        assert sum(slice_["args"]["bytes"] for slice_ in wire if slice_["pid"] == rank) == total * STEPS
    for slice_, block in zip(wire, sorted(trace.blocks, key=lambda b: (b.rank, b.done_s)), strict=True):
        assert slice_["ts"] + slice_["dur"] == pytest.approx(block.done_s * 1e6)
        assert slice_["ts"] >= block.start_s * 1e6
        assert slice_["args"]["waited_ms"] == pytest.approx((block.start_s - block.ready_s) * 1e3)


def test_arrows_lead_from_a_gradient_to_its_block_and_to_the_forward_that_needs_it(events, trace: Trace) -> None:
    slices = of(events, "X")

    def around(point: dict[str, Any]) -> dict[str, Any]:
        places = [
            s
            for s in slices
            if (s["pid"], s["tid"]) == (point["pid"], point["tid"]) and s["ts"] <= point["ts"] <= s["ts"] + s["dur"]
        ]
        assert len(places) == 1
        return places[0]

    arrows = defaultdict(list)
    for point in of(events, "s", "t", "f"):
        arrows[point["id"]].append(point)
    assert len(arrows) == len(trace.blocks)
    layers = {(block.rank, block.step, block.block): block.layers for block in trace.blocks}
    for points in arrows.values():
        points.sort(key=lambda point: point["ts"])
        gradient, wire, *forward = [around(point) for point in points]
        assert "".join(point["ph"] for point in points) in ("st", "stf")
        assert {(point["name"], point["cat"], point["pid"]) for point in points} == {
            ("gradient", "gradient", gradient["pid"])
        }
        step, block = wire["args"]["step"], int(wire["name"].removeprefix("block "))
        carried = layers[gradient["pid"], step, block]
        assert gradient["name"] == f"backward l{min(carried)}"  # the first layers' gradients are the last to come
        assert gradient["args"]["step"] == step
        assert [s["name"] for s in forward] == [f"forward l{min(carried)}"]
        assert forward[0]["args"]["step"] == step + 1


def in_flight(trace: Trace, rank: int, when_us: float) -> int:
    return sum(b.nbytes for b in trace.blocks if b.rank == rank and b.start_s * 1e6 <= when_us < b.sent_s * 1e6)


def test_the_counter_is_what_holds_credit(events, trace: Trace) -> None:
    counters = of(events, "C")
    times = {(block.rank, t * 1e6) for block in trace.blocks for t in (block.start_s, block.sent_s)}
    assert {(counter["pid"], counter["ts"]) for counter in counters} == times
    assert len(counters) == len(times)
    for counter in counters:
        assert 0 <= counter["args"]["bytes"] < 2 * PIECE + PIECE
        assert counter["args"]["bytes"] == in_flight(trace, counter["pid"], counter["ts"])


def test_links_without_limit_never_count_below_nothing() -> None:
    free = replace(
        RING, up_bytes_per_s=(math.inf,), down_bytes_per_s=(math.inf,), latency_s=0.0, overhead_s=(0.0, 0.0)
    )
    counters = of(run(free).to_chrome()["traceEvents"], "C")
    assert counters
    assert {counter["args"]["bytes"] for counter in counters} == {0}


def test_the_queue_shows_who_is_at_the_head_of_the_line() -> None:
    def block(index: int, ready_s: float, start_s: float, done_s: float) -> BlockSpan:
        return BlockSpan(0, 0, index, 8, (0,), ready_s, start_s, done_s, done_s)

    trace = Trace(blocks=[block(0, 0.0, 0.0, 2.0), block(1, 0.0, 2.0, 3.0), block(2, 1.0, 3.0, 5.0)])
    rows = [(e["name"], e["cat"], e["ts"], e["dur"]) for e in trace.to_chrome()["traceEvents"] if e["ph"] == "X"]
    assert rows == [
        ("block 1", "queue", 0.0, 2e6),
        ("block 2", "queue", 2e6, 1e6),
        ("block 0", "network", 0.0, 2e6),
        ("block 1", "network", 2e6, 1e6),
        ("block 2", "network", 3e6, 2e6),
    ]


def test_a_block_without_a_known_gradient_has_no_arrow() -> None:
    trace = Trace(blocks=[BlockSpan(3, 0, 0, 8, (0,), 0.0, 0.0, 1.0, 1.0)])
    events = trace.to_chrome()["traceEvents"]
    assert of(events, "s", "t", "f") == []
    assert of(events, "M")[0]["args"] == {"name": "rank 3"}


def test_nothing_happened_is_a_valid_trace() -> None:
    assert Trace().to_chrome() == {"displayTimeUnit": "ms", "traceEvents": []}


def test_a_trace_is_saved_as_json(tmp_path: Path) -> None:
    trace = Trace(spans=[Span(0, 0, "forward", 0, "ünïcode", 0.0, 1.0)])
    trace.save(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == trace.to_chrome()
    with pytest.raises(FileError, match=r"^cannot write trace .*nowhere/trace.json: .*No such file or directory"):
        trace.save(tmp_path / "nowhere" / "trace.json")


def test_the_mean_of_a_window_leaves_out_the_warm_up() -> None:
    assert Measurement(Config(1, 1), 0, (10.0, 1.0, 3.0), warmup=1).mean_s == 2
    assert Measurement(Config(1, 1), 0, (10.0, 1.0, 1.0)).mean_s == 4


@pytest.mark.parametrize(("steps", "warmup"), [((), 0), ((1.0,), 1), ((1.0, 2.0), 3), ((1.0,), -1)])
def test_a_window_is_longer_than_its_warm_up(steps: tuple[float, ...], warmup: int) -> None:
    with pytest.raises(InputError, match=f"^a window of {len(steps)} steps cannot leave out {warmup} as warm-up$"):
        Measurement(Config(1, 1), 0, steps, warmup)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_step_takes_a_finite_time(value: float) -> None:
    with pytest.raises(InputError, match=f"^step_s must be finite times of at least 0, got {value}$"):
        Measurement(Config(1, 1), 0, (1.0, value))


@pytest.mark.parametrize("torn", ["forward_s", "backward_s", "up_bytes_per_s", "samples_per_s"])
def test_statistics_whose_shapes_do_not_go_together_are_refused(torn: str) -> None:
    parts = {"forward_s": np.ones((2, 3)), "backward_s": np.ones((2, 3))}
    parts |= dict.fromkeys(("up_bytes_per_s", "down_bytes_per_s", "samples_per_s"), np.ones(2))
    assert RuntimeStats(**parts).servers == 0
    with pytest.raises(InputError, match=r"twice \[workers, layers\] and three times \[workers\], not \["):
        RuntimeStats(**parts | {torn: parts[torn][1:]})


def test_sends_of_another_shape_are_refused() -> None:
    parts = {"forward_s": np.ones((2, 3)), "backward_s": np.ones((2, 3))}
    parts |= dict.fromkeys(("up_bytes_per_s", "down_bytes_per_s", "samples_per_s"), np.ones(2))
    assert RuntimeStats(**parts, sends=np.ones((2, 2, 4))).sends is not None
    with pytest.raises(InputError, match=r"^sends are \[workers, 2, 4\], not \[3, 2, 4\]$"):
        RuntimeStats(**parts, sends=np.ones((3, 2, 4)))
