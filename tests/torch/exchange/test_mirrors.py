"""Gradients that travel by way of copies in host memory: what a GPU needs, tried on CPU tensors too."""

import threading
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
import autobyte.torch.optimizer as wrapping
from autobyte.config import Config
from autobyte.torch.exchange.mirrors import Mirrors

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def fail(error: Exception) -> None:
    raise error


def test_a_copy_leaves_and_the_average_comes_back() -> None:
    parameters = {"w": nn.Parameter(torch.zeros(2, 3)), "b": nn.Parameter(torch.zeros(3))}
    mirrors = Mirrors(parameters, failed=fail, everywhere=True)
    gradient, told = torch.arange(6.0).view(2, 3), threading.Event()
    mirror = mirrors.leave("w", gradient)
    mirrors.then(told.set)
    assert told.wait(5)
    assert mirror.tolist() == [0, 1, 2, 3, 4, 5]
    version = gradient._version
    mirror.mul_(10)
    assert gradient[1, 2] == 5
    mirrors.bring(["w", "b"])
    assert gradient.flatten().tolist() == [0, 10, 20, 30, 40, 50]
    assert gradient._version == version  # what the user does to it stays visible, what we do does not
    gradient.zero_()
    mirrors.bring(["w"])  # once only
    assert gradient.sum() == 0
    mirrors.close()


def test_callbacks_keep_their_order_and_errors_are_told() -> None:
    told: list[Any] = []
    mirrors = Mirrors({"w": nn.Parameter(torch.zeros(1))}, failed=told.append, everywhere=True)
    error = RuntimeError("the GPU is gone")
    mirrors.then(partial(told.append, 1))
    mirrors.then(partial(fail, error))
    mirrors.then(partial(told.append, 2))
    assert mirrors.settle(5)
    assert told == [1, error, 2]
    mirrors.close()


def test_host_memory_needs_no_mirror() -> None:
    mirrors = Mirrors({"w": nn.Parameter(torch.zeros(1))}, failed=fail)
    assert "w" not in mirrors
    told: list[int] = []
    mirrors.then(partial(told.append, 1))
    assert told == [1]
    assert mirrors.settle(0)
    mirrors.close()


def on_the_gpu(rank: int, engine: str) -> bool:
    """Whether two ranks on one GPU, over gloo, have DDP's parameters."""
    wrapped = DistributedDataParallel(_model(rank))
    theirs = _train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9), rank)
    model = _model(rank)
    optimizer = ab.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        model,
        engine=engine,
        config=Config(4096, 8192, knobs={"fusion": 1.0}),
        verify_steps=2,
    )
    ours = _train(model, optimizer, rank)
    optimizer.close()
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 10)]
    return nn.Sequential(*layers).cuda()


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 32, generator=generator).cuda()).square().mean().backward()
        optimizer.step()
    if isinstance(optimizer, ab.DistributedOptimizer):
        optimizer.flush()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@NO_GPU
@pytest.mark.parametrize("engine", ["allreduce", "ps"])
def test_two_gloo_ranks_on_a_gpu_have_ddps_parameters(engine: str) -> None:
    assert on_ranks(on_the_gpu, 2, engine, timeout_s=120) == [True, True]


def alone_on_nccl(rank: int) -> bool:
    """Whether one rank, whose default group is NCCL's, has the parameters of plain training."""
    dist.init_process_group("nccl")
    wrapping.is_off = lambda *_, **__: False  # type: ignore[assignment]  else one rank is left alone
    model, plain = _model(0), _model(0)
    optimizer = ab.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model, policy="bytescheduler")
    assert optimizer.training is not None
    ours = _train(model, optimizer, rank)
    theirs = _train(plain, torch.optim.SGD(plain.parameters(), lr=0.05), rank)
    optimizer.close()
    dist.destroy_process_group()
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@NO_GPU
def test_one_nccl_rank_trains() -> None:
    assert on_ranks(alone_on_nccl, 1, init=False, timeout_s=120) == [True]
