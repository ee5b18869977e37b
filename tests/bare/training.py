"""Two ranks that train with the bare wheel as with DDP, in every way that needs no extra; torchrun starts it.

torchrun --nproc-per-node 2 tests/bare/training.py
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.errors import MissingExtra

Wrapped = tuple[nn.Module, torch.optim.Optimizer]
STEPS = 25
WAYS: dict[str, dict[str, Any]] = {
    "a fixed config": {"config": ab.Config(4096, 16384)},
    "in rank 0's order": {"order": "leader"},
    "parameter servers": {"engine": "ps"},
    "a policy that merges": {"policy": "usbyte"},
    "nothing said": {},
    "auto": {"policy": "auto"},
    "the twin": {"tuner": "twin"},
    "the meta-network": {"tuner": "metanet"},
}


def main() -> None:
    """Compare parameters to DDP's after each way of training; raise unless they agree."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    expected = train(wrap_ddp)
    for name, keywords in WAYS.items():
        found = train(lambda model, given=keywords: wrap_autobyte(model, given))
        torch.testing.assert_close(found, expected, msg=lambda text, name=name: f"{name}: {text}")
        if dist.get_rank() == 0:
            print(f"{name}: as DDP\n", end="")  # in one write: ranks share the output
    for tuner in ("bayesian", "optuna"):
        try:
            wrap_autobyte(make_model(), {"tuner": tuner})
        except MissingExtra as error:
            print(f"rank {dist.get_rank()}: {error}\n", end="")
    dist.destroy_process_group()


def make_model() -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))


def wrap_ddp(model: nn.Module) -> Wrapped:
    """What a script has before AutoByte."""
    return DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def wrap_autobyte(model: nn.Module, keywords: dict[str, Any]) -> Wrapped:
    """The two changed lines."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, ab.DistributedOptimizer(optimizer, model, keep=None, **keywords)


def train(wrap: Callable[[nn.Module], Wrapped]) -> list[Tensor]:
    """Train on this rank's data; return the parameters."""
    model = make_model()
    wrapped, optimizer = wrap(model)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.randn(16, 64, generator=data)
        nn.functional.mse_loss(wrapped(inputs), inputs[:, :8]).backward()
        optimizer.step()
    state = wrapped.state_dict()  # waits for the last updates
    if isinstance(optimizer, ab.DistributedOptimizer):
        optimizer.close()
    return [state[key].clone() for key in state]


if __name__ == "__main__":
    main()
