"""What a step costs where `auto` keeps DDP's buckets, over DDP's own step; the target is 0.5 % on an idle machine.

Both step in turn in the same two processes, now the one first and now the other, each after a barrier: medians of
wall time and of CPU time over pairs. Compute is real, on one thread. The same table for a model of tiny tensors shows
what is left per step, beside compute of a few milliseconds.
"""

import time
from typing import Any

import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.torch.tuning import audition
from autobyte.units import MIB

BUCKETS = Config(25 * MIB, 25 * MIB, "ddp")
MODELS = {"wide": (24, 1024, 96), "deep": (160, 256, 64), "tiny": (160, 4, 1)}  # layers, width, rows
TARGET = 1.005  # wall time, on an idle machine


def model_of(layers: int, width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))


def test_a_step_under_ddps_buckets_costs_what_ddps_costs() -> None:
    print("\nauto that keeps DDP / DDP, medians of pairs")
    print("model   rank   DDP's step     wall   CPU of all threads   of the one that trains")
    for name, sizes in MODELS.items():
        for rank, (step_s, *ratios) in enumerate(on_ranks(_in_turn, 2, *sizes, timeout_s=280)):
            wall, process, thread = ratios
            print(f"{name:6} {rank:5} {1e3 * step_s:9.2f} ms {wall:8.4f} {process:20.4f} {thread:24.4f}", flush=True)
            assert name == "tiny" or wall <= TARGET


def _in_turn(rank: int, layers: int, width: int, height: int, pairs: int = 60) -> tuple[float, ...]:
    torch.set_num_threads(1)
    audition.shortlist = lambda job, **_: [BUCKETS]  # type: ignore[assignment]
    models = [model_of(layers, width) for _ in range(2)]
    sgd = [torch.optim.SGD(model.parameters(), lr=0.01, foreach=True) for model in models]
    ours = ab.DistributedOptimizer(sgd[0], models[0], policy="auto", keep=None)
    sides: list[tuple[nn.Module, Any]] = [
        (models[0], ours),
        (DistributedDataParallel(models[1], bucket_cap_mb=BUCKETS.partition_bytes / MIB), sgd[1]),
    ]
    inputs = torch.randn(height, width)

    def spent(side: int) -> tuple[float, ...]:
        model, optimizer = sides[side]
        dist.barrier()
        began = clocks()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        return tuple(now - then for now, then in zip(clocks(), began, strict=True))

    for _ in range(40):
        spent(0), spent(1)
    assert ours.training is not None
    assert ours.training.exchange.reduction is not None
    rows = []
    for pair in range(pairs):
        first, second = (spent(0), spent(1)) if pair % 2 else (spent(1), spent(0))
        rows.append((first, second) if pair % 2 else (second, first))
    ours.close()
    ratios = (
        torch.tensor([[a / b for a, b in zip(ours, ddp, strict=True)] for ours, ddp in rows]).median(dim=0).values
    )
    return float(torch.tensor([ddp[0] for _, ddp in rows]).median()), *ratios.tolist()


def clocks() -> tuple[float, float, float]:
    return time.perf_counter(), time.process_time(), time.thread_time()
