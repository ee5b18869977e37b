"""A small training that is tuned, beside DDP."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.trace import Measurement
from autobyte.tuners import Tuner

STEPS = 120  # enough for five windows, some of them left out while rank 0 thinks
CONFIGS = [Config(1 << power, 4 << power, knobs={"fusion": 1}) for power in (12, 14, 13)]


@Tuner.register("script")
class Script(Tuner):
    """Asks for three configs in turn."""

    def __init__(self, space: Any, **_: Any) -> None:
        self._left = list(CONFIGS)

    def ask(self) -> Config | None:
        return self._left.pop(0) if self._left else None

    def tell(self, measurement: Measurement) -> None:
        assert measurement.stats is not None
        assert (measurement.stats.forward_s >= 0).all()


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 300), nn.ReLU(), nn.Linear(300, 100), nn.Tanh(), nn.Linear(100, 4))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def train(
    model: nn.Module, optimizer: Any, rank: int, steps: int = STEPS, seen: Callable[[], None] = lambda: None
) -> None:
    for step in range(steps):
        rows = torch.randn(5, 12, generator=torch.Generator().manual_seed(1000 * step + rank))
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        seen()


def beside_ddp(rank: int, steps: int = STEPS, **keywords: Any) -> tuple[ab.DistributedOptimizer, list[Config]]:
    """Train with DDP and with AutoByte, compare all parameters; say which configs were in force."""
    theirs, ours = make_model(), make_model()
    train(DistributedDataParallel(theirs), adam(theirs), rank, steps)
    optimizer = ab.DistributedOptimizer(adam(ours), ours, **{"policy": "bytescheduler"} | keywords)
    used: list[Config] = []

    def see() -> None:
        time.sleep(0.005)  # rank 0 thinks meanwhile
        assert optimizer.training is not None
        if not used or used[-1] != optimizer.training.config:
            used.append(optimizer.training.config)

    train(ours, optimizer, rank, steps, see)
    optimizer.flush()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    return optimizer, used
