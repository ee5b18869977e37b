"""A small training on every engine, for tests of what goes wrong in it."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from ranks import Ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.config import Config

ENGINES = ("allreduce", "ps", "ordered")
SMALL = Config(1024, 2048, knobs={"fusion": 1.0})
TIMEOUT = timedelta(seconds=2)
STEPS = 12
WHERE = r"rank {rank}, step \d+: ((block \d+ of )?tensor '\d\.(weight|bias)'|could not )"  # or between two steps


def make_model(width: int = 30) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, width), nn.Tanh(), nn.Linear(width, 20), nn.Tanh(), nn.Linear(20, 4))


def wrapped(
    model: nn.Module, engine: str, timeout: timedelta = TIMEOUT, *, group: dist.ProcessGroup | None = None
) -> ab.DistributedOptimizer:
    keywords: dict[str, Any] = {
        "allreduce": {"config": SMALL},
        "ps": {"config": SMALL, "engine": "ps"},
        "leader": {"config": SMALL, "order": "leader"},
        "dear": {"config": Config(1024, 1024, "dear")},
        "ordered": {"config": SMALL, "engine": "ordered"},
    }[engine]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return ab.DistributedOptimizer(optimizer, model, timeout=timeout, process_group=group, **keywords)


def rows(rank: int, step: int) -> Tensor:
    return torch.randn(5, 12, generator=torch.Generator().manual_seed(1000 * step + rank))


def train(model: nn.Module, optimizer: Any, rank: int, steps: range = range(STEPS)) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(rows(rank, step)).square().mean().backward()
        optimizer.step()


def state(model: nn.Module, optimizer: ab.DistributedOptimizer) -> list[Tensor]:
    optimizer.flush()
    return [parameter.detach().clone() for parameter in model.parameters()]


def by_ddp(rank: int) -> list[Tensor]:
    model = make_model()
    train(DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rank)
    return [parameter.detach().clone() for parameter in model.parameters()]


def compare(ours: list[Tensor]) -> None:
    for tensor in ours:
        rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, tensor)
        assert all(torch.equal(row, tensor) for row in rows)


def at_once(
    function: Callable[..., Any], size: int, cases: Sequence[Any] = (), *arguments: Any, timeout_s: float = 30.0
) -> list[Ranks]:
    """Start every case on both engines; they mostly wait."""
    each = [(case,) for case in cases] or [()]
    return [
        Ranks(function, size, engine, *case, *arguments, timeout_s=timeout_s) for engine in ENGINES for case in each
    ]


def said(outcome: Any) -> str:
    assert isinstance(outcome, BaseException), f"went on: {outcome}"
    return str(outcome)


def once(action: Any) -> Any:
    left = [action]
    return lambda *_: left.pop()() if left else None


def fail(*_: Any) -> None:
    raise RuntimeError("out of luck")
