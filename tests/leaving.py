"""A training whose process ends in a way of its own, and notes the semaphores that it makes.

python leaving.py twin|auto tensors|fork|spawn returns|raises|SIGINT|SIGTERM FILE
"""

import gc
import os
import signal
import sys
import time
from datetime import timedelta
from multiprocessing import synchronize
from pathlib import Path
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import nn

import autobyte.torch as ab

STEPS = 60
WAYS: dict[str, dict[str, Any]] = {"twin": {"tuner": "twin", "budget": 2}, "auto": {"policy": "auto"}}


def main(chooses: str, source: str, end: str, file: str) -> None:
    """Train on tensors, or on what a worker of a data loader brings that was started so; and end."""
    note_semaphores(Path(file))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ab.DistributedOptimizer(sgd, model, keep=None, timeout=timedelta(seconds=60), **WAYS[chooses])
    rows = torch.randn(8 * STEPS, 64)
    batches: Any = rows.split(8)
    if source != "tensors":
        batches = torch.utils.data.DataLoader(rows, batch_size=8, num_workers=1, multiprocessing_context=source)
    for step, batch in enumerate(batches):
        if step == STEPS - 20 and end != "returns":
            leave(end)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)
    optimizer.close()
    threads = ref(dist.group.WORLD)
    dist.destroy_process_group()
    gc.collect()
    if threads() is not None:
        raise RuntimeError("something keeps the default group, so its threads run on while the process ends")


def leave(end: str) -> None:
    """End the process in the middle of training, all ranks in the same step."""
    dist.barrier()
    if end == "raises":
        raise RuntimeError("out of luck")
    os.kill(os.getpid(), signal.Signals[end])
    time.sleep(60)


def note_semaphores(file: Path) -> None:
    """Write down the names of all that this process makes, whoever asks for one."""
    make = synchronize.SemLock._make_name  # type: ignore[attr-defined]

    def noted() -> str:
        name: str = make()
        with file.open("a") as names:
            names.write(f"{name}\n")
        return name

    synchronize.SemLock._make_name = staticmethod(noted)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(*sys.argv[1:])
