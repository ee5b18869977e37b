"""Traces of real ranks: what they hold, what they cost when off, and what becomes of them when something fails."""

import json
import os
import signal
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty import ENGINES, TIMEOUT, make_model, rows, said, train, wrapped
from ranks import Ranks, on_ranks

import autobyte.torch as ab
from autobyte.errors import FileError, InputError
from autobyte.explain import explain, read_trace
from autobyte.torch.model import timeline
from autobyte.torch.tracing.tracing import Tracing

TRACED = range(5, 11)
US = 0.01  # by which times in a file may be rounded (µs)

Event = dict[str, Any]


def events_in(path: Path) -> list[Event]:
    return json.loads(path.read_text())["traceEvents"]


def slices(events: list[Event], *lanes: str) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["cat"] in lanes]


def _traced(rank: int, engine: str, path: Path) -> dict[int, dict[int, int]]:
    """Blocks of the plans of traced steps: bytes by index."""
    model = make_model()
    optimizer = wrapped(model, engine)
    train(model, optimizer, rank, range(TRACED.start))
    optimizer.trace(len(TRACED), path)
    plans = {}
    for step in TRACED:
        assert isinstance(optimizer._mode, Tracing)
        train(model, optimizer, rank, range(step, step + 1))
        plan = optimizer.training.session.plan
        plans[step] = {block.index: block.nbytes for block in plan.tiling.blocks}
    assert not isinstance(optimizer._mode, Tracing)
    assert rank or path.exists()  # when the last step() has returned
    train(model, optimizer, rank, range(TRACED.stop, TRACED.stop + 5))
    optimizer.close()
    return plans


@pytest.mark.parametrize("engine", [*ENGINES, "leader", "dear"])
def test_a_trace_has_all_ranks_steps_and_blocks(engine: str, tmp_path: Path) -> None:
    path, size = tmp_path / "trace.json", 3 if engine == "allreduce" else 2
    plans = on_ranks(_traced, size, engine, path)[0]
    events = events_in(path)
    _check_tracks(events, size)
    _check_steps(events, size)
    _check_blocks(events, plans, size)
    about = json.loads(path.read_text())["otherData"]
    assert (about["what"], about["workers"], about["ranks"]) == ("measured", size, list(range(size)))
    assert about["steps"] == len(TRACED)
    assert 0 < about["clock_error_us"] < 1e5
    assert len(explain(read_trace(path))) == 3


def _check_tracks(events: list[Event], size: int) -> None:
    """No two slices of a track overlap; nobody computes while it waits."""
    tracks = defaultdict(list)
    for event in slices(events, "step", "compute", "wait", "queue", "network"):
        both = "thread" if event["cat"] in ("compute", "wait") else event["cat"]
        tracks[event["pid"], both].append((event["ts"], event["ts"] + event["dur"]))
    assert {pid for pid, _ in tracks} == set(range(size))
    for track in tracks.values():
        track.sort()
        assert all(start >= stop - US for (_, stop), (start, _) in pairwise(track))


def _check_steps(events: list[Event], size: int) -> None:
    """Idle time, compute and exposed communication are the step; each layer goes forward and back in each."""
    steps = slices(events, "step")
    assert sorted((event["pid"], event["args"]["step"]) for event in steps) == [
        (rank, step) for rank in range(size) for step in TRACED
    ]
    communication_ms: dict[int, float] = defaultdict(float)  # of a step it may lie in the one after it
    for step in steps:
        parts = step["args"]
        within = slices(events, "compute", "wait")
        within = [event for event in within if event["pid"] == step["pid"] and event["args"]["step"] == parts["step"]]
        spent = {lane: sum(event["dur"] for event in within if event["cat"] == lane) for lane in ("compute", "wait")}
        assert parts["compute_ms"] == pytest.approx(spent["compute"] / 1e3, abs=1e-3)
        assert parts["exposed_communication_ms"] == pytest.approx(spent["wait"] / 1e3, abs=1e-3)
        total = parts["compute_ms"] + parts["exposed_communication_ms"] + parts["idle_ms"]
        assert total == pytest.approx(step["dur"] / 1e3, abs=1e-3)
        communication_ms[step["pid"]] += parts["communication_ms"]
        names = {event["name"] for event in within}
        assert {f"{phase} {layer}" for phase in ("forward", "backward") for layer in "024"} <= names
        assert any(name.startswith("update") for name in names)
    assert len(communication_ms) == size
    assert min(communication_ms.values()) > 0


def _check_blocks(events: list[Event], plans: dict[int, dict[int, int]], size: int) -> None:
    """Each block of the plan is on the wire once a step, at the same place of the plan on all ranks."""
    seen = defaultdict(dict)
    for event in slices(events, "network"):
        key = event["pid"], event["args"]["step"]
        index = int(event["name"].removeprefix("block "))
        assert index not in seen[key]
        seen[key][index] = event["args"]["bytes"]
        assert event["args"]["waited_ms"] >= 0
    assert seen == {(rank, step): blocks for rank in range(size) for step, blocks in plans.items()}


