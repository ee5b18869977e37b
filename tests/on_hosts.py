"""A training that a rank runs on its host: `on_hosts.py ENGINE FOLDER TIMEOUT_S`.

The engine `served` is parameter servers on ranks that do not train: all but the first two.
"""

import os
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import autobyte.torch as ab
from autobyte.config import Config

STEPS, WORLD, SERVED = 30, 2, "served"
PAUSE_S = 0.05  # so that a step takes a while, and a link can be cut in the middle of training


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    rows = torch.randn(8, 64, generator=torch.Generator().manual_seed(1000 * step + rank))
    return model(rows).square().mean()


def alone() -> list[Tensor]:
    """The same training by one process that adds up the ranks' gradients itself."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        shares = [torch.autograd.grad(loss(model, rank, step), list(model.parameters())) for rank in range(WORLD)]
        for parameter, *parts in zip(model.parameters(), *shares, strict=True):
            parameter.grad = torch.stack([part / WORLD for part in parts]).sum(0)
        optimizer.step()
    return values(model.parameters())


def values(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


def main(engine: str, folder: str, timeout_s: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    model, rank, limit = make_model(), dist.get_rank(), timedelta(seconds=float(timeout_s))
    serving: dict[str, Any] = {"engine": engine}
    if engine == SERVED:
        servers = list(range(WORLD, dist.get_world_size()))
        serving = {"engine": "ps", "servers": servers, "process_group": dist.new_group(list(range(WORLD)))}
        if rank in servers:
            ab.serve(servers, timeout=timedelta(seconds=30))  # it may be there long before the workers
            return
    optimizer = ab.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        model,
        config=Config(16384, 65536),
        timeout=limit,
        diagnostics=folder,
        **serving,
    )
    for step in range(STEPS):
        (Path(folder) / f"step{rank}").write_text(str(step))
        time.sleep(PAUSE_S)
        optimizer.zero_grad()
        loss(model, rank, step).backward()
        optimizer.step()
    optimizer.close()
    torch.save(values(model.parameters()), Path(folder) / f"rank{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # threads of gloo outlive the interpreter's
