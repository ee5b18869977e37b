"""What it costs to be there: nothing where AutoByte is off, little CPU per block, few bytes of control, cheap clocks.

CPU times of the process or its training thread, for they do not count what else the machine does. Both sides step in
turn in one process, now the one first and now the other; medians over pairs.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
import torch
from ranks import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.models import load
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.ordered import Ordered
from autobyte.scheduler.engines.streams import Event, Streams
from autobyte.torch.exchange import control, engines
from autobyte.torch.model.former import Former
from autobyte.torch.model.pending import PendingClasses


def deep(layers: int = 50, width: int = 256) -> nn.Sequential:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*parts)


def stepping(model: nn.Module, optimizer: Any, rows: int = 96) -> Callable[[], None]:
    inputs = torch.randn(rows, 256)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def in_turn(
    ours: Callable[[], None], theirs: Callable[[], None], *, clock: Callable[[], float], pairs: int
) -> list[tuple[float, float]]:
    """Times of both (s), pair by pair, after five pairs that do not count."""
    times = []
    for pair in range(pairs + 5):
        spent = {}
        for step in (ours, theirs) if pair % 2 else (theirs, ours):
            began = clock()
            step()
            spent[step] = clock() - began
        times.append((spent[ours], spent[theirs]))
    return times[5:]


def ratio(times: list[tuple[float, float]]) -> float:
    """Ours over theirs."""
    return statistics.median(with_it / without for with_it, without in times)


class Instant(Engine):
    """Packs and unpacks a block as `allreduce` does, and moves nothing: what is left out is the engine's launch."""

    blocks = 0

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        Instant.blocks += 1
        self._buffers.take(block)
        self._buffers.give(block)
        sent(block)
        done(block, None)

    def close(self) -> None:
        """Nothing to let go of."""


class Over(Event):
    """An event that is over."""

    def is_over(self) -> bool:
        return True

    def elapsed_s(self, later: Event) -> float:
        return 0.0


class Nowhere(Streams):
    """Streams that do at once what they are given: of the engine `ordered` all is left but the collective."""

    ahead = False
    over = Over()

    def mark(self, written: Any = ()) -> Event:
        return self.over

    def enqueue(self, work: Any, after: Any, used: Any = ()) -> Event:
        Instant.blocks += 1
        work()
        return self.over

    def wait(self, event: Event) -> None:
        """It is over."""

    def give_up(self, error: Exception) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing to let go of."""


class Nobody:
    """A backend of two ranks that moves nothing."""

    def size(self) -> int:
        return 2

    def allreduce(self, tensors: Any, options: Any) -> None:
        """None is a collective that need not be waited for."""


def instant() -> None:
    engines.ENGINES["instant"] = lambda made_for, timeout: Instant(made_for.buffers)
    engines.ENGINES["instant-ordered"] = lambda made_for, timeout: Ordered(made_for.buffers, Nobody())
    engines.STREAMS["instant-ordered"] = lambda parameters, timeout: Nowhere()


@pytest.mark.parametrize("why", ["one rank", "enabled=False"])
def test_where_it_is_off_it_costs_nothing(why: str) -> None:
    ratios = on_ranks(_off, 1, why, timeout_s=100)
    print(f"\n{why}: {ratios[0]:.4f} of plain training's step (at most 1.01)")
    assert ratios[0] <= 1.01


def _off(rank: int, why: str) -> float:
    ours, theirs = deep(12), deep(12)
    wrapped = ab.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.01), ours, enabled=why == "one rank")
    plain = torch.optim.SGD(theirs.parameters(), lr=0.01)
    return ratio(in_turn(stepping(ours, wrapped), stepping(theirs, plain), clock=time.thread_time, pairs=150))


def test_control_is_little_beside_the_gradients() -> None:
    """ResNet50's gradients, thirty steps with their windows and plans: all that the control backend carries."""
    for share in on_ranks(_control, 2, timeout_s=100):
        print(f"\ncontrol: {share:.4%} of the gradients' bytes (less than 0.1 %)")
        assert 0 < share < 1e-3


def _control(rank: int) -> float:
    instant()
    carried = 0

    class Counting:
        """A backend that counts what goes through it."""

        def __init__(self, backend: Any) -> None:
            self._backend = backend

        def __getattr__(self, name: str) -> Any:
            method = getattr(self._backend, name)

            def counted(*arguments: Any) -> Any:
                nonlocal carried
                tensors = arguments[-2] if name == "allgather" and len(arguments) > 2 else arguments[0]
                flat = [t for each in tensors for t in (each if isinstance(each, list) else [each])]
                carried += sum(t.numel() * t.itemsize for t in flat)
                return method(*arguments)

            return counted

    make = control.own_gloo
    control.own_gloo = lambda *arguments, **keywords: Counting(make(*arguments, **keywords))
    model = ab.emulate(load("resnet50"), time_scale=0.02)
    optimizer = ab.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, engine="instant", timeout=timedelta(seconds=60)
    )
    steps = 30
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.zeros(1)).backward()
        optimizer.step()
    optimizer.close()
    return carried / (steps * sum(p.numel() * p.itemsize for p in model.parameters()))