def test_waits_are_those_that_the_report_adds_up(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for exposed_s in on_ranks(_exposed, 2, path):
        waits = [event["dur"] for event in slices(events_in(path), "wait") if event["pid"] == exposed_s[0]]
        assert sum(waits) * 1e-6 == pytest.approx(exposed_s[1], abs=1e-4)


def _exposed(rank: int, path: Path) -> tuple[int, float]:
    model = make_model()
    optimizer = wrapped(model, "allreduce")
    train(model, optimizer, rank, range(5))
    exchange = optimizer.training.exchange
    exchange.waits.read()
    before_s = exchange.exposed_s
    optimizer.trace(6, path)
    train(model, optimizer, rank, range(5, 11))
    exchange.waits.read()
    after_s = exchange.exposed_s
    optimizer.close()
    return rank, after_s - before_s


def test_off_means_that_nothing_is_called(tmp_path: Path) -> None:
    """Before a trace and after it, no hook of it is there, and no code of it runs."""
    assert on_ranks(_off, 2, tmp_path / "trace.json") == [(0, True, 0)] * 2


def _off(rank: int, path: Path) -> tuple[int, bool, int]:
    from sys import setprofile  # noqa: PLC0415

    model = make_model()
    optimizer = wrapped(model, "allreduce")
    train(model, optimizer, rank, range(5))
    calls, hooks, files = [0], [_hooks(model)], (timeline.__file__, ab.__path__[0] + "/tracing")

    def look(frame: Any, event: str, _argument: Any) -> None:
        calls[0] += event == "call" and frame.f_code.co_filename.startswith(files)

    counted = []
    for traced in (0, 3, 0):
        if traced:
            optimizer.trace(traced, path)
            hooks.append(_hooks(model))
        calls[0] = 0
        setprofile(look)
        try:
            train(model, optimizer, rank, range(5))
        finally:
            setprofile(None)
        counted.append(calls[0])
    assert _hooks(model) == hooks[0] < hooks[1]
    optimizer.close()
    return counted[0], counted[1] > 0, counted[2]


def _hooks(model: torch.nn.Module) -> int:
    of_modules = sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())
    return of_modules + sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())


def test_training_is_the_same_with_a_trace(tmp_path: Path) -> None:
    with_it, without = (on_ranks(_parameters, 2, path) for path in (tmp_path / "trace.json", None))
    assert with_it == without


def _parameters(rank: int, path: Path | None) -> list[list[float]]:
    model = make_model()
    optimizer = wrapped(model, "allreduce")
    if path is not None:
        optimizer.trace(4, path)  # from the very first step on, in which layers are not known yet
    train(model, optimizer, rank, range(10))
    optimizer.flush()
    found = [parameter.flatten().tolist() for parameter in model.parameters()]
    optimizer.close()
    return found


def test_accumulation_closures_and_whole_updates_are_traced(tmp_path: Path) -> None:
    on_ranks(_loops, 2, tmp_path)
    passes = [event["name"] for event in slices(events_in(tmp_path / "accumulated"), "compute") if event["pid"] == 1]
    assert passes.count("forward 0") >= 6
    for name in ("whole", "closure"):
        names = [event["name"] for event in slices(events_in(tmp_path / name), "compute") if event["pid"] == 0]
        assert sum(each.startswith("update") for each in names) >= 2, name
        assert "backward 0" in names


