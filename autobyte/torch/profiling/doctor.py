"""Measures a model under DDP on the ranks that there are: compute, communication alone, and what of it is exposed."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from autobyte.job import Cluster, Job, Model
from autobyte.torch.model.planning import priced
from autobyte.torch.model.step import Step
from autobyte.torch.profiling.profile import profile_model
from autobyte.torch.profiling.source import Made

WARMUP = 2
SMALL, LARGE = 1024, 1 << 20  # elements: what tells the cost of a block from that of its bytes


@dataclass(frozen=True)
class Symptoms:
    """What was measured; the slowest rank's medians.

    Args:
        model: with layer times, scaled to `compute_s`.
        workers: ranks.
        compute_s: a step without communication (s).
        step_s: a step of DDP at its default bucket (s).
        bytes_per_s: payload rate of a link, as all-reduces of 4 MiB see it.
        per_block_s: an all-reduce beyond its bytes (s).
    """

    model: Model
    workers: int
    compute_s: float
    step_s: float
    bytes_per_s: float
    per_block_s: float

    @property
    def exposed_s(self) -> float:
        """Communication that nothing hides (s)."""
        return max(0.0, self.step_s - self.compute_s)

    @property
    def job(self) -> Job:
        """The job as it was measured."""
        return priced(
            Job(self.model, Cluster(self.workers)), bytes_per_s=self.bytes_per_s, per_block_s=self.per_block_s
        )


def examine(subject: Made, inputs: Any, *, device: str = "cpu", steps: int = 10) -> Symptoms:
    """Measure a model under DDP at its default bucket. Collective, and needs torch.distributed initialised.

    Parameters are not updated. Times are those of the slowest rank, layer times those of this one.

    Args:
        subject: the model, and maybe its loss.
        inputs: what goes into it.
        device: where.
        steps: that medians are taken over.

    Raises:
        InputError: the model cannot be run on these inputs.
    """
    profile = profile_model(subject.model, inputs, loss=subject.loss, device=device, warmup=2, repeats=5)
    wrapped = DistributedDataParallel(subject.model)
    step = Step(wrapped, inputs, loss=subject.loss, device=device)
    compute_s = _median_s(step, wrapped.no_sync, steps)
    step_s = _median_s(step, nullcontext, steps)
    small_s, large_s = (_all_reduce_s(numel, device, steps) for numel in (SMALL, LARGE))
    ranks, model = dist.get_world_size(), profile.model()
    traffic = 2 * (ranks - 1) / ranks * 4 * (LARGE - SMALL)
    return Symptoms(
        model=model.scaled(time=compute_s / model.compute_s),
        workers=ranks,
        compute_s=compute_s,
        step_s=step_s,
        bytes_per_s=traffic / max(large_s - small_s, 1e-9),
        per_block_s=small_s,
    )


def _median_s(step: Step, context: Callable[[], AbstractContextManager[Any]], steps: int) -> float:
    """Time of a pass on the slowest rank (s)."""
    took = []
    for _ in range(WARMUP + steps):
        dist.barrier()
        began = time.perf_counter()
        step.clear_gradients()
        with context():
            step.backward(step.forward())
        _synchronize()
        took.append(time.perf_counter() - began)
    return _slowest(float(np.median(took[WARMUP:])))


def _all_reduce_s(numel: int, device: str, times: int) -> float:
    """Time of an all-reduce alone on the slowest rank (s)."""
    gradient, took = torch.zeros(numel, device=device), []
    for _ in range(WARMUP + times):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(gradient)
        _synchronize()
        took.append(time.perf_counter() - began)
    return _slowest(float(np.median(took[WARMUP:])))


def _slowest(seconds: float) -> float:
    """The largest on any rank."""
    on = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    slowest_s = torch.tensor([seconds], dtype=torch.float64, device=on)
    dist.all_reduce(slowest_s, op=dist.ReduceOp.MAX)
    return float(slowest_s)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
