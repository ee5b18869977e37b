"""Training that survives the loss of a rank: torchrun starts all ranks again, and they go on where the others were.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1     # else torch 2.13 cannot restart ranks that use gloo
    torchrun --standalone --nproc-per-node 2 --max-restarts 1 examples/train_elastic.py /tmp/elastic --die-at 25
    torchrun --standalone --nproc-per-node 2 examples/train_elastic.py /tmp/elastic --ddp

The first command loses rank 1 in step 25, the second trains with DDP and loses nobody: both end with the same
parameters. About 25 s on two CPU cores. The folder must be one that all ranks share.
"""

import argparse
import hashlib
import os
import shutil
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab

STEPS, EVERY = 40, 10  # steps of the training, and between two checkpoints


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def save(folder: Path, model: nn.Module, optimizer: Any, steps: int) -> None:
    """Write a checkpoint in one go: a rank that is killed meanwhile leaves none that is cut."""
    draft = folder / f"draft{dist.get_rank()}"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, draft)
    draft.replace(folder / f"after{steps:06}.pt")


def load(folder: Path, model: nn.Module, optimizer: Any) -> None:
    """Go on from the latest checkpoint. All ranks read the same one."""
    checkpoints = sorted(folder.glob("after*.pt"))
    if checkpoints:
        state = torch.load(checkpoints[-1])
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


def train(net: nn.Module, optimizer: Any, step: int) -> None:
    """Train a step on inputs that the step's number decides: after a restart the same ones come."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    inputs, labels = torch.randn(32, 64, generator=generator), torch.randint(10, (32,), generator=generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(inputs), labels).backward()
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for checkpoints; those of an earlier training are deleted")
    parser.add_argument("--ddp", action="store_true", help="PyTorch's DistributedDataParallel, without checkpoints")
    parser.add_argument("--engine", choices=["allreduce", "ps"], default="allreduce")
    parser.add_argument("--die-at", type=int, help="the step in which rank 1 is lost, the first time")
    options = parser.parse_args()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    # torchrun ends all ranks as soon as one is lost, but waits for 30 s: the others save in this time
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_end.append(number))

    dist.init_process_group("gloo")  # reads what torchrun has set
    torch.set_num_threads(1)
    folder: Path = options.folder
    if dist.get_rank() == 0:
        if attempt == 0:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()

    model = make_model()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if options.ddp:
        net: nn.Module = DistributedDataParallel(model)
        for step in range(STEPS):
            train(net, optimizer, step)
        del net  # DDP must not be the last to hold the group: PyTorch may hang when it lets go of it
    else:
        optimizer = ab.DistributedOptimizer(optimizer, model, engine=options.engine, timeout=timedelta(seconds=20))
        load(folder, model, optimizer)
        if dist.get_rank() == 0 and attempt:
            print(f"attempt {attempt} goes on after {optimizer.steps} steps")
        try:
            while optimizer.steps < STEPS:
                if dist.get_rank() == 1 and attempt == 0 and optimizer.steps == options.die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                train(model, optimizer, optimizer.steps)
                if dist.get_rank() == 0 and optimizer.steps % EVERY == 0:
                    save(folder, model, optimizer, optimizer.steps)
                if asked_to_end:
                    raise SystemExit("torchrun ends this rank")
        except (ab.CommunicationError, SystemExit):
            steps = optimizer.recover()  # parameters and the optimizer's state are of one step, and this is it
            save(folder, model, optimizer, steps)
            raise
        optimizer.close()  # the last updates

    if dist.get_rank() == 0:
        numbers = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
        name = "DDP" if options.ddp else "AutoByte"
        print(f"{name}, {STEPS} steps: parameters {hashlib.sha256(numbers).hexdigest()[:12]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