def _loops(rank: int, folder: Path) -> None:
    for name in ("accumulated", "whole", "closure"):
        model = make_model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = ab.DistributedOptimizer(
            sgd,
            model,
            policy="bytescheduler",
            cross_step=name != "whole",
            accumulation=3 if name == "accumulated" else 1,
            timeout=TIMEOUT,
        )

        def evaluate(model: torch.nn.Module = model, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(rows(rank, 0)).square().mean()
            loss.backward()
            return loss

        train(model, optimizer, rank, range(0)) if name == "accumulated" else train(model, optimizer, rank, range(3))
        optimizer.trace(2, folder / name)
        for _ in range(2):
            if name == "closure":
                optimizer.step(evaluate)
                continue
            for _ in range(3 if name == "accumulated" else 1):
                model(rows(rank, 0)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.close()


def test_one_rank_alone_computes(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    on_ranks(_alone, 1, path)
    events = events_in(path)
    assert {event["cat"] for event in events if event["ph"] == "X"} == {"step", "compute"}
    _check_tracks(events, 1)
    names = {event["name"] for event in slices(events, "compute")}
    assert {"forward 0", "backward 4", "update"} <= names
    assert len(slices(events, "step")) == 3
    assert len(explain(read_trace(path))) == 3


def _alone(rank: int, path: Path) -> None:
    model = make_model()
    optimizer = wrapped(model, "allreduce")
    optimizer.trace(3, path)
    train(model, optimizer, rank, range(6))
    assert _hooks(model) == 0


def test_what_cannot_be_traced_is_refused_at_once(tmp_path: Path) -> None:
    on_ranks(_refused, 2, tmp_path)
    on_ranks(_refused, 1, tmp_path)


def _refused(rank: int, folder: Path) -> None:
    model = make_model()
    optimizer = wrapped(model, "allreduce")
    path = folder / "trace.json"
    for steps in (0, -1, 2.0, True):
        with pytest.raises(InputError, match="a trace has a number of steps, at least 1, got"):
            optimizer.trace(steps, path)
    for name, why in (("nowhere/trace.json", "No such file or directory"), (".", "it is a folder")):
        with pytest.raises(FileError, match=f"^cannot write trace .*: {why}") as error:
            optimizer.trace(2, folder / name)
        assert "\n" not in str(error.value)
    optimizer.trace(2, path)
    with pytest.raises(InputError, match=r"^a trace is on \(2 steps, for '.*trace.json'\)"):
        optimizer.trace(2, path)
    train(model, optimizer, rank, range(2))
    optimizer.trace(1, path)  # the one before is written
    train(model, optimizer, rank, range(3))
    model.compile()
    with pytest.raises(InputError, match="the model is compiled"):
        optimizer.trace(1, path)
    optimizer.close()
    with pytest.raises(InputError, match="the optimizer is closed, and has nothing to trace"):
        optimizer.trace(1, path)


def test_ranks_that_trace_different_steps_say_so(tmp_path: Path) -> None:
    for outcome in Ranks(_differ, 2, tmp_path / "trace.json").outcomes():
        assert "have a trace unlike rank 0's" in said(outcome)


def _differ(rank: int, path: Path) -> None:
    model = make_model()
    wrapped(model, "allreduce").trace(2 + rank, path)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lost_rank_ends_the_trace_and_rank_0_keeps_its_own(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    began = time.monotonic()
    outcomes = Ranks(_lost, 2, engine, path, timeout_s=40).outcomes()
    assert time.monotonic() - began < 35
    assert "CommunicationError: rank 0" in said(outcomes[0])
    about = json.loads(path.read_text())["otherData"]
    assert (about["ranks"], about["missing_ranks"]) == ([0], [1])
    assert 3 <= about["steps"] <= 5  # where streams wait, rank 0 runs ahead
    assert about["missing_because"] == "communication failed"
    assert {event["pid"] for event in slices(events_in(path), "compute")} == {0}


def _lost(rank: int, engine: str, path: Path) -> None:
    model = make_model()
    optimizer = wrapped(model, engine)
    train(model, optimizer, rank, range(5))
    optimizer.trace(20, path)
    train(model, optimizer, rank, range(5, 8))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        train(model, optimizer, rank, range(8, 40))
    finally:
        optimizer.recover()


def test_closing_before_the_last_step_keeps_what_rank_0_has(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    on_ranks(_closed, 2, path)
    about = json.loads(path.read_text())["otherData"]
    assert (about["steps"], about["missing_ranks"], about["missing_because"]) == (3, [1], "the optimizer was closed")
    assert len(slices(events_in(path), "step")) == 3


def _closed(rank: int, path: Path) -> None:
    model = make_model()
    optimizer = wrapped(model, "allreduce")
    optimizer.trace(20, path)
    train(model, optimizer, rank, range(3))
    optimizer.close()
    assert _hooks(model) == 0


def test_inputs_that_end_on_a_rank_end_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    on_ranks(_uneven, 2, path)
    about = json.loads(path.read_text())["otherData"]
    assert about["missing_because"] == "the inputs of a rank have ended"


def _uneven(rank: int, path: Path) -> None:
    from torch.distributed.algorithms.join import Join  # noqa: PLC0415

    model = make_model()
    optimizer = wrapped(model, "allreduce")
    with Join([optimizer]):
        optimizer.trace(20, path)
        train(model, optimizer, rank, range(4 + 3 * rank))
    optimizer.close()


def test_a_disk_that_fails_later_costs_the_trace_and_not_the_training(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    ranks = Ranks(_gone, 2, folder)
    try:
        for process in ranks.processes:
            process.join(60)
        assert "trace.json: No such file or directory; training goes on" in ranks.written(0)
        assert ranks.results() == [6, 6]
    finally:
        ranks.kill()


def _gone(rank: int, folder: Path) -> int:
    model = make_model()
    optimizer = wrapped(model, "allreduce")
    optimizer.trace(2, folder / "trace.json")
    if rank == 0:
        folder.rmdir()
    train(model, optimizer, rank, range(6))
    optimizer.close()
    return optimizer.steps
