"""What CUDA is told, and in which order, on stand-ins for streams and events: no GPU has run the real ones yet."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gpus import GPU, Call, Moment, Ranks, Stream, stand_in
from torch.utils._python_dispatch import TorchDispatchMode

from autobyte.config import Config
from autobyte.exchange.planning import agreed_plan
from autobyte.job import Cluster, Job, Model
from autobyte.scheduler.block import Block, Collective, Segment
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.cuda import CudaStreams
from autobyte.scheduler.engines.ordered import Ordered
from autobyte.scheduler.runner import Runner


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Moment, "always_over", False)
    stand_in(monkeypatch.setattr)
    yield
    assert len(Stream.current) == 1


def test_work_comes_behind_its_events_and_memory_is_kept_for_it() -> None:
    streams = CudaStreams(GPU)
    first, second = streams.mark(), streams.mark([torch.ones(1)])
    assert [call[:2] for call in Stream.log] == [("record", "model")] * 2
    Stream.log.clear()
    event = streams.enqueue(
        lambda: Stream.log.append(("work", Stream.current[-1].name)), [first, second], [torch.ones(2)]
    )
    assert Stream.log == [
        ("wait", "communication", first.event),
        ("wait", "communication", second.event),
        ("keep", "communication"),
        ("work", "communication"),
        ("record", "communication", event.event),
    ]
    Stream.log.clear()
    streams.wait(event)
    assert Stream.log == [("wait", "model", event.event)]
    assert streams.ahead
    assert streams._communication.priority < 0
    assert event.event.enable_timing
    assert event.elapsed_s(event) == 2.5e-3


def test_the_last_unused_event_may_go_to_another_thread() -> None:
    class TakenMeanwhile(list[Any]):
        def __bool__(self) -> bool:
            return True  # as it was a moment ago

    streams = CudaStreams(GPU)
    streams.unused = TakenMeanwhile()
    assert not streams.mark().is_over()


def test_what_is_given_up_is_over_only_if_it_was_seen_to_be() -> None:
    streams = CudaStreams(GPU)
    seen, late = streams.mark(), streams.mark()
    seen.event.over = True
    assert seen.is_over()
    assert not late.is_over()
    streams.give_up(ConnectionError("rank 1 is gone"))
    late.event.over = True  # as the kernel that was aborted is
    assert seen.is_over()
    streams.wait(seen)
    for ask in (late.is_over, lambda: streams.wait(late)):
        with pytest.raises(ConnectionError, match="rank 1 is gone"):
            ask()


def test_a_step_waits_for_every_gradient_and_for_every_sum_on_the_device_alone() -> None:
    """Two layers under dear: reduce-scatters behind gradients, all-gathers behind them, layers behind all-gathers."""
    rows = [(f"layer {i}", [(f"{i}.weight", 6), (f"{i}.bias", 2)], 1.0, 1.0) for i in (0, 1)]
    plan = agreed_plan(Job(Model.build("two", rows, batch_size=1), Cluster(1)), Config(16, 64, "dear"))
    assert plan.sequence is not None
    streams = CudaStreams(GPU)
    buffers = Buffers(tensors=4, scale=1.0, streams=streams)
    engine = Ordered(buffers, Ranks())
    runner = Runner(plan, engine, clock=lambda: 0.0, arrived=lambda _: None, failed=_fail)
    gradients = [torch.ones(numel) for numel in (6, 2, 6, 2)]
    marks, last = {}, {}
    for tensor in (3, 2, 1, 0):
        buffers.put(tensor, gradients[tensor])
        marks[tensor] = Stream.log[-1][2]
        runner.ready(tensor)
    runner.end_step()
    assert runner.at_boundary  # the host is through, and has waited for nothing
    assert {block.index for block in engine.unfinished()} == set(range(len(plan.tiling)))
    launches = iter(_launches(Stream.log))
    for index in plan.sequence.tolist():
        block, (op, waits, end) = plan.tiling.blocks[index], next(launches)
        assert op == block.op.value
        assert waits == [marks[segment.tensor] for segment in block.segments]
        for segment in block.segments:
            last[segment.tensor] = end
    Stream.log.clear()
    for tensor in range(4):
        buffers.follow(tensor)
    assert Stream.log == [("wait", "model", last[tensor]) for tensor in range(4)]


def _launches(log: list[Call]) -> Iterator[tuple[str, list[Moment], Moment]]:
    """What ran on the communication stream: each collective, what it waited for, and the event behind it.

    The event before it is behind the waits, so it says when the collective began.
    """
    waits: list[Moment] = []
    op, begun = "", False
    for call in log:
        if call[:2] == ("wait", "communication"):
            assert not begun
            waits.append(call[2])
        elif call[0] in tuple(Collective):
            assert call[1] == "communication" and begun
            op = call[0]
        elif call[:2] == ("record", "communication") and not begun:
            begun = True
        elif call[:2] == ("record", "communication"):
            yield op, waits, call[2]
            waits, op, begun = [], "", False


def test_events_that_nobody_holds_are_recorded_again() -> None:
    streams = CudaStreams(GPU)
    buffers, gradients = Buffers(tensors=3, scale=1.0, streams=streams), [torch.ones(4) for _ in range(3)]
    rows = [(f"layer {i}", [(f"{i}.weight", 4)], 1.0, 1.0) for i in range(3)]
    plan = agreed_plan(Job(Model.build("three", rows, batch_size=1), Cluster(1)), Config(16, 64))
    engine = Ordered(buffers, Ranks())
    runner = Runner(plan, engine, clock=lambda: 0.0, arrived=lambda _: None, failed=_fail)
    before = 0
    for _ in range(1000):
        for tensor in (2, 1, 0):
            buffers.put(tensor, gradients[tensor])
            runner.ready(tensor)
        runner.end_step()
        for call in Stream.log[before:]:
            if call[0] == "record":
                call[2].over = True
        before = len(Stream.log)
        assert engine.late() is None
    recorded = [call[2] for call in Stream.log if call[0] == "record"]
    assert len(recorded) == 1 + 1000 * 3 * 3  # the reference; of a tensor's block, gradient, start and end
    assert len(set(recorded)) <= 3 * 3 * 2 + 1
    assert len(runner.passages) == 1000 * 3 - 3  # those of the last step are not read yet


def _fail(block: Block, error: Exception) -> None:
    raise error


@pytest.mark.parametrize("wire_dtype", [None, "bfloat16"])
def test_a_fused_block_is_packed_by_one_call(wire_dtype: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many gradients it holds; and unpacked by one."""
    calls: list[str] = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func.overloadpacket._qualified_op_name)
            return func(*args, **(kwargs or {}))

    buffers = Buffers(tensors=20, scale=0.5, wire_dtype=wire_dtype, streams=CudaStreams(GPU))
    for tensor in range(20):
        buffers.put(tensor, torch.full((3,), float(tensor)))
    block = Block(0, tuple(Segment(tensor, 0, 3) for tensor in range(20)), 240)
    ranks = Ranks()
    ranks._launch = lambda *_: calls.append("launched")  # type: ignore[method-assign]
    engine = Ordered(buffers, ranks)
    with Calls():
        engine.start(block, lambda _: None, lambda *_: None)
    views = {"aten::split_with_sizes", "aten::detach", "aten::view", "aten::slice"}
    kernels = [call for call in calls if call not in views and "empty" not in call]
    assert kernels.index("launched") <= 2
    assert len(kernels) <= 4, kernels
    for tensor in range(20):
        assert torch.equal(buffers.pieces(Block(0, (Segment(tensor, 0, 3),), 12))[0], torch.full((3,), tensor / 2))


def test_ranks_that_were_aborted_are_not_shut_down_as_well() -> None:
    streams, ranks = CudaStreams(GPU), Ranks()
    buffers = Buffers(tensors=1, scale=None, streams=streams)
    engine = Ordered(buffers, ranks, abort=ranks.abort, part=ranks.shutdown)
    engine.close()
    assert ranks.called == ["shutdown"]
    engine.abort(ConnectionError("rank 1 is gone"))
    engine.close()
    assert ranks.called == ["shutdown", "abort"]
    assert str(streams.error) == "rank 1 is gone"
