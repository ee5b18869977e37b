"""Handwritten digits, a small CNN: plain, with PyTorch's DDP, or with AutoByte, in one file.

    python examples/train_digits.py
    torchrun --nproc-per-node 2 examples/train_digits.py --ddp
    torchrun --nproc-per-node 2 examples/train_digits.py --autobyte

About 5 s each on two CPU cores. The data comes with scikit-learn: pip install 'autobyte[examples]'
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab

try:
    from sklearn.datasets import load_digits
except ImportError:
    raise SystemExit("this example needs scikit-learn: pip install 'autobyte[examples]'") from None

BATCH = 32  # images per rank and step


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--ddp", action="store_true", help="PyTorch's DistributedDataParallel")
    how.add_argument("--autobyte", action="store_true")
    parser.add_argument("--engine", choices=["allreduce", "ps"], default="allreduce", help="with --autobyte")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()

    if options.ddp or options.autobyte:
        dist.init_process_group("gloo")  # reads what torchrun has set
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.set_num_threads(1)

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:1437], order[1437:]

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    net: nn.Module = model
    if options.ddp:
        net = DistributedDataParallel(model)
    if options.autobyte:
        optimizer = ab.DistributedOptimizer(optimizer, model, engine=options.engine)  # instead of DDP

    began = time.perf_counter()
    for epoch in range(options.epochs):
        shuffled = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))]
        own = shuffled[rank::ranks][: len(train) // ranks]  # as many batches on every rank
        for batch in own.split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
    if options.autobyte:
        optimizer.close()  # the last updates
    spent = time.perf_counter() - began

    model.eval()
    with torch.no_grad():
        right = (model(images[test]).argmax(dim=1) == labels[test]).double().mean().item()
    if rank == 0:
        name = "AutoByte" if options.autobyte else "DDP" if options.ddp else "plain"
        print(f"{name}, {ranks} ranks: {right:.1%} of the test images right, after {spent:.1f} s of training")
    if dist.is_initialized():
        net = model  # DDP must not be the last to hold the group: PyTorch may hang when it lets go of it
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
