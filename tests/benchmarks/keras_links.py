"""Keras on TensorFlow on slow links: AutoByte, and averaging after backward: `make keras`.

It needs root, an idle machine, the extras keras and testbed, and TensorFlow. A profile's layers sleep for its times,
scaled to 0.3 s a step, and have sizes for which communication takes 1.1 times as long. Compute is emulated;
communication, the graph and SGD are real.

One launch per way. Rank 0 times steps of `fit` by when batches begin; the first do not count, because AutoByte
measures and plans in them.

    python tests/benchmarks/keras_links.py [--models vgg16,resnet50] [--rate 1Gbit] [--hosts 4] [--repeats 2]
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any

from autobyte.bench.bench import PAYLOAD
from autobyte.bound import bound_s
from autobyte.job import Cluster, Job
from autobyte.models import find
from autobyte.testbed import Testbed
from autobyte.testbed.load import MOST_CORES, OtherLoad
from autobyte.units import parse_rate

WAYS = ("after", "autobyte", "crossing")
NAMES = {
    "after": "averaging after backward",
    "autobyte": "AutoByte",
    "crossing": "AutoByte, cross_step",
}
COMPUTE_S, RATIO = 0.3, 1.1  # of a step, and communication over it
STEPS, SKIPPED = 45, 20  # of each run, and of those the first, which do not count
LEAST, MOST_BOUND = 1.15, 1.15  # gain over averaging after backward; times the bound, with cross_step
LIMIT_S = 300.0  # of a launch


def train(way: str, name: str, size: float) -> None:
    """Be one rank: train in a way, and print the times of steps."""
    os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    import keras  # noqa: PLC0415, TensorFlow reads the variables above
    import numpy as np  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(4)
    profile = find(name)
    profile = profile.scaled(size=size, time=COMPUTE_S / profile.compute_s)

    class Sleeping(keras.layers.Layer):  # type: ignore[misc]
        """A layer that sleeps, and has the profile's gradients."""

        def __init__(self, sizes: list[int], forward_s: float, backward_s: float) -> None:
            super().__init__()
            self._forward_s, self._backward_s = forward_s, backward_s
            self._kept = [np.full(size, 1e-3, np.float32) for size in sizes]

        def build(self, shape: Any) -> None:
            self._held = [self.add_weight(shape=kept.shape, initializer="zeros") for kept in self._kept]

        def call(self, signal: Any) -> Any:
            def forward(signal: Any, *_: Any) -> Any:
                time.sleep(self._forward_s)
                return signal

            def backward(upstream: Any) -> Any:
                time.sleep(self._backward_s)
                return [upstream, *self._kept]

            @tf.custom_gradient  # type: ignore[untyped-decorator]
            def pause(signal: Any, *weights: Any) -> Any:
                out = tf.numpy_function(forward, [signal, *weights], tf.float32, stateful=False)
                out.set_shape(signal.shape)

                def gradients(upstream: Any) -> Any:
                    made = tf.numpy_function(backward, [upstream], [tf.float32] * (1 + len(weights)), stateful=False)
                    for each, like in zip(made, [signal, *weights], strict=True):
                        each.set_shape(like.shape)
                    return made

                return out, gradients

            return pause(signal, *(held.value for held in self._held))

    def model_of() -> Any:
        layers = [
            Sleeping([tensor.numel for tensor in layer.tensors], layer.forward_s, layer.backward_s)
            for layer in profile.layers
        ]
        model = keras.Sequential([keras.Input((1,)), *layers], name=name)
        model.compile(keras.optimizers.SGD(1e-3), loss="mse", jit_compile=False)
        return model

    model = model_of()
    _wrap(model, way)
    began: list[float] = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda _, logs=None: began.append(time.perf_counter())
    )
    rows = tf.data.Dataset.from_tensors((np.zeros((1, 1), "float32"), np.zeros((1, 1), "float32"))).repeat()
    model.fit(rows, steps_per_epoch=STEPS + 1, verbose=0, shuffle=False, callbacks=[clock])
    if os.environ["RANK"] == "0":
        times = [after - before for before, after in pairwise(began)]
        print(json.dumps({"way": way, "step_s": times[SKIPPED:]}), flush=True)


