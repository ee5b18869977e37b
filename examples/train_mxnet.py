"""Handwritten digits in MXNet's Gluon, a small CNN: averaged when the backward pass is over, or with AutoByte.

    torchrun --nproc-per-node 2 examples/train_mxnet.py --plain
    torchrun --nproc-per-node 2 examples/train_mxnet.py --autobyte
    torchrun --nproc-per-node 2 examples/train_mxnet.py --autobyte --engine kvstore

About 10 s each on two CPU cores. `make mxnet` makes an environment with all that it needs: .venv-mxnet.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autobyte.mxnet import KVStore  # before `mxnet`, which it gives names that NumPy 2 has dropped

# isort: split
import mxnet as mx
from mxnet import autograd, gluon

try:
    from sklearn.datasets import load_digits
except ImportError:
    raise SystemExit("this example needs scikit-learn: pip install 'autobyte[examples]'") from None

BATCH = 32  # images per rank and step
EPOCHS = 3


class PlainStore(mx.kv.KVStoreBase):
    """Averages each gradient when `Trainer` asks for it, and waits."""

    type = "dist_plain"
    rank = property(lambda self: dist.get_rank())
    num_workers = property(lambda self: dist.get_world_size())

    @staticmethod
    def is_capable(capability: str) -> bool:
        return False

    def broadcast(self, key: int, value: Any, out: Any, priority: int = 0) -> None:
        values = torch.from_numpy(value.asnumpy())
        dist.broadcast(values, 0)
        for each in out:
            each[:] = mx.nd.array(values.numpy())

    def pushpull(self, key: int, value: Any, out: Any = None, priority: int = 0) -> None:
        (gradient,) = value
        values = torch.from_numpy(gradient.asnumpy())
        dist.all_reduce(values)
        gradient[:] = mx.nd.array((values / self.num_workers).numpy())

    def close(self) -> None:
        mx.nd.waitall()


def make_net() -> gluon.nn.HybridSequential:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(32, 3, padding=1, activation="relu"), gluon.nn.MaxPool2D())
    net.add(gluon.nn.Conv2D(64, 3, padding=1, activation="relu"), gluon.nn.MaxPool2D())
    net.add(gluon.nn.Dense(256, activation="relu"), gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--plain", action="store_true", help="average each gradient at once")
    way.add_argument("--autobyte", action="store_true", help="AutoByte's blocks, behind the next forward pass")
    parser.add_argument("--engine", default="auto", help="AutoByte's: allreduce, ps or kvstore; %(default)s")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    mx.random.seed(0)
    np.random.seed(dist.get_rank())  # noqa: NPY002 - Gluon's loader shuffles with it
    images, labels = load_digits(return_X_y=True)
    images = mx.nd.array(images.reshape(-1, 1, 8, 8) / 16)
    labels = mx.nd.array(labels)
    held_out = 360  # images, for the test

    store = PlainStore() if options.plain else KVStore(engine=options.engine, keep=None)
    net = make_net()
    net(images[:1])  # shapes are known now
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.002}, kvstore=store)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    own = slice(held_out + store.rank, None, store.num_workers)
    rows = gluon.data.ArrayDataset(images[own], labels[own])
    batches = gluon.data.DataLoader(rows, batch_size=BATCH, shuffle=True, last_batch="discard")
    began = time.perf_counter()
    for _ in range(options.epochs):
        for data, wanted in batches:
            with autograd.record():
                loss = loss_of(net(data), wanted)
            loss.backward()
            trainer.step(BATCH)  # of this rank: gradients are averaged
    mx.nd.waitall()
    spent_s = time.perf_counter() - began
    right = (net(images[:held_out]).argmax(axis=1) == labels[:held_out]).mean().asscalar()
    rank = store.rank
    store.close()
    if rank == 0:
        name = "plain" if options.plain else "autobyte"
        print(f"{name}: {100 * float(right):.1f} % of {held_out} new digits right, {spent_s:.1f} s")


if __name__ == "__main__":
    main()