def test_timing_layers_costs_little() -> None:
    """The marks of a step, made again by themselves: beside a whole step they would be lost in its noise."""
    for share in on_ranks(_timing, 2, timeout_s=100):
        print(f"\nlayer times: {share:.2%} of a step of 50 layers (at most 1 %)")
        assert 0 < share <= 0.01


def _timing(rank: int) -> float:
    instant()
    model = deep()
    optimizer = ab.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model, engine="instant")

    def marks() -> None:
        measured = optimizer._mode._online._times
        measured.begin()
        for layer in range(50):
            measured.enter(layer)
            measured.leave(layer)
        measured.forward_over()
        for name in reversed(optimizer.training.exchange.parameters):
            optimizer._mode._listeners.gradient(name)
        assert measured.seconds() is not None

    train = stepping(model, optimizer)
    for _ in range(5):
        train()
    times = in_turn(marks, train, clock=time.thread_time, pairs=40)
    optimizer.close()
    return ratio(times)


class Scale(nn.Module):
    """A layer of one or two tiny tensors."""

    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.bias = nn.Parameter(torch.ones(4)) if tensors == 2 else None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scaled = inputs * self.weight
        return scaled if self.bias is None else scaled * self.bias


def chain(tensors: int, layers: int) -> nn.Sequential:
    """So many tensors in so many layers, and nothing to compute."""
    ends = [layer * (tensors - layers) // layers for layer in range(layers + 1)]
    return nn.Sequential(*(Scale(1 + later - before) for before, later in itertools.pairwise(ends)))


FUSED = Config(4_000_000, 16_000_000, knobs={"fusion": 1})  # what training begins with
WHOLE = Config(4_000_000, 16_000_000)  # ByteScheduler as published: every tensor is a block
CUT = Config(4, 16_000_000)  # a block for every element
DDP = Config(25_000_000, 25_000_000, policy="ddp")  # what `auto` keeps where nothing is faster

RESNET50, DENSENET121 = (161, 107), (364, 242)  # tensors, layers
MANY = {1_000: 500, 5_000: 2_500, 20_000: 10_000}


class Spent(NamedTuple):
    """CPU of a step (s) of AutoByte, DistributedDataParallel and plain training, and blocks of AutoByte's."""

    tensors: int
    blocks: int
    thread: list[float]
    process: list[float]

    @property
    def per_tensor(self) -> float:
        """On the thread that trains, over plain training (s)."""
        return (self.thread[0] - self.thread[2]) / self.tensors

    @property
    def per_tensor_of_ddp(self) -> float:
        """The same of DistributedDataParallel (s)."""
        return (self.thread[1] - self.thread[2]) / self.tensors

    def row(self, engine: str, policy: str) -> str:
        ours, ddp, plain = (1e3 * seconds for seconds in self.thread)
        all_threads, all_ddp, _ = (1e3 * seconds for seconds in self.process)
        others = 1e6 * self.per_tensor_of_ddp
        return (
            f"{self.tensors:6} {engine:>15} {policy:>5} {self.blocks:6} {ours:9.2f} {ddp:8.2f} {plain:8.2f} "
            f"{all_threads:9.2f} {all_ddp:8.2f} {1e6 * self.per_tensor:8.1f} {others:6.1f}"
        )


HEAD = (
    "ms of CPU a step, and µs per tensor on the thread that trains, over plain training\n"
    "tensors         engine  plan blocks      ours      DDP    plain   process     DDP's  a tensor  DDP's"
)


def spent(size: tuple[int, int], engine: str, config: Config, *, steps: int = 15) -> Spent:
    """Train on two ranks; the first one's times."""
    return Spent(size[0], *on_ranks(_spent, 2, size, engine, config, steps, timeout_s=280)[0])


def _spent(rank: int, size: tuple[int, int], engine: str, config: Config, steps: int) -> tuple[Any, ...]:
    torch.set_num_threads(1)
    instant()
    models = [chain(*size) for _ in range(3)]
    assert sum(1 for _ in models[0].parameters()) == size[0]
    sgd = [torch.optim.SGD(model.parameters(), lr=0.01, foreach=True) for model in models]
    wrapped = ab.DistributedOptimizer(sgd[0], models[0], engine=engine, config=config, keep=None, drift=math.inf)
    sides: list[tuple[nn.Module, Any]]
    sides = [(models[0], wrapped), (DistributedDataParallel(models[1]), sgd[1]), (models[2], sgd[2])]
    blocks, times = 0, []
    for step in range(steps + 5):
        row = []
        for place in (0, 1, 2) if step % 2 else (2, 1, 0):
            model, optimizer = sides[place]
            before, began = Instant.blocks, (time.thread_time(), time.process_time())
            optimizer.zero_grad()
            model(torch.ones(4)).square().mean().backward()
            optimizer.step()
            row.append((place, time.thread_time() - began[0], time.process_time() - began[1]))
            blocks = blocks if place else Instant.blocks - before
        times.append([seconds for _, *seconds in sorted(row)])
    wrapped.close()
    thread, process = torch.tensor(times[5:]).median(dim=0).values.T.tolist()
    return blocks, thread, process


def test_cpu_of_a_step_beside_ddp() -> None:
    """Models of tiny tensors, where nothing but hooks, packing, scheduling and updates takes time."""
    print("\n" + HEAD)
    for size in (RESNET50, DENSENET121, (1_000, MANY[1_000])):
        for engine in ("instant", "instant-ordered", "allreduce", "ordered"):
            for policy, config in (("fused", FUSED), ("whole", WHOLE), ("ddp", DDP)):
                of = spent(size, engine, config)
                print(of.row(engine, policy), flush=True)
                if engine == "instant" and policy == "fused":  # a busy machine slows DDP's hooks down, too
                    assert of.per_tensor <= max(15e-6, 3 * of.per_tensor_of_ddp)
                if size is RESNET50 and policy == "fused":
                    assert of.thread[0] - of.thread[1] <= 3e-3


def test_a_block_takes_little_cpu() -> None:
    """Blocks of one element beside blocks of a tensor: what a block more takes on the thread that trains."""
    for engine in ("instant", "instant-ordered"):
        few, many = (spent(DENSENET121, engine, config) for config in (WHOLE, CUT))
        block_s = (many.thread[0] - few.thread[0]) / (many.blocks - few.blocks)
        print(f"\n{engine}: {block_s * 1e6:.1f} µs of CPU per block (at most 60)")
        assert block_s <= 60e-6


def test_cost_grows_as_the_number_of_tensors_does() -> None:
    print("\n" + HEAD)
    each = {}
    for size in MANY.items():
        for policy, config in (("fused", FUSED), ("whole", WHOLE)):
            of = each[size[0], policy] = spent(size, "instant", config, steps=5)
            print(of.row("instant", policy), flush=True)
    for policy in ("fused", "whole"):
        few, many = (each[tensors, policy] for tensors in (1_000, 20_000))
        plainly = many.thread[2] / few.thread[2] / 20  # caches are too small for plain training, too
        assert many.per_tensor <= 1.5 * max(1.0, plainly) * few.per_tensor


class Dense(nn.Module):
    """A layer of DenseNet, which adds 32 channels to what it is given."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 128, 1, bias=False))
        self.second = nn.Sequential(nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, 32, 3, padding=1, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.second(self.first(x))], 1)


def densenet121() -> nn.Sequential:
    channels = 64
    parts: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
    for layers in (6, 12, 24, 16):
        if channels > 64:
            pooled = nn.Conv2d(channels, channels // 2, 1, bias=False)
            parts += [nn.BatchNorm2d(channels), nn.ReLU(), pooled, nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(layers):
            parts.append(Dense(channels))
            channels += 32
    parts += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*parts)


def test_guards_of_reads_cost_little() -> None:
    """Classes of DenseNet121's parameters are replaced and restored as often as in a step."""
    torch.set_num_threads(1)
    model = densenet121()
    assert sum(parameter.numel() for parameter in model.parameters()) == 7_978_856  # as published
    layers = [
        PendingClasses(own, _never) for module in model.modules() if (own := list(module.parameters(recurse=False)))
    ]
    inputs = torch.randn(8, 3, 224, 224)

    def step() -> None:
        model(inputs).square().mean().backward()

    def guards() -> None:
        for layer in layers:
            layer.set()
        for layer in layers:
            layer.restore()

    share = ratio(in_turn(guards, step, clock=time.thread_time, pairs=3))
    print(f"\nguards of reads: {share:.4%} of a pass of DenseNet121 on 8 images (at most 0.3 %)")
    assert 0 < share <= 0.003


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_copies_by_which_a_step_is_undone(momentum: float) -> None:
    """All layers but the last of DenseNet121, each by itself: as if every one had to wait for its average.

    Most copies are made during such a wait; here none is.
    """
    torch.set_num_threads(1)
    model = densenet121()
    inputs = torch.randn(8, 3, 224, 224)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=momentum)

    def step() -> None:
        model(inputs).square().mean().backward()

    step()
    optimizer.step()
    former = Former(optimizer)
    layers = [own for module in model.modules() if (own := list(module.parameters(recurse=False)))]

    @torch.no_grad()
    def copies() -> None:
        for layer in layers[:-1]:
            former.keep(layer)
        former.forget()

    times = in_turn(copies, step, clock=time.thread_time, pairs=3)
    copied_s = statistics.median(copying for copying, _ in times)
    print(f"\nmomentum {momentum}: copies take {copied_s * 1e3:.2f} ms, {ratio(times):.4%} of a pass on 8 images")
    assert ratio(times) <= 0.01


def _never() -> None:
    raise AssertionError("no update is due")
