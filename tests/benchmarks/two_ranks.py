"""Real training on two ranks of this machine, compute emulated by sleeping: what reconfiguration is measured in.

As a program it is one rank of a training that is to be ended and launched again:
    python two_ranks.py FOLDER RANK PORT PARTITION_BYTES CREDIT_BYTES STEPS
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.models import load

SIZE_SCALE = 0.1  # VGG16 with 55 MB of gradients, on its own times: 163 ms of compute


class Ranks:
    """One rank's model, optimizer, and the times at which its steps ended."""

    def __init__(self, config: Config, *, tuner: str | None = None) -> None:
        self.model = ab.emulate(load("vgg16"), size_scale=SIZE_SCALE)
        sgd = torch.optim.SGD([p for p in self.model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
        self.optimizer = ab.DistributedOptimizer(sgd, self.model, config=config, tuner=tuner, keep=None)

    def train(self, steps: int) -> list[float]:
        """Train, and say when each step ended (s since the epoch)."""
        ends = []
        for _ in range(steps):
            self.model(torch.zeros(1)).backward()
            self.optimizer.step()
            ends.append(time.time())
        return ends

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)

    def load(self, path: Path) -> None:
        """Go on where a checkpoint was written, but for the config."""
        state = torch.load(path)
        state["optimizer"].pop("autobyte", None)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def main(folder: Path, rank: str, port: str, partition: str, credit: str, steps: str) -> None:
    """Train from the checkpoint in the folder if there is one, write the next, and say when steps ended."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Ranks(Config(int(partition), int(credit), knobs={"fusion": 1.0}))
    checkpoint = folder / "checkpoint"
    if checkpoint.exists():
        training.load(checkpoint)
    ends = training.train(int(steps))
    if rank == "0":
        (folder / "ends").write_text("\n".join(map(repr, ends)))
        training.save(checkpoint)
    training.optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
