"""The CPU that a gradient costs in Keras on TensorFlow; runs on two ranks that `keras_ranks` starts."""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import torch

import autobyte.keras as ab
from autobyte.exchange import engines
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.scheduler.engines.buffers import Buffers

LAYERS, WIDTH, PAIRS = 60, 64, 40

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)
torch.set_num_threads(1)
ab.rank()  # lets ranks find each other


class Instant(Engine):
    """Packs and unpacks a block as `allreduce` does, and moves nothing."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        self._buffers.take(block)
        self._buffers.give(block)
        sent(block)
        done(block, None)

    def close(self) -> None:
        """Nothing to let go of."""


def deep() -> Any:
    """Sixty layers with a kernel and a bias each."""
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    model.compile(keras.optimizers.SGD(0.01), loss="mse")
    return model


def stepping(model: Any) -> Callable[[], None]:
    rows = tf.zeros((8, WIDTH))
    data = iter(tf.data.Dataset.from_tensors((rows, rows)).repeat())
    model.make_train_function()
    return lambda: model.train_function(data)


def cpu_s(step: Callable[[], None]) -> float:
    began_s = time.process_time()
    step()
    return time.process_time() - began_s


def per_tensor(rank: int, *, cross_step: bool) -> float:
    """CPU of the whole process for a gradient, beside what the same step takes without AutoByte (s)."""
    engines.ENGINES["instant"] = lambda made_for, timeout: Instant(made_for.buffers)
    ours, theirs = deep(), deep()
    wrapped = ab.distribute(ours, engine="instant", keep=None, cross_step=cross_step)
    with_it, without = stepping(ours), stepping(theirs)
    for _ in range(15):  # graphs are made, layers measured and planned
        with_it()
        without()
    more = [cpu_s(with_it) - cpu_s(without) for _ in range(PAIRS)]
    wrapped.close()
    return float(np.median(more)) / (2 * LAYERS)


def at_once(rank: int) -> float:
    return per_tensor(rank, cross_step=False)


def crossing(rank: int) -> float:
    return per_tensor(rank, cross_step=True)
