"""Blocks on streams, whatever is late: nobody reads before it was written, and every average is the plain mean."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._C._profiler import _ExperimentalConfig

from autobyte.config import Config
from autobyte.exchange.planning import agreed_plan
from autobyte.internals import own_gloo
from autobyte.job import Cluster, Job, Layer, Model
from autobyte.job import Tensor as Described
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.ordered import Ordered
from autobyte.scheduler.engines.streams import Event, HostStreams
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies import POLICIES
from autobyte.scheduler.runner import Runner

LATE_S = 2e-3  # at most, before every kernel, every block and every call of a rank
SIZES = (2, 3)


@pytest.fixture(scope="module")
def backends() -> Iterator[dict[int, list[Any]]]:
    """Ranks in this process, connected once for all plans."""

    def connect(size: int) -> list[Any]:
        store, limit = dist.HashStore(), timedelta(seconds=30)
        with ThreadPoolExecutor(size) as pool:
            make = [
                pool.submit(own_gloo, f"of {size}", rank=rank, size=size, timeout=limit, store=store)
                for rank in range(size)
            ]
            return [each.result() for each in make]

    made = {size: connect(size) for size in SIZES}
    yield made
    made.clear()


@dataclass(frozen=True)
class Story:
    """A model's gradients under a plan, and how late everything is.

    Args:
        plan: for so many ranks.
        dtype: of the gradients.
        steps: how many.
        seed: of values and delays.
        late: which ranks' kernels, blocks and calls are late, at random.
        reused: whether gradients stay in their memory from step to step.
        kernels_s: if given, every kernel of a late rank takes so long, and nothing else is late (s).
    """

    plan: Plan
    dtype: torch.dtype
    steps: int
    seed: int
    late: tuple[bool, ...]
    reused: bool
    kernels_s: float | None = None

    @property
    def size(self) -> int:
        """How many ranks."""
        return len(self.late)

    def gradient(self, rank: int, step: int, tensor: int) -> Tensor:
        """What a rank's backward pass computes."""
        generator = torch.Generator().manual_seed(hash((self.seed, rank, step, tensor)) % 2**31)
        return torch.randn(int(self.plan.job.gradients.numel[tensor]), generator=generator).to(self.dtype)

    def mean(self, step: int, tensor: int) -> Tensor:
        """What every rank is to read."""
        rows = [self.gradient(rank, step, tensor).double() for rank in range(self.size)]
        return torch.stack(rows).mean(dim=0)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Every policy, few and small tensors of one dtype, fused or cut or both, whole or in halves."""
    size = draw(st.sampled_from(SIZES))
    dtype = draw(st.sampled_from(["float32", "float32", "float16", "bfloat16", "float64"]))
    numels = draw(st.lists(st.lists(st.sampled_from([0, 1, 7, 40, 300]), max_size=3), min_size=1, max_size=4))
    layers = tuple(
        Layer(f"{i}", tuple(Described(f"{i}.{j}", numel, dtype, i) for j, numel in enumerate(tensors)), 1e-3, 2e-3)
        for i, tensors in enumerate([*numels, [5]])
    )
    wire = draw(st.sampled_from([None, None, "bfloat16"]))
    job = Job(Model("random", layers, 1), Cluster(size, up_bytes_per_s=(1e9,), down_bytes_per_s=(1e9,)), 1, wire)
    policy = draw(st.sampled_from([*POLICIES.names(), "bytescheduler", "dear", "dear"]))
    knobs = {"fusion": 1.0} if policy == "bytescheduler" and draw(st.booleans()) else {}
    partition = draw(st.sampled_from([16, 100, 1000]))
    plan = agreed_plan(job, Config(partition, partition * draw(st.sampled_from([1, 4])), policy, knobs))
    late = tuple(draw(st.booleans()) for _ in range(size))
    numbers = st.integers(0, 2**20)
    return Story(plan, getattr(torch, dtype), draw(st.integers(1, 3)), draw(numbers), late, draw(st.booleans()))


class Rank:
    """One rank: a backward pass gives gradients, the last ones first; the next forward pass reads averages in order.

    Args:
        story: what it trains.
        rank: its place.
        backend: connects it.
        buffers: the kind; one that forgets something, say.
        follows: whether layers wait for their averages.
    """

    def __init__(self, story: Story, rank: int, backend: Any, buffers: type[Buffers], *, follows: bool) -> None:
        self._story, self._rank, self._follows = story, rank, follows
        self._random = Random(hash((story.seed, rank)))
        self._streams = HostStreams(hide=True, late=self._late, timeout_s=30.0)
        self._tensors = len(story.plan.job.gradients)
        wire = story.plan.job.wire_dtype
        scale = 1 / story.size
        self._buffers = buffers(tensors=self._tensors, scale=scale, wire_dtype=wire, streams=self._streams)
        self._engine = Ordered(self._buffers, backend)
        self._engine.names = lambda: story.plan.job.gradients.names
        self._runner = Runner(
            story.plan, self._engine, clock=time.perf_counter, arrived=lambda _: None, failed=_fail, rank=rank
        )
        self._memory: dict[int, Tensor] = {}

    def train(self) -> list[list[Tensor]]:
        """What it has read, step by step."""
        try:
            return [self._step(step) for step in range(self._story.steps)]
        finally:
            until = time.monotonic() + 30
            while self._engine.unfinished() and time.monotonic() < until:
                time.sleep(1e-3)
            self._engine.close()

    def _step(self, step: int) -> list[Tensor]:
        for tensor in reversed(range(self._tensors)):
            self._late()
            value = self._story.gradient(self._rank, step, tensor)
            gradient = self._memory.setdefault(tensor, value).copy_(value) if self._story.reused else value
            self._buffers.put(tensor, gradient)
            self._memory[tensor] = gradient
            self._runner.ready(tensor)
        self._runner.end_step()
        read = []
        for tensor in range(self._tensors):
            self._late()
            if self._follows:
                self._buffers.follow(tensor)
            read.append(self._memory[tensor].clone())
        return read

    def _late(self) -> None:
        if not self._story.late[self._rank]:
            return
        if self._story.kernels_s is not None:
            time.sleep(self._story.kernels_s if threading.current_thread().name == "autobyte-compute" else 0)
        elif self._random.random() < 0.5:
            time.sleep(self._random.random() * LATE_S)


def _fail(block: Block, error: Exception) -> None:
    raise error


def read_by_all(
    story: Story, backends: list[Any], buffers: type[Buffers] = Buffers, *, follows: bool = True
) -> list[list[list[Tensor]]]:
    """What every rank has read: by rank, step and tensor."""
    ranks = [Rank(story, rank, backend, buffers, follows=follows) for rank, backend in enumerate(backends)]
    with ThreadPoolExecutor(story.size) as pool:
        return [each.result(60) for each in [pool.submit(rank.train) for rank in ranks]]


def worst(story: Story, read: list[list[list[Tensor]]]) -> float:
    """The largest error of any average in units of what rounding explains; NaN counts as infinite."""
    wire = story.plan.job.wire_dtype
    eps = max(torch.finfo(each).eps for each in (story.dtype, getattr(torch, wire) if wire else story.dtype))
    found = 0.0
    for steps in read:
        for step, tensors in enumerate(steps):
            for tensor, average in enumerate(tensors):
                error = (average.double() - story.mean(step, tensor)).abs() / (4 * story.size * eps)
                if error.numel():
                    found = max(found, float(error.nan_to_num(torch.inf).max()))
    return found


@settings(max_examples=80)
@given(story=stories())
def test_nobody_reads_what_is_not_written_yet(backends: dict[int, list[Any]], story: Story) -> None:
    read = read_by_all(story, backends[story.size])
    assert worst(story, read) <= 1
    assert all(
        torch.equal(theirs, ours)
        for other in read[1:]
        for step, first in zip(other, read[0], strict=True)
        for theirs, ours in zip(step, first, strict=True)
    )


class Forgetful(Buffers):
    """Lets blocks go before their gradients are written."""

    def complete(self, block: Block) -> list[Event]:
        return []


@pytest.mark.parametrize("policy", ["bytescheduler", "dear"])
def test_an_engine_that_forgets_a_wait_is_found_out(backends: dict[int, list[Any]], policy: str) -> None:
    """So the test above can fail."""
    layers = tuple(Layer(f"{i}", (Described(f"{i}.weight", 40, "float32", i),), 1e-3, 2e-3) for i in range(4))
    plan = agreed_plan(Job(Model("four", layers, 1), Cluster(2)), Config(100, 400, policy))
    story = Story(plan, torch.float32, 2, 7, (True, True), False, kernels_s=0.05)
    assert worst(story, read_by_all(story, backends[2])) <= 1
    assert worst(story, read_by_all(story, backends[2], Forgetful)) > 1
    assert worst(story, read_by_all(story, backends[2], follows=False)) > 1
    late = replace(story, late=(False, True))
    assert worst(late, read_by_all(late, backends[2], Forgetful)) > 1  # one rank is enough


def test_a_profiler_shows_blocks_by_name_on_the_stream_where_they_run(backends: dict[int, list[Any]]) -> None:
    layers = tuple(
        Layer(f"layer{i}", (Described(f"layer{i}.weight", 4096, "float32", i),), 1e-3, 2e-3) for i in range(3)
    )
    job = Job(Model("three", layers, 1), Cluster(2))
    fused, halves = (Story(agreed_plan(job, each), torch.float32, 1, 7, (True, True), False) for each in CONFIGS)
    shown = {}
    with torch.profiler.profile(experimental_config=_ExperimentalConfig(profile_all_threads=True)) as profiler:
        for story in (fused, halves):
            read_by_all(story, backends[2])
    for event in profiler.events() or ():
        if event.name.startswith("autobyte"):
            shown.setdefault(event.name, set()).add(event.thread)
            assert event.cpu_children  # what moves it
    assert set(shown) == {
        "autobyte block 0: layer0.weight … 48 KiB",
        *(f"autobyte block {2 - i}, reduce-scatter: layer{i}.weight 16 KiB" for i in range(3)),
        *(f"autobyte block {3 + i}, all-gather: layer{i}.weight 16 KiB" for i in range(3)),
    }
    assert all(len(threads) == 2 for threads in shown.values())  # of the two ranks


CONFIGS = Config(64 * 1024, 64 * 1024, knobs={"fusion": 1.0}), Config(16 * 1024, 64 * 1024, "dear")
