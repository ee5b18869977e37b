"""What a step costs where `auto` keeps DDP's buckets, over DDP's own step; the target is 0.5 % on an idle machine.

Both step in turn in the same two processes, now the one first and now the other, each after a barrier: medians over
pairs, of ratios and of differences. Compute is real, on one thread. The target holds for steps about as long as those
that `autobyte bench` measures, with 0.4 s of compute. Models of small tensors show what is left per step, beside
compute of a few milliseconds.

Both have DDP's default buckets, and models that lie alike in memory: the first that a process makes fills holes in
its heap, and takes some percent longer, whoever trains it.
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
from autobyte.exchange.tuning import audition
from autobyte.units import MIB

BUCKETS = Config(25 * MIB, 25 * MIB, "ddp")
MODELS = {  # layers, width, rows, pairs of steps
    "wide": (24, 1024, 256, 40),
    "deep": (160, 256, 64, 60),
    "tiny": (160, 4, 1, 200),
    "small": (10, 4, 1, 200),
}
LONG_S = 0.3  # a step from here on counts as one of realistic length
TARGET = 1.005  # of its wall time, on an idle machine


def model_of(layers: int, width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))


def test_a_step_under_ddps_buckets_costs_what_ddps_costs() -> None:
    print("\nauto that keeps DDP / DDP, medians of pairs; in brackets what a step takes more")
    print("model   rank   DDP's step                 wall   CPU of all threads   of the one that trains")
    for name, sizes in MODELS.items():
        for rank, (step_s, *both) in enumerate(on_ranks(_in_turn, 2, *sizes, timeout_s=280)):
            shown = "  ".join(f"{ratio:7.4f} ({1e6 * more_s:+7.0f} us)" for ratio, more_s in both)
            print(f"{name:6} {rank:5} {1e3 * step_s:9.2f} ms  {shown}", flush=True)
            assert step_s < LONG_S or both[0][0] <= TARGET


def _in_turn(rank: int, layers: int, width: int, height: int, pairs: int) -> tuple[Any, ...]:
    torch.set_num_threads(1)
    audition.shortlist = lambda job, **_: [BUCKETS]  # type: ignore[assignment]
    audition.HOLD = 10**9  # type: ignore[misc]  # on a busy machine, too, nothing else is measured meanwhile
    made = [model_of(layers, width) for _ in range(5)]
    models = made[3:]
    sgd = [torch.optim.SGD(model.parameters(), lr=0.01, foreach=True) for model in models]
    ours = ab.DistributedOptimizer(sgd[0], models[0], policy="auto", keep=None)
    sides: list[tuple[nn.Module, Any]] = [
        (models[0], ours),
        (DistributedDataParallel(models[1]), sgd[1]),  # a size that is said would be that of the first bucket, too
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

    assert ours.training is not None
    for _ in range(400):
        spent(0), spent(1)
        if ours.training.exchange.reduction is not None:
            break
    assert ours.training.exchange.reduction is not None, "gradients were not handed over"
    for _ in range(5):
        spent(0), spent(1)
    rows = []
    while len(rows) < pairs:
        first, second = (spent(0), spent(1)) if len(rows) % 2 else (spent(1), spent(0))
        rows.append((first, second) if len(rows) % 2 else (second, first))
    assert ours.training.exchange.reduction is not None, "gradients were taken back while steps were measured"
    ours.close()
    mine, ddps = torch.tensor(rows, dtype=torch.float64).unbind(dim=1)
    ratios, more_s = (mine / ddps).median(dim=0).values, (mine - ddps).median(dim=0).values
    return float(ddps[:, 0].median()), *zip(ratios.tolist(), more_s.tolist(), strict=True)


def clocks() -> tuple[float, float, float]:
    return time.perf_counter(), time.process_time(), time.thread_time()
