"""Measures a model under DDP on the ranks that there are: compute, communication alone, and what of it is exposed."""

import os
import socket
import time
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from autobyte.exchange.planning import priced
from autobyte.job import Cluster, Job, Model
from autobyte.torch.model.step import Step
from autobyte.torch.profiling.profile import profile_model
from autobyte.torch.profiling.source import Made

WARMUP = 2
NOISE = 0.1  # by which a part may seem to take longer than the whole
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
        other_cores: that processes other than the ranks kept busy meanwhile, on the busiest machine.
    """

    model: Model
    workers: int
    compute_s: float
    step_s: float
    bytes_per_s: float
    per_block_s: float
    other_cores: float = 0.0

    @property
    def contradiction(self) -> str:
        """What cannot be so on an idle machine; empty if nothing."""
        if self.compute_s <= (1 + NOISE) * self.step_s:
            return ""
        return f"compute alone took {self.compute_s:.3g} s, longer than all of DDP's step, {self.step_s:.3g} s"

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


def unclaimed_cores(others: float, own: float) -> float:
    """Cores that processes other than the ranks kept busy, on the busiest machine. Collective.

    Args:
        others: that were not this process's on its machine.
        own: of this process.
    """
    on = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    mine = torch.tensor([_machine(), others + own, own], dtype=torch.float64, device=on)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    used: dict[float, list[tuple[float, float]]] = {}
    for machine, all_cores, rank_cores in torch.stack(rows).tolist():
        used.setdefault(machine, []).append((all_cores, rank_cores))
    left = (max(a for a, _ in ranks) - sum(r for _, r in ranks) for ranks in used.values())
    return max(0.0, *left)


def _machine() -> float:
    """A number of this machine, the same in all of its containers, as their count of CPU time is."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        name = socket.gethostname()
    return float(zlib.crc32(name.encode()))


def _median_s(step: Step, context: Callable[[], AbstractContextManager[Any]], steps: int) -> float:
    """Time of a pass on the slowest rank (s)."""
    took, shares_gpu = [], "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    for _ in range(WARMUP + steps):
        dist.barrier()
        began = time.perf_counter()
        step.clear_gradients()
        with context():
            loss = step.forward()
            if shares_gpu:
                _synchronize()  # under MPS a rank that runs ahead fills its launch queue, and then all ranks hang
            step.backward(loss)
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
