"""What every engine must do."""

import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from autobyte.config import Config
from autobyte.job import Cluster, Job, Layer, Model
from autobyte.job import Tensor as Described
from autobyte.scheduler.block import Block, Segment
from autobyte.scheduler.engines.base import Engine
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies import make_plan
from autobyte.scheduler.runner import Runner
from autobyte.testing.fakes import Faults, FaultyEngine

DTYPES = ("float32", "float64", "float16", "bfloat16")


class EngineContract:
    """What the scheduler relies on. Run by pytest for every class that inherits it.

    >>> class TestMine(EngineContract):
    ...     def connect(self, buffers):          # one engine for each rank, all in this process
    ...         return [Mine(each, rank=rank) for rank, each in enumerate(buffers)]
    """

    ranks: ClassVar[tuple[int, ...]] = (2, 3)
    #: whether `sent` comes without any other rank's doing; only then may ranks start blocks in different orders
    sends_alone: ClassVar[bool] = False
    steps: ClassVar[int] = 100  #: with jitter
    timeout_s: ClassVar[float] = 60.0

    def connect(self, buffers: list[Buffers]) -> list[Engine]:
        """Make one engine for each rank's buffers."""
        raise NotImplementedError

    def test_averages_blocks_of_every_kind(self) -> None:
        """Views, parts of tensors, fused blocks, fewer elements than ranks; every dtype; the rest stays untouched."""
        kinds: list[tuple[Segment, ...]] = [
            (Segment(0, 0, 1000),),
            (Segment(0, 10, 777),),
            (Segment(1, 0, 1),),
            (Segment(0, 990, 1000), Segment(1, 0, 5), Segment(2, 3, 300)),
        ]
        for size in self.ranks:
            for dtype in DTYPES:
                with self._network(size, dtype=dtype) as ranks:
                    for segments in kinds:
                        ranks.renew()
                        expected = ranks.averages(segments)
                        ranks.move(_block(0, segments))
                        ranks.compare(expected, _eps(dtype))

    def test_compresses_on_the_wire(self) -> None:
        """Gradients travel as halves, and arrive in their own dtype."""
        for wire_dtype in ("float16", "bfloat16"):
            with self._network(self.ranks[-1], wire_dtype=wire_dtype) as ranks:
                for segments in [(Segment(0, 10, 777),), (Segment(0, 0, 1000), Segment(1, 0, 5))]:
                    ranks.renew()
                    expected = ranks.averages(segments)
                    ranks.move(_block(0, segments))
                    ranks.compare(expected, _eps(wire_dtype))

    def test_start_returns_at_once(self) -> None:
        """It waits for no other rank."""
        with self._network(self.ranks[0]) as ranks:
            block, expected = _block(0, (Segment(0, 0, 1000),)), ranks.averages((Segment(0, 0, 1000),))
            began = time.monotonic()
            ranks.start(0, block)
            assert time.monotonic() - began < 1.0
            time.sleep(0.1)
            assert "done" not in ranks.events(0, block)
            for rank in range(1, self.ranks[0]):
                ranks.start(rank, block)
            ranks.wait()
            ranks.compare(expected, _eps("float32"))

    def test_credit_needs_no_other_rank(self) -> None:
        """Where an engine says so: `sent` has come although nobody else has started the block."""
        if self.sends_alone:
            with self._network(self.ranks[-1]) as ranks:
                block = _block(0, (Segment(0, 0, 1000),))
                ranks.start(0, block)
                ranks.wait_for(lambda: ranks.events(0, block) == ["sent"])
                for rank in range(1, self.ranks[-1]):
                    ranks.start(rank, block)
                ranks.wait()

    def test_calls_back_once_each_sent_first(self) -> None:
        """For many blocks at once, more than any pool of threads has."""
        with self._network(self.ranks[-1]) as ranks:
            blocks = [_block(index, (Segment(0, 20 * index, 20 * index + 20),)) for index in range(50)]
            expected = ranks.averages((Segment(0, 0, 1000),))
            for block in blocks:
                for rank in range(self.ranks[-1]):
                    ranks.start(rank, block)
            ranks.wait()
            time.sleep(0.05)
            for block in blocks:
                for rank in range(self.ranks[-1]):
                    assert ranks.events(rank, block) == ["sent", "done"]
            ranks.compare(expected, _eps("float32"))

    def test_may_be_started_from_its_callbacks(self) -> None:
        """As the core does: the next block starts when credit comes back, on an engine's thread."""
        with self._network(self.ranks[0]) as ranks:
            blocks = [_block(index, (Segment(0, 20 * index, 20 * index + 20),)) for index in range(50)]
            expected = ranks.averages((Segment(0, 0, 1000),))
            following = dict(zip([block.index for block in blocks], blocks[1:], strict=False))
            ranks.on_sent = lambda rank, block: (
                ranks.start(rank, following[block.index]) if block.index in following else None
            )
            for rank in range(self.ranks[0]):
                ranks.start(rank, blocks[0])
            ranks.wait_for(lambda: all(ranks.events(rank, blocks[-1]) for rank in range(self.ranks[0])))
            ranks.wait()
            ranks.compare(expected, _eps("float32"))

    def test_moves_the_same_block_again_and_again(self) -> None:
        """Steps do not mix, however fast one rank is."""
        with self._network(self.ranks[-1]) as ranks:
            block = _block(0, (Segment(0, 0, 1000), Segment(1, 0, 5)))
            for _ in range(30):
                ranks.renew()
                expected = ranks.averages(block.segments)
                ranks.move(block)
                ranks.compare(expected, _eps("float32"))

    def test_moves_more_than_any_buffer_holds(self) -> None:
        """What comes in pieces is no sum before the last one, however the pieces of several ranks interleave."""
        numel, count = 1_000_000, 4
        with self._network(self.ranks[-1], sizes=(numel,) * count) as ranks:
            blocks = [_block(index, (Segment(index, 0, numel),)) for index in range(count)]
            for _ in range(5):
                ranks.renew()
                expected = ranks.averages([segment for block in blocks for segment in block.segments])
                for rank in range(self.ranks[-1]):
                    for block in blocks:
                        ranks.start(rank, block)
                ranks.wait()
                ranks.compare(expected, _eps("float32"))

    def test_says_when_a_rank_is_gone(self) -> None:
        """What waits for it fails, what is started afterwards too, and close returns."""
        with self._network(self.ranks[-1]) as ranks:
            ranks.move(_block(0, (Segment(0, 0, 1000),)))
            waiting, later = _block(1, (Segment(1, 0, 5),)), _block(2, (Segment(2, 0, 10),))
            for rank in range(self.ranks[-1] - 1):
                ranks.start(rank, waiting)
            threading.Thread(target=ranks.engines[-1].close, daemon=True).start()  # may wait for the others' goodbye
            ranks.wait_for(lambda: all("failed" in ranks.events(r, waiting) for r in range(self.ranks[-1] - 1)))
            ranks.start(0, later)
            ranks.wait_for(lambda: "failed" in ranks.events(0, later))

    def test_ends_its_threads(self) -> None:
        """Nothing is left of an engine that was closed."""
        before = threading.active_count()
        with self._network(self.ranks[-1]) as ranks:
            ranks.move(_block(0, (Segment(0, 0, 1000),)))
        until = time.monotonic() + self.timeout_s
        while threading.active_count() > before and time.monotonic() < until:
            time.sleep(0.01)
        assert threading.active_count() <= before

    def test_never_deadlocks_under_jitter(self) -> None:
        """Whole schedules, at the smallest window and a larger one, with random times before everything."""
        for size in self.ranks:
            for credit in (1, 4):
                for ordered in (True, False) if self.sends_alone else (True,):
                    self._jitter(size, credit, ordered=ordered)

    def _jitter(self, size: int, credit: int, *, ordered: bool) -> None:
        plan = _plan(size, credit)
        plan = plan if ordered else replace(plan, sequence=None)
        with self._network(size, sizes=plan.job.gradients.numel.tolist()) as ranks:
            threads = [_Rank(ranks, rank, plan, self.steps, self.timeout_s) for rank in range(size)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(self.timeout_s)
            stuck = [thread.where for thread in threads if thread.is_alive()]
            assert not stuck, f"{size} ranks, credit {credit}X: {stuck}"
            for thread in threads:
                if thread.error is not None:
                    raise thread.error

    @contextmanager
    def _network(
        self,
        size: int,
        *,
        sizes: Sequence[int] = (1000, 5, 300),
        dtype: str = "float32",
        wire_dtype: str | None = None,
    ) -> "Iterator[_Network]":
        buffers = [Buffers(tensors=len(sizes), scale=1 / size, wire_dtype=wire_dtype) for _ in range(size)]
        engines = self.connect(buffers)
        try:
            yield _Network(buffers, engines, sizes, getattr(torch, dtype), self.timeout_s)
        finally:  # at once, as in training: each may wait for the others' goodbye
            closing = [threading.Thread(target=engine.close) for engine in engines]
            for thread in closing:
                thread.start()
            for thread in closing:
                thread.join(self.timeout_s)


class _Network:
    """Ranks with gradients, and what their engines have called back."""

    def __init__(
        self,
        buffers: list[Buffers],
        engines: list[Engine],
        sizes: Sequence[int],
        dtype: torch.dtype,
        timeout_s: float,
    ) -> None:
        self.engines = engines
        self.buffers = buffers
        self.gradients: list[list[Tensor]] = []
        self.on_sent: Callable[[int, Block], object] = lambda rank, block: None
        self._sizes, self._dtype, self._timeout_s = sizes, dtype, timeout_s
        self._random = torch.Generator().manual_seed(0)
        self._events: dict[tuple[int, int], list[str]] = {}
        self._changed = threading.Condition()
        self.renew()

    def renew(self) -> None:
        """New random gradients on all ranks."""
        draw = [[torch.randn(n, generator=self._random) for n in self._sizes] for _ in self.engines]
        self.gradients = [[tensor.to(self._dtype) for tensor in rank] for rank in draw]
        for buffers, gradients in zip(self.buffers, self.gradients, strict=True):
            for index, gradient in enumerate(gradients):
                buffers.put(index, gradient)

    def averages(self, segments: Sequence[Segment]) -> list[list[Tensor]]:
        """What all gradients should be after a block has travelled, in double precision."""
        expected = [[gradient.double() for gradient in rank] for rank in self.gradients]
        for segment in segments:
            rows = torch.stack(
                [rank[segment.tensor][segment.start : segment.stop].double() for rank in self.gradients]
            )
            for rank in expected:
                rank[segment.tensor][segment.start : segment.stop] = rows.mean(dim=0)
        return expected

    def start(self, rank: int, block: Block) -> None:
        """Start a block on one rank."""
        self._events[rank, block.index] = []
        self.engines[rank].start(
            block,
            lambda block: self._on(rank, block, "sent"),
            lambda block, error: self._on(rank, block, "done" if error is None else "failed"),
        )

    def move(self, block: Block) -> None:
        """Start a block on all ranks, and wait."""
        for rank in range(len(self.engines)):
            self.start(rank, block)
        self.wait()

    def events(self, rank: int, block: Block) -> list[str]:
        """What was called back for a block."""
        return list(self._events.get((rank, block.index), []))

    def wait(self) -> None:
        """Until everything that was started is done."""
        self.wait_for(lambda: all("done" in events for events in self._events.values()))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until something holds; a failure of the test if it takes too long."""
        with self._changed:
            assert self._changed.wait_for(condition, self._timeout_s), f"called back so far: {self._events}"

    def compare(self, expected: list[list[Tensor]], eps: float) -> None:
        """Gradients are what they should be, within the rounding of as many additions."""
        for ours, theirs in zip(self.gradients, expected, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a.double(), b, rtol=0, atol=2 * len(self.engines) * eps)

    def _on(self, rank: int, block: Block, event: str) -> None:
        with self._changed:
            self._events[rank, block.index].append(event)
            self._changed.notify_all()
        if event == "sent":
            self.on_sent(rank, block)


class _Rank(threading.Thread):
    """One rank that trains: gradients become ready at random times, sums are compared at every step."""

    def __init__(self, network: _Network, rank: int, plan: Plan, steps: int, timeout_s: float) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self.where = ""
        self._network, self._rank, self._plan, self._steps, self._timeout_s = network, rank, plan, steps, timeout_s
        self._random = random.Random(rank)
        self._changed = threading.Condition()
        self._missing: set[int] = set()
        faults = Faults().jitter(1e-4, seed=rank)
        engine = FaultyEngine(network.engines[rank], faults, rank=rank, step=lambda: self.runner.step)
        self.runner = Runner(plan, engine, clock=time.perf_counter, arrived=self._arrived, failed=self._failed)

    def run(self) -> None:
        """Train."""
        try:
            for step in range(self._steps):
                self.where = f"rank {self._rank} in step {step}"
                self._step(step)
        except BaseException as error:
            self.error = error

    def _step(self, step: int) -> None:
        tensors = list(range(len(self._plan.job.gradients)))
        self._missing = set(tensors)
        gradients = self._network.gradients[self._rank]
        for tensor in reversed(tensors):
            if self._random.random() < 0.3:
                time.sleep(self._random.random() * 1e-3)
            gradients[tensor].fill_(self._value(step, tensor, self._rank))
            self.runner.ready(tensor)
        self.runner.end_step()
        with self._changed:
            over = self._changed.wait_for(lambda: not self._missing or self.error, self._timeout_s)
        assert over and self.error is None, f"{self.where}: tensors {self._missing} did not arrive; {self.error}"
        size = len(self._network.engines)
        for tensor in tensors:
            mean = sum(self._value(step, tensor, rank) for rank in range(size)) / size
            assert torch.allclose(gradients[tensor], torch.tensor(mean)), f"{self.where}: tensor {tensor} is wrong"

    def _value(self, step: int, tensor: int, rank: int) -> float:
        return 0.5 * step + 2.0 * tensor + 8.0 * rank

    def _arrived(self, tensors: Collection[int]) -> None:
        with self._changed:
            self._missing.difference_update(tensors)
            self._changed.notify_all()

    def _failed(self, block: Block, error: Exception) -> None:
        with self._changed:
            self.error = error
            self._changed.notify_all()


def _block(index: int, segments: tuple[Segment, ...]) -> Block:
    return Block(index, segments, sum(segment.stop - segment.start for segment in segments) * 4)


def _eps(dtype: str) -> float:
    return float(torch.finfo(getattr(torch, dtype)).eps)


def _plan(ranks: int, credit: int) -> Plan:
    """Five layers in a dozen blocks, small tensors fused, front layers first, in one order for all ranks."""
    sizes = (300, 7, 64, 200, 5)
    layers = tuple(Layer(f"l{i}", (Described(f"w{i}", n, "float32", i),), 0.0, 0.0) for i, n in enumerate(sizes))
    job = Job(Model("small", layers, batch_size=1), Cluster(ranks))
    plan = make_plan(job, Config(256, 256 * credit, knobs={"fusion": 1.0}))
    return plan.with_sequence(list(range(len(plan.tiling)))[::-1])