def _wrap(model: Any, way: str) -> None:
    """Let the optimizer average: AutoByte's way, or in one call when all gradients are computed."""
    import autobyte.keras as ab  # noqa: PLC0415

    if way != "after":
        ab.rank()
        ab.distribute(model, keep=None, cross_step=way == "crossing")
        return
    import tensorflow as tf  # noqa: PLC0415
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    ab.rank()
    apply, size = model.optimizer.apply, ab.size()

    def average(*arrays: Any) -> Any:
        tensors = [torch.from_numpy(array.copy()).mul_(1 / size) for array in arrays]
        for tensor in tensors:
            dist.all_reduce(tensor)
        return [tensor.numpy() for tensor in tensors]

    def averaged(grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        means = tf.numpy_function(average, grads, [each.dtype for each in grads])
        for mean, gradient in zip(means, grads, strict=True):
            mean.set_shape(gradient.shape)
        return apply(list(means), trainable_variables)

    vars(model.optimizer)["apply"] = averaged


def measure(testbed: Testbed, way: str, name: str, size: float) -> list[float]:
    """Launch a way; times of steps (s)."""
    command = [sys.executable, __file__, "--rank-of", way, "--models", name, "--size", repr(size)]
    with testbed.start(command, env={"CUDA_VISIBLE_DEVICES": ""}) as launch:
        lines = launch.wait(timeout_s=LIMIT_S)[0].output.splitlines()
    (found,) = [json.loads(line)["step_s"] for line in lines if line.startswith('{"way"')]
    return list(found)


def main(say: Callable[[str], object] = print) -> int:
    """Measure all; 0 where every target is reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="vgg16,resnet50")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rate", default="1Gbit")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        train(options.rank_of, options.models, options.size)
        return 0
    rate, traffic, reached = parse_rate(options.rate, what="rate"), 2 * (options.hosts - 1) / options.hosts, True
    with Testbed(options.hosts, rate=rate) as testbed, OtherLoad() as others:
        for name in options.models.split(","):
            profile = find(name)
            size = RATIO * COMPUTE_S * PAYLOAD * rate / traffic / (4 * profile.parameters)
            scaled = profile.scaled(size=size, time=COMPUTE_S / profile.compute_s)
            least_s = bound_s(Job(scaled, Cluster.uniform(options.hosts, PAYLOAD * rate)))
            nbytes = 4 * size * profile.parameters
            say(f"{options.hosts} hosts at {options.rate}, {name} with {nbytes / 1e6:.0f} MB; bound {least_s:.3f} s")
            runs: dict[str, list[list[float]]] = {}
            for _ in range(options.repeats):
                for way in options.ways.split(","):
                    runs.setdefault(way, []).append(measure(testbed, way, name, size))
            medians = {way: statistics.median(chain(*each)) for way, each in runs.items()}
            for way, step_s in medians.items():
                each = " and ".join(f"{statistics.median(run):.3f}" for run in runs[way])
                say(f"  {NAMES[way]}: {step_s:.3f} s a step, {step_s / least_s:.2f} x bound; runs {each}")
            reached &= _reached(medians, least_s)
    if others.cores > MOST_CORES:
        say(f"others kept {others.cores:.1f} cores busy meanwhile: times are not to be trusted")
    return 0 if reached else 1


def _reached(medians: dict[str, float], least_s: float) -> bool:
    """Whether every target is, of those whose ways were measured."""
    ours = min((medians[way] for way in ("autobyte", "crossing") if way in medians), default=None)
    if ours is None:
        return True
    return medians.get("after", float("inf")) >= LEAST * ours and medians.get("crossing", 0.0) <= MOST_BOUND * least_s


if __name__ == "__main__":
    sys.exit(main())
