"""The runner, with an engine that is driven by hand: nothing moves before the test says so."""

import threading
from collections.abc import Callable, Collection
from functools import partial

import pytest
from jobs import make_job, make_plan, segments

from autobyte.scheduler.block import Block, Tiling
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.runner import Runner
from autobyte.scheduler.tiling import cut_and_fuse
from autobyte.trace import Trace


class HandEngine(Engine):
    """Notes what was started, and reports what it is told to."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self._blocks: dict[int, tuple[Block, Sent, Done]] = {}

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        self.started.append(block.index)
        self._blocks[block.index] = (block, sent, done)

    def close(self) -> None:
        """Nothing to let go of."""

    def sent(self, index: int) -> None:
        block, sent, _ = self._blocks[index]
        sent(block)

    def done(self, index: int, error: Exception | None = None) -> None:
        block, _, done = self._blocks[index]
        done(block, error)

    def finish(self, *indices: int) -> None:
        for index in indices:
            self.sent(index)
            self.done(index)


class Rank:
    """A runner, its engine, and what it has told."""

    def __init__(self, plan: Plan) -> None:
        self.now = 0.0
        self.engine = HandEngine()
        self.arrived: list[int] = []
        self.failed: list[tuple[int, Exception]] = []
        self.trace = Trace()
        self.runner = Runner(
            plan,
            self.engine,
            clock=lambda: self.now,
            arrived=self.arrived.extend,
            failed=lambda block, error: self.failed.append((block.index, error)),
            trace=self.trace,
            rank=3,
        )

    def at(self, now: float, event: Callable[..., None], *arguments: object) -> None:
        self.now = now
        event(*arguments)


def test_what_the_core_decides_is_started_and_what_is_complete_arrives() -> None:
    rank = Rank(make_plan(8, 4, piece=4, credit=4))
    rank.runner.ready(1)
    rank.runner.ready(0)
    assert rank.engine.started == [2]
    rank.engine.finish(2)
    assert (rank.engine.started, rank.arrived) == ([2, 0], [1])
    rank.engine.finish(0)
    assert (rank.engine.started, rank.arrived) == ([2, 0, 1], [1])  # half of it
    rank.engine.finish(1)
    assert rank.arrived == [1, 0]


def test_credit_comes_back_before_the_result_is_in_place() -> None:
    rank = Rank(make_plan(4, 4, credit=4))
    rank.runner.ready(1)
    rank.runner.ready(0)
    rank.engine.sent(1)
    assert (rank.engine.started, rank.arrived) == ([1, 0], [])
    rank.engine.sent(0)
    rank.engine.done(0)
    rank.engine.done(1)
    assert rank.arrived == [0, 1]


def test_a_fused_block_brings_all_of_its_tensors() -> None:
    job = make_job(3, 1, 2, 2)
    rank = Rank(Plan(job, cut_and_fuse(job.gradients, 8)))  # [0: 2], [0: 1 and 1], [2], [3]
    for tensor in (3, 2, 1, 0):
        rank.runner.ready(tensor)
    rank.engine.finish(1)
    assert rank.arrived == [1]
    rank.engine.finish(0)
    assert rank.arrived == [1, 0]


def test_two_pieces_of_a_tensor_in_one_block_count_once() -> None:
    job = make_job(9)
    tiling = Tiling.of(job.gradients, segments([(0, 0, 3), (0, 6, 9)], [(0, 3, 6)]))
    rank = Rank(Plan(job, tiling))
    rank.runner.ready(0)
    rank.engine.finish(0)
    assert rank.arrived == []
    rank.engine.finish(1)
    assert rank.arrived == [0]


def test_a_tensor_without_bytes_arrives_at_once() -> None:
    rank = Rank(make_plan(4, 0, credit=4))
    rank.runner.ready(1)
    assert (rank.engine.started, rank.arrived) == ([], [1])
    rank.runner.ready(0)
    assert rank.arrived == [1]


def test_a_tensor_without_bytes_that_never_became_ready_arrives_when_the_step_ends() -> None:
    rank = Rank(make_plan(4, 0, 0))
    rank.runner.ready(1)
    rank.runner.end_step()
    assert rank.arrived == [1, 2]
    rank.engine.finish(0)
    assert rank.arrived == [1, 2, 0]
    rank.runner.end_step()
    assert rank.arrived == [1, 2, 0, 1, 2]


def test_two_steps_are_alike() -> None:
    rank = Rank(make_plan(8, 4, piece=4, credit=4))
    for step in range(2):
        assert (rank.runner.step, rank.runner.at_boundary) == (step, True)
        rank.runner.ready(1)
        assert not rank.runner.at_boundary
        rank.runner.ready(0)
        rank.runner.end_step()
        rank.engine.finish(2, 0, 1)
    assert rank.engine.started == [2, 0, 1] * 2
    assert rank.arrived == [1, 0] * 2
    assert (rank.runner.step, rank.runner.at_boundary) == (2, True)


def test_gradients_that_never_come_are_sent_when_the_step_ends() -> None:
    rank = Rank(make_plan(4, 4))
    rank.runner.ready(1)
    rank.runner.end_step()
    assert rank.engine.started == [1, 0]


def test_a_plan_switches_at_the_boundary() -> None:
    rank = Rank(make_plan(8, 8))
    rank.runner.ready(1)
    rank.runner.configure(make_plan(8, 8, piece=4))
    rank.runner.end_step()
    assert rank.engine.started == [1, 0]  # the old blocks
    rank.engine.finish(1, 0)
    rank.runner.ready(1)
    assert rank.engine.started == [1, 0, 2, 3]  # the new ones
    rank.engine.finish(2)
    assert rank.arrived == [1, 0]
    rank.engine.finish(3)
    assert rank.arrived == [1, 0, 1]


def test_at_a_boundary_a_plan_switches_at_once() -> None:
    rank = Rank(make_plan(8, 8))
    rank.runner.configure(make_plan(8, 8, piece=4))
    rank.runner.ready(0)
    assert rank.engine.started == [0, 1]
    rank.engine.finish(1)
    assert rank.arrived == []
    rank.engine.finish(0)
    assert rank.arrived == [0]


def test_a_plan_switches_though_there_is_nothing_to_send() -> None:
    rank = Rank(make_plan(0, 0))
    rank.runner.ready(0)
    rank.runner.configure(make_plan(8, 8))  # of another model, so that it shows
    rank.runner.end_step()
    rank.runner.ready(1)
    assert (rank.runner.step, rank.arrived, rank.engine.started) == (1, [0, 1], [1])


@pytest.mark.parametrize("after_sent", [False, True])
def test_a_failure_is_told_and_nothing_arrives(after_sent: bool) -> None:
    rank, error = Rank(make_plan(4, 4, credit=4)), ConnectionError("rank 2 is gone")
    rank.runner.ready(1)
    rank.runner.ready(0)
    if after_sent:
        rank.engine.sent(1)
    rank.engine.done(1, error)
    assert rank.failed == [(1, error)]
    assert rank.arrived == []
    assert not rank.runner.at_boundary


def test_callbacks_may_come_back_into_the_runner() -> None:
    """`arrived` and `failed` are called outside the lock: what they call must not wait for it."""
    plan, seen = make_plan(4, 4, 0, credit=4), []
    engine = HandEngine()

    def arrived(tensors: Collection[int]) -> None:
        seen.extend((tensor, runner.at_boundary) for tensor in tensors)
        if 1 in tensors:
            runner.ready(0)

    def failed(block: Block, error: Exception) -> None:
        seen.append((str(error), runner.at_boundary))
        runner.end_step()

    runner = Runner(plan, engine, clock=lambda: 0.0, arrived=arrived, failed=failed)
    runner.ready(1)
    engine.finish(1)
    assert engine.started == [1, 0]
    engine.done(0, ConnectionError("gone"))
    assert seen == [(1, False), ("gone", False), (2, False)]


def test_engines_call_from_threads_of_their_own() -> None:
    """Four threads finish the blocks of 20 steps, in whatever order they come to them."""
    sizes, steps = [64] * 16, 20
    work: list[int | None] = []
    arrived: list[int] = []
    news = threading.Condition()

    class Threaded(HandEngine):
        def start(self, block: Block, sent: Sent, done: Done) -> None:
            super().start(block, sent, done)
            with news:
                work.append(block.index)
                news.notify_all()

    def serve() -> None:
        while True:
            with news:
                news.wait_for(lambda: work)
                index = work.pop()
            if index is None:
                return
            engine.finish(index)
            with news:
                news.notify_all()

    engine = Threaded()
    plan = make_plan(*sizes, piece=8, credit=32)
    runner = Runner(plan, engine, clock=lambda: 0.0, arrived=arrived.extend, failed=fail)
    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for step in range(steps):
        for tensor in reversed(range(len(sizes))):
            runner.ready(tensor)
        runner.end_step()
        with news:
            assert news.wait_for(lambda now=step + 1: runner.step == now, timeout=60)
    with news:
        work.extend([None] * len(threads))
        news.notify_all()
    for thread in threads:
        thread.join()
    assert sorted(engine.started) == sorted(list(range(len(plan.tiling))) * steps)
    assert sorted(arrived) == sorted(list(range(len(sizes))) * steps)


def fail(block: Block, error: Exception) -> None:
    raise AssertionError(f"block {block.index} failed") from error


def test_the_trace_says_when_a_block_was_ready_started_sent_and_done() -> None:
    rank = Rank(make_plan(4, 8, credit=4))
    rank.at(1.0, rank.runner.ready, 1)
    rank.at(2.0, rank.runner.ready, 0)
    rank.at(3.0, rank.runner.end_step)
    rank.at(5.0, rank.engine.sent, 1)
    rank.at(6.0, rank.engine.sent, 0)
    rank.at(7.0, rank.engine.done, 0)
    rank.at(8.0, rank.engine.done, 1)
    first, second = rank.trace.blocks
    assert (first.rank, first.step, first.block, first.nbytes, first.layers) == (3, 0, 0, 4, (0,))
    assert (first.ready_s, first.start_s, first.sent_s, first.done_s) == (2.0, 5.0, 6.0, 7.0)
    assert (second.block, second.nbytes, second.layers) == (1, 8, (1,))
    assert (second.ready_s, second.start_s, second.sent_s, second.done_s) == (1.0, 1.0, 5.0, 8.0)


def test_a_trace_begins_and_ends_between_two_steps() -> None:
    """It has the blocks of the steps between, with the moments at which they were ready."""
    rank, later = Rank(make_plan(4, 4)), Trace()
    for step, trace in enumerate((None, later, None)):
        rank.runner.record(trace)
        for tensor in (1, 0):
            rank.at(10.0 * step + 1, rank.runner.ready, tensor)
        rank.at(10.0 * step + 5, rank.runner.end_step)
        rank.engine.finish(0, 1)
        assert rank.runner.tell()
    assert rank.trace.blocks == []
    assert [(block.step, block.block, block.ready_s) for block in later.blocks] == [(1, 0, 11.0), (1, 1, 11.0)]


def test_a_fused_block_is_ready_with_its_last_tensor() -> None:
    job = make_job(1, 1, 1)
    rank = Rank(Plan(job, cut_and_fuse(job.gradients, 12)))
    for now, tensor in ((1.0, 2), (2.0, 0), (4.0, 1)):
        rank.at(now, rank.runner.ready, tensor)
    rank.engine.finish(0)
    assert (rank.trace.blocks[0].ready_s, rank.trace.blocks[0].layers) == (4.0, (0, 1, 2))


def test_what_never_came_was_ready_when_the_step_ended_in_every_step() -> None:
    rank = Rank(make_plan(4, 4))
    for step, missing in ((0, ()), (1, (0,)), (2, (0, 1))):
        for tensor in {0, 1} - set(missing):
            rank.at(10.0 * step + 1, rank.runner.ready, tensor)
        rank.at(10.0 * step + 5, rank.runner.end_step)
        rank.engine.finish(0, 1)
    ready = {(block.step, block.block): block.ready_s for block in rank.trace.blocks}
    assert ready == {(0, 0): 1.0, (0, 1): 1.0, (1, 0): 15.0, (1, 1): 11.0, (2, 0): 25.0, (2, 1): 25.0}


def test_a_trace_is_not_needed() -> None:
    engine = HandEngine()
    runner = Runner(make_plan(4), engine, clock=lambda: 0.0, arrived=lambda _: None, failed=fail)
    runner.ready(0)
    runner.end_step()
    engine.finish(0)
    assert runner.step == 1


def test_two_halves_pass_as_one_all_reduce() -> None:
    """So that rates of links are the same whatever way bytes travel."""
    job = make_job(100)
    rank = Rank(Plan(job, Tiling.of(job.gradients, segments([(0, 0, 100)], [(0, 0, 100)]), gathers=[-1, 0])))
    rank.runner.ready(0)
    for half in (0, 1):
        rank.now += 1.0
        rank.engine.finish(half)
    assert [each[:3] for each in rank.runner.passages] == [(200.0, 1.0, True), (200.0, 1.0, True)]


def test_a_passage_that_a_device_tells_late_counts_to_no_later_window(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(make_plan(4))
    late: list[Callable[[], None]] = []
    monkeypatch.setattr(rank.engine, "time", lambda block, seen, timed: late.append(partial(timed, seen)))
    for step in range(2):
        rank.at(10.0 * step + 1.0, rank.runner.ready, 0)
        rank.runner.end_step()
        rank.at(10.0 * step + 2.0 + step, rank.engine.finish, 0)
        if not step:
            rank.runner.forget()
    for tell in late:
        tell()
    assert [each.seconds for each in rank.runner.passages] == [2.0]


def test_a_link_is_busy_while_anything_is_under_way() -> None:
    """Whatever the order in which blocks end: here the one that started last is done first."""
    rank = Rank(make_plan(4, 4))
    rank.at(1.0, rank.runner.ready, 1)
    rank.at(3.0, rank.runner.ready, 0)
    rank.at(4.0, rank.engine.finish, 0)
    rank.at(7.0, rank.engine.finish, 1)
    assert [(each.seconds, each.alone) for each in rank.runner.passages] == [(3.0, False), (3.0, False)]


def test_a_passage_says_what_was_in_flight_when_it_had_started() -> None:
    """Blocks that start at once are in flight one after the other; a credit that has come back is not."""
    rank = Rank(make_plan(4, 4, 4, credit=12))
    rank.at(1.0, rank.runner.ready, 2)
    rank.at(1.0, rank.runner.ready, 1)
    rank.at(2.0, rank.engine.sent, 2)
    rank.at(3.0, rank.runner.ready, 0)
    for block in (2, 1, 0):
        rank.at(4.0, rank.engine.done if block == 2 else rank.engine.finish, block)
    weigh = rank.runner.passages[0].nbytes
    assert [each.in_flight / weigh for each in rank.runner.passages] == [1, 2, 2]


def test_a_block_that_starts_when_the_one_before_is_sent_travels_alone() -> None:
    rank = Rank(make_plan(4, 4, credit=4))
    rank.at(1.0, rank.runner.ready, 1)
    rank.at(2.0, rank.runner.ready, 0)
    rank.at(4.0, rank.engine.sent, 1)
    assert rank.engine.started == [1, 0]
    rank.at(4.1, rank.engine.done, 1)
    rank.at(7.0, rank.engine.finish, 0)
    assert [each.alone for each in rank.runner.passages] == [True, True]


def test_a_block_that_comes_back_while_the_next_one_leaves_does_not() -> None:
    """As on parameter servers, where pulls go beside pushes."""
    rank = Rank(make_plan(4, 4, credit=4))
    rank.at(1.0, rank.runner.ready, 1)
    rank.at(2.0, rank.runner.ready, 0)
    rank.at(4.0, rank.engine.sent, 1)
    rank.at(6.0, rank.engine.done, 1)
    assert [each.alone for each in rank.runner.passages] == [False]


def test_the_latest_blocks_are_those_done_last_and_those_under_way() -> None:
    rank = Rank(make_plan(4, 4, credit=8))
    for step in range(40):
        rank.now = float(step)
        rank.runner.ready(1)
        rank.now += 0.25
        rank.runner.ready(0)
        if step < 39:
            rank.engine.finish(1, 0)
            rank.runner.end_step()
    rank.now = 39.5
    rank.engine.sent(1)
    latest = rank.runner.latest
    assert len(latest) == 64
    assert [(each.step, each.block.index) for each in latest[-4:]] == [(38, 1), (38, 0), (39, 1), (39, 0)]
    assert [each[3:] for each in latest[-3:]] == [(38.25, 38.25, 38.25), (39.0, 39.5, None), (39.25, None, None)]
    rank.engine.done(1)
    assert [(each.block.index, each.done_s) for each in rank.runner.latest[-2:]] == [(1, 39.5), (0, None)]


def test_of_many_blocks_under_way_those_that_started_first_are_the_latest() -> None:
    rank = Rank(make_plan(*[4] * 100))
    for tensor in reversed(range(100)):
        rank.now += 1
        rank.runner.ready(tensor)
    assert [each.block.index for each in rank.runner.latest] == list(range(99, 35, -1))
    assert rank.runner.missing == []
