"""A small model, and the same story told with DDP and with AutoByte."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.config import Config

SMALL = Config(2048, 4096, knobs={"fusion": 1.0})  # tensors are cut, some are fused, and little travels at once
STEPS = 8

Story = Callable[..., list[Tensor]]


def rows(rank: int, step: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 * step + rank))


def make_mlp(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 4))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def with_ddp(model: nn.Module, optimizer: torch.optim.Optimizer, **keywords: Any) -> tuple[nn.Module, Any]:
    return DistributedDataParallel(model, **keywords), optimizer


def with_ab(model: nn.Module, optimizer: torch.optim.Optimizer, **keywords: Any) -> tuple[nn.Module, Any]:
    return model, ab.DistributedOptimizer(optimizer, model, config=SMALL, **keywords)


def parameters_of(model: nn.Module, optimizer: Any) -> list[Tensor]:
    if isinstance(optimizer, ab.DistributedOptimizer):
        optimizer.flush()
    return [tensor.detach().clone() for tensor in model.parameters()]


def assert_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.equal(a, b), f"parameter {index} differs by {float((a - b).abs().max())}"


def train(model: nn.Module, optimizer: Any, rank: int, steps: range = range(STEPS)) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(rows(rank, step, 5, 12)).square().mean().backward()
        optimizer.step()


def from_rank_0(tensor: Tensor) -> Tensor:
    copied = tensor.detach().clone()
    dist.broadcast(copied, 0)
    return copied


def told_twice(story: Story, **ddp: Any) -> None:
    """The same parameters with AutoByte and with DDP."""
    assert_equal(story(with_ab), story(with_ddp, **ddp))
