"""What it costs to be there: nothing where AutoByte is off, little CPU per block, few bytes of control, cheap clocks.

CPU times of the process or its training thread, for they do not count what else the machine does. Both sides step in
turn in one process, now the one first and now the other; medians over pairs.
"""

import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

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
from autobyte.torch.exchange import control, engines
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
    """Moves nothing, at once: what is left is the scheduler."""

    blocks = 0

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        Instant.blocks += 1
        sent(block)
        done(block, None)

    def close(self) -> None:
        """Nothing to let go of."""


def instant() -> None:
    engines.ENGINES["instant"] = lambda made_for, timeout: Instant()


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


def test_a_block_takes_little_cpu() -> None:
    """All threads of a rank, over plain training: hooks, hand-over of gradients, updates layer by layer."""
    for seconds, blocks in on_ranks(_per_block, 2, timeout_s=100):
        print(f"\n{seconds * 1e3:.3f} ms of CPU per block and rank, {blocks} a step (at most 0.3 ms)")
        assert seconds <= 0.3e-3


def _per_block(rank: int) -> tuple[float, int]:
    instant()
    ours, theirs = deep(), deep()
    wrapped = ab.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.01), ours, engine="instant", config=Config(65536, 262144)
    )
    plain = torch.optim.SGD(theirs.parameters(), lr=0.01)
    train = stepping(ours, wrapped, rows=8)
    train()
    began = Instant.blocks
    train()
    blocks = Instant.blocks - began
    times = in_turn(train, stepping(theirs, plain, rows=8), clock=time.process_time, pairs=30)
    wrapped.close()
    return statistics.median(with_it - without for with_it, without in times) / blocks, blocks


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
            optimizer._listeners.gradient(name)
        assert measured.seconds() is not None

    train = stepping(model, optimizer)
    for _ in range(5):
        train()
    times = in_turn(marks, train, clock=time.thread_time, pairs=40)
    optimizer.close()
    return ratio(times)


class Many(nn.Module):
    """Very many small tensors, in one layer."""

    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(torch.zeros(4) for _ in range(tensors))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack(list(self.tensors)).sum(0) * inputs


def test_cost_grows_as_the_number_of_tensors_does() -> None:
    """CPU of all threads of a rank, thinking about plans left out."""
    (spent, *_) = on_ranks(_many, 2, timeout_s=280)
    for tensors, (ours, theirs) in spent.items():
        print(f"\n{tensors} tensors: {ours:.3f} s of CPU a step, {ours / theirs:.1f} times DistributedDataParallel's")
    assert spent[20_000][0] <= 3 * 20 * max(spent[1_000][0], 0.01)


def _many(rank: int) -> dict[int, tuple[float, float]]:
    spent = {}
    for tensors in (1_000, 5_000, 20_000):
        ours, theirs = Many(tensors), Many(tensors)
        wrapped = ab.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.01, foreach=True), ours, keep=None)
        ddp, plain = DistributedDataParallel(theirs), torch.optim.SGD(theirs.parameters(), lr=0.01, foreach=True)
        each = [_cpu_s(model, optimizer) for model, optimizer in ((ours, wrapped), (ddp, plain))]
        wrapped.close()
        spent[tensors] = each[0], each[1]
    return spent


def _cpu_s(model: nn.Module, optimizer: Any, steps: int = 9) -> float:
    """The median step (s); the first three are longer on both sides."""
    times = []
    for _ in range(steps):
        began = time.process_time()
        optimizer.zero_grad()
        model(torch.ones(4)).square().mean().backward()
        optimizer.step()
        times.append(time.process_time() - began)
    return statistics.median(times[3:])


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


def _never() -> None:
    raise AssertionError("no update is due")
