"""A training under torchrun whose rank 1 is killed in the first attempt; the next goes on from the checkpoint.

`devices` is a default group like NCCL's, as far as AutoByte can tell the two apart on a machine without GPUs: its
only backend is for CUDA tensors, and collectives of CPU tensors are refused. Nothing ever travels by it, so it says
nothing of NCCL itself: not how its communicators end, nor what they leave in the agent's store.
"""

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from faulty import make_model, rows
from torch.distributed.distributed_c10d import Backend
from torch.testing._internal.distributed.fake_pg import FakeStore

import autobyte.torch as ab

STEPS, EVERY, KILLED = 12, 4, 10


def main(group: str, engine: str, folder: Path) -> None:
    """Train, and write parameters down."""
    torch.set_num_threads(1)
    begin(group)
    rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = ab.DistributedOptimizer(
        inner, model, policy="bytescheduler", engine=engine, timeout=timedelta(seconds=30), keep=None
    )
    checkpoint = folder / "checkpoint"
    if checkpoint.exists():
        kept = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
    (folder / f"began{attempt}.{rank}").write_text(str(optimizer.steps))
    for step in range(optimizer.steps, STEPS):
        if (attempt, rank, step) == ("0", 1, KILLED):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(rows(rank, step)).square().mean().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if rank == 0 and optimizer.steps % EVERY == 0:
            torch.save(state, folder / "draft")
            (folder / "draft").rename(checkpoint)
    optimizer.close()
    torch.save(list(model.state_dict().values()), folder / f"parameters{rank}")
    dist.destroy_process_group()


def begin(group: str) -> None:
    """Make the default group."""
    if group == "gloo":
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        return

    def make(_store: Any, rank: int, size: int, _timeout: timedelta) -> Any:
        assert FakeStore  # its module registers the backend that moves nothing
        return torch._C._distributed_c10d.FakeProcessGroup._create_internal(rank, size)

    Backend.register_backend("devices", make, devices=["cuda"])
    dist.init_process_group("devices", timeout=timedelta(seconds=60))
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        return
    raise AssertionError("a collective of CPU tensors has worked")
