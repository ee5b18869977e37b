"""One rank of a measurement of Keras on TensorFlow: trains an emulated model in one way, and times steps of `fit`.

    python -m autobyte.bench.keras_rank SPEC

as `autobyte bench --frontend keras-tf` starts it on every host. A layer sleeps for the profile's times and has
gradients of the profile's sizes; the graph, communication and SGD are real.
"""

import json
import os
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autobyte.bench.front_rank import Spec, begin, chosen, told
from autobyte.exchange.tuning.report import Report
from autobyte.job import Layer
from autobyte.torch.profiling.emulate import Device


def main(text: str) -> None:
    """Train as a spec says; rank 0 prints the times of steps."""
    os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    spec = json.loads(text)
    begin()
    if spec["way"] == "strategy":
        _tell_tensorflow(spec)
    import tensorflow as tf  # noqa: PLC0415 - it reads the variables above

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(4)
    count = spec["warmup"] + spec["steps"]
    began, report = (_by_strategy(spec, count), None) if spec["way"] == "strategy" else _by_fit(spec, count)
    told([after - before for before, after in pairwise(began)][spec["warmup"] :], report)


def _by_fit(spec: Spec, count: int) -> tuple[list[float], Report | None]:
    """When the steps of `fit` begin, and one more (s); what AutoByte reports."""
    import keras  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    model = _compiled(spec)
    wrapped = _wrap(model, spec)
    began: list[float] = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda _, logs=None: began.append(time.perf_counter())
    )
    batches = tf.data.Dataset.from_tensors((np.zeros((1, 1), "float32"), np.zeros((1, 1), "float32"))).repeat()
    model.fit(batches, steps_per_epoch=count + 1, verbose=0, shuffle=False, callbacks=[clock])
    if wrapped is None:
        return began, None
    wrapped.close()
    return began, wrapped.report()


def _by_strategy(spec: Spec, count: int) -> list[float]:
    """The same for a loop under TensorFlow's strategy, whose distributed batches Keras 3 does not take in `fit`."""
    import tensorflow as tf  # noqa: PLC0415

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = _compiled(spec)
        model.optimizer.build(model.trainable_variables)
    batch = tf.zeros((1, 1))

    def train() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(batch, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        strategy.run(train)

    began = []
    for _ in range(count + 1):
        began.append(time.perf_counter())
        step()
    return began


def _tell_tensorflow(spec: Spec) -> None:
    """Say where the other workers are, as TensorFlow reads it."""
    task = {"type": "worker", "index": dist.get_rank()}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": spec["workers"]}, "task": task})


def _compiled(spec: Spec) -> Any:
    """The emulated model."""
    import keras  # noqa: PLC0415

    from autobyte.models import find  # noqa: PLC0415

    profile = find(spec["model"]).scaled(**spec["scales"])
    device = Device()
    made = [_sleeping(layer, device) for layer in profile.layers]
    model = keras.Sequential([keras.Input((1,)), *made], name="emulated")
    model.compile(keras.optimizers.SGD(1e-3), loss="mse", jit_compile=False)
    return model


def _sleeping(layer: Layer, device: Device) -> Any:
    """A layer that sleeps, and has the gradients of a profile's.

    They are zeros in memory that is there already, which TensorFlow takes over as it lies, and may add up in place:
    nothing writes what a GPU would have written.
    """
    import keras  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    kept = [torch.zeros(tensor.numel).numpy() for tensor in layer.tensors]

    def forward(signal: Any, *_: Any) -> Any:
        device.busy(layer.forward_s)
        return signal

    def backward(upstream: Any) -> Any:
        device.busy(layer.backward_s)
        return [upstream, *kept]

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

    class EmulatedKerasLayer(keras.layers.Layer):  # type: ignore[misc]
        """Has the layer's tensors."""

        def build(self, shape: Any) -> None:
            self._held = [self.add_weight(shape=each.shape, initializer="zeros") for each in kept]

        def call(self, signal: Any) -> Any:
            return pause(signal, *(tf.convert_to_tensor(held.value) for held in self._held))

    return EmulatedKerasLayer()


def _wrap(model: Any, spec: Spec) -> Any:
    """Let the optimizer average: AutoByte's way, or in one call when all gradients are computed."""
    if spec["way"] == "after":
        _average_after_backward(model.optimizer)
        return None
    import autobyte.keras as ab  # noqa: PLC0415

    return ab.distribute(model, cross_step=spec["way"] == "crossing", **chosen(spec))


def _average_after_backward(optimizer: Any) -> None:
    """Average all gradients at once, as one array: what one writes first."""
    import tensorflow as tf  # noqa: PLC0415

    apply = optimizer.apply

    def average(*arrays: Any) -> Any:
        flat = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays])).div_(dist.get_world_size())
        dist.all_reduce(flat)
        ends = np.cumsum([array.size for array in arrays])[:-1]
        return [part.reshape(array.shape) for part, array in zip(np.split(flat.numpy(), ends), arrays, strict=True)]

    def averaged(grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        means = tf.numpy_function(average, grads, [each.dtype for each in grads])
        for mean, gradient in zip(means, grads, strict=True):
            mean.set_shape(gradient.shape)
        return apply(list(means), trainable_variables)

    vars(optimizer)["apply"] = averaged


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # threads of TensorFlow and gloo outlive the interpreter's
