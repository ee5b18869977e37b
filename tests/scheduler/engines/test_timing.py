"""Blocks on a stream are timed by their events: closed forms of known durations, on the host's clock."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from jobs import make_plan

from autobyte.scheduler.engines.base import Moments
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.ordered import Ordered
from autobyte.scheduler.engines.streams import HostEvent, HostStreams
from autobyte.scheduler.engines.timing import BlockEvents, DeviceTimes
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.runner import Runner
from autobyte.trace import Trace


class Alone:
    """The ranks of a job of one, as a backend is; a collective takes as long as a test says.

    Args:
        collective: is called for each.
    """

    def __init__(self, collective: Callable[[], None]) -> None:
        self._collective = collective

    def size(self) -> int:
        return 1

    def allreduce(self, *_: object) -> Any:
        self._collective()
        return SimpleNamespace(wait=lambda: None)


class OneRank:
    """A runner on streams in host memory."""

    def __init__(self, plan: Plan, collective: Callable[[], None]) -> None:
        self.streams = HostStreams()
        sizes = plan.job.gradients.numel.tolist()
        self.buffers = Buffers(tensors=len(sizes), scale=None, streams=self.streams)
        self.gradients = [torch.ones(size) for size in sizes]
        self.engine = Ordered(self.buffers, Alone(collective), clock=time.perf_counter)
        self.trace = Trace()
        self.failed: list[Exception] = []
        self.runner = Runner(
            plan,
            self.engine,
            clock=time.perf_counter,
            arrived=lambda _: None,
            failed=lambda block, error: self.failed.append(error),
            trace=self.trace,
        )

    def step(self) -> None:
        for tensor in reversed(range(len(self.gradients))):
            self.buffers.put(tensor, self.gradients[tensor])
            self.runner.ready(tensor)
        self.runner.end_step()

    def drain(self) -> None:
        """Wait for the stream, and let the engine look."""
        self.streams.wait(self.streams.enqueue(lambda: None, []))
        self.engine._times.read()


def test_blocks_take_what_they_take_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host enqueues them at once: its clock would say that none takes any time."""
    now, gate = [100.0], threading.Semaphore(0)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def take(seconds: float) -> None:
        now[0] += seconds

    def backward() -> None:
        gate.acquire(timeout=60)
        take(4.0)

    lengths = iter((3.0, 5.0, 2.0) * 2)
    rank = OneRank(make_plan(4, 8, 16), lambda: take(next(lengths)))
    for _ in range(2):
        rank.streams.compute(backward)  # before all gradients
        rank.step()
        assert rank.runner.at_boundary
        gate.release()
        rank.drain()
    told = [(span.step, span.block, span.ready_s, span.start_s, span.done_s) for span in rank.trace.blocks]
    assert told == [
        (0, 2, 104.0, 104.0, 107.0),
        (0, 1, 104.0, 107.0, 112.0),
        (0, 0, 104.0, 112.0, 114.0),
        (1, 2, 118.0, 118.0, 121.0),
        (1, 1, 118.0, 121.0, 126.0),
        (1, 0, 118.0, 126.0, 128.0),
    ]
    assert [tuple(passage) for passage in rank.runner.passages] == [
        (nbytes, seconds, True, nbytes) for nbytes, seconds in [(16, 3.0), (8, 5.0), (4, 2.0)] * 2
    ]
    rank.engine.close()


def test_a_device_that_stands_still_keeps_nobody_waiting() -> None:
    gate = threading.Event()
    rank = OneRank(make_plan(4, 8), lambda: (gate.wait(60), None)[1])
    rank.step()
    rank.step()
    assert not rank.runner.passages
    latest = rank.runner.latest
    assert [(each.step, each.block.index, each.done_s) for each in latest] == [
        (step, index, None) for step in range(2) for index in (1, 0)
    ]
    gate.set()
    rank.drain()
    assert len(rank.runner.passages) == 4
    assert all(each.done_s is not None for each in rank.runner.latest)
    rank.engine.close()


def test_nothing_piles_up_over_a_thousand_steps() -> None:
    rank, most = OneRank(make_plan(4, 8, 4, 4), lambda: None), 0
    for _ in range(1000):
        rank.step()
        rank.streams.wait(rank.streams.enqueue(lambda: None, []))
        most = max(most, len(rank.engine._times), len(rank.runner._untimed), len(rank.engine._events))
    assert most <= 4  # blocks of a step
    rank.drain()
    assert len(rank.engine._times) == 0
    rank.engine.close()


def test_of_blocks_that_fail_nothing_is_told_and_the_others_go_on() -> None:
    broken = threading.Event()

    def collective() -> None:
        if broken.is_set():
            raise ConnectionError("rank 1 is gone")

    rank = OneRank(make_plan(4, 8), collective)
    rank.step()
    rank.drain()
    broken.set()
    rank.step()
    with pytest.raises(ConnectionError, match="rank 1 is gone"):
        rank.buffers.follow(0)
    broken.clear()
    for _ in range(10):
        rank.step()
    rank.drain()
    assert len(rank.runner.passages) == 2  # of the first step
    assert not rank.failed and len(rank.engine._times) == 0
    assert rank.runner.latest[2].step == 1 and rank.runner.latest[2].done_s is None  # who looks sees where it ended
    rank.engine.close()


def moment(at_s: float) -> HostEvent:
    event = HostEvent()
    event.happen()
    event._at_s = at_s
    return event


def test_times_move_where_a_block_would_have_begun_before_it_was_enqueued() -> None:
    """The reference was recorded at 100 s, and happened later; so does the host find out at the second block."""
    times, told = DeviceTimes(moment(0.0), 100.0), list[Moments]()
    for began_s, over_s, enqueued_s in ((10.0, 11.0, 105.0), (20.0, 24.0, 123.0), (24.0, 26.0, 125.0)):
        events = BlockEvents([moment(began_s - 2), moment(began_s - 1)], [moment(began_s)], moment(over_s))
        times.add(events, Moments(0.0, enqueued_s, 0.0, 0.0, 0.0, alone=False), told.append)
    times.read()
    assert [(each.ready_s, each.start_s, each.done_s, each.busy_s) for each in told] == [
        (109.0, 110.0, 111.0, 1.0),
        (122.0, 123.0, 127.0, 4.0),
        (126.0, 127.0, 129.0, 2.0),
    ]
    assert all(each.alone and each.sent_s == each.done_s for each in told)
