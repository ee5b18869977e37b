"""Checks of Keras on TensorFlow; each runs on two ranks, in a process that `keras_ranks` starts."""

import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import torch
import torch.distributed as dist
from keras_models import WORDS, alike, average_after_backward, compiled, data, fit, flat, make_model, mean_of, noting
from keras_ranks import load

import autobyte.keras as ab
from autobyte.bench import keras_rank
from autobyte.exchange.averaging import AveragingSettings
from autobyte.keras.tensorflow.tape import connected
from autobyte.keras.tensorflow.updates import why_at_once
from autobyte.models import find

SLEEPS_S = 0.02  # in a step that is measured

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(3)
torch.set_num_threads(1)
ab.rank()  # lets ranks find each other


def all_reduce(_model: Any, _variables: Any, gradients: list[Any]) -> list[Any]:
    """One call with all gradients, when the last is computed."""
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    means = tf.numpy_function(lambda *arrays: [mean_of(each) for each in arrays], dense, [g.dtype for g in dense])
    for mean, gradient in zip(means, dense, strict=True):
        mean.set_shape(gradient.shape)
    return list(means)


@contextmanager
def logged() -> Iterator[list[str]]:
    """What AutoByte says in its log meanwhile."""
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("autobyte")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def sgd(**more: Any) -> Any:
    return keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=1.0, **more)


def adamw(**more: Any) -> Any:
    return keras.optimizers.AdamW(0.01, weight_decay=0.1, clipvalue=0.5, **more)


def warmup() -> Any:
    return ab.LearningRateWarmup(0.05, warmup_epochs=1.5)


@cache
def reference(kind: str) -> Any:
    model = average_after_backward(compiled(make_model(0), {"sgd": sgd, "adamw": adamw}[kind]()), all_reduce)
    fit(model, ab.rank(), [warmup()])
    return flat(model)


def parity(kind: str, *, run_eagerly: bool = False, **arguments: Any) -> dict[str, Any]:
    """Ranks begin with different weights, of which rank 0's count."""
    model = compiled(make_model(ab.rank()), {"sgd": sgd, "adamw": adamw}[kind](), run_eagerly=run_eagerly)
    wrapped = ab.distribute(model, keep=None, **arguments)
    fit(model, ab.rank(), [warmup()])
    found = alike(flat(model), reference(kind))
    report = wrapped.report()
    wrapped.close()
    return found | {"exposed_s": report.exposed_s, "steps": wrapped._gradients.averaging.connection.progress.steps}


def sgd_allreduce(rank: int) -> Any:
    return parity("sgd", engine="allreduce")


def sgd_ps_cross(rank: int) -> Any:
    return parity("sgd", engine="ps", cross_step=True)


def adamw_allreduce_cross(rank: int) -> Any:
    return parity("adamw", engine="allreduce", cross_step=True)


def adamw_ps(rank: int) -> Any:
    return parity("adamw", engine="ps")


def run_eagerly(rank: int) -> Any:
    """Updates cannot wait here, and the log says so."""
    with logged() as lines:
        found = parity("sgd", run_eagerly=True, cross_step=True)
    return found | {"log": lines}


def everything_at_once(rank: int) -> Any:
    """What needs all averages, or counts steps, and several steps in a call."""
    made = []
    for wrap in (False, True):
        optimizer = keras.optimizers.SGD(0.05, global_clipnorm=0.5, gradient_accumulation_steps=2)
        model = compiled(make_model(0), optimizer, steps_per_execution=5)
        if wrap:
            wrapped = ab.distribute(model, keep=None, cross_step=True)  # which cannot be
        else:
            average_after_backward(model, all_reduce)
        fit(model, rank)
        made.append(flat(model))
    wrapped.close()
    return alike(made[1], made[0])


def mixed_precision(rank: int) -> Any:
    """Float16 with a loss scale that is too large at first: all ranks leave out the same steps."""
    made, scales = [], []
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        for wrap in (False, True):
            inner = keras.optimizers.SGD(0.05)
            optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**17)
            model = compiled(make_model(0), optimizer)
            if wrap:
                wrapped = ab.distribute(model, keep=None)
            else:
                average_after_backward(model, all_reduce)
            fit(model, rank)
            made.append(flat(model))
            scales.append(float(optimizer.dynamic_scale))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    wrapped.close()
    return alike(made[1], made[0]) | {"scales": scales}


def eager_and_tape(rank: int) -> Any:
    """A loop of one's own, in a graph and not, against `fit`; ranks begin alike by `broadcast_variables`."""
    model, optimizer = make_model(rank), sgd()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ab.broadcast_variables(model.weights)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        tape = ab.DistributedGradientTape(tape)
        variables = model.trainable_variables
        averages = tape.gradient(loss, {"all": variables})["all"]
        optimizer.apply_gradients(zip(averages, variables, strict=True))

    graph, (x, y), rates = tf.function(step), data(rank), []
    for number in range(20):
        progress = min(1.0, (number // 10 + (number % 10 + 1) / 10) / 1.5)
        optimizer.learning_rate = 0.05 / 2 * (1 + progress)
        rates.append(progress)
        at = slice(number % 10 * 8, number % 10 * 8 + 8)
        (graph if number % 2 else step)(tf.constant(x[at]), tf.constant(y[at]))
    return alike(flat(model), reference("sgd"))


def held(rank: int) -> dict[str, Any]:
    """Averages that are looked at steps later, and the order in which gradients of one group leave."""
    variables = [tf.Variable(tf.zeros(size)) for size in (40_000, 3, 5)]
    gradients, left = connected(variables, AveragingSettings(keep=None)), []
    ready = gradients.averaging.ready

    def noted(place: int, gradient: Any) -> None:
        left.append(place)
        ready(place, gradient)

    gradients.averaging.ready = noted
    steps = [gradients.average([tf.fill(each.shape, 1.0 + rank + step) for each in variables]) for step in range(4)]
    return {"left": left, "averages": [[[*{*each.numpy().tolist()}] for each in averages] for averages in steps]}


def beside_fit(rank: int) -> Any:
    """Data of unknown length, and then a loop that calls the optimizer, with updates that wait and without."""
    (x, y), made = data(rank), []
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    signature = (tf.TensorSpec((None, *x.shape[1:]), x.dtype), tf.TensorSpec((None,), y.dtype))

    def batches() -> Any:
        for at in range(0, 80, 8):
            yield x[at : at + 8], y[at : at + 8]

    for waits in (False, True):
        model = compiled(make_model(0), sgd())
        wrapped = ab.distribute(model, keep=None, cross_step=waits)
        model.fit(tf.data.Dataset.from_generator(batches, output_signature=signature), epochs=2, verbose=0)

        @tf.function
        def step(x: Any, y: Any, model: Any = model) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            variables = model.trainable_variables
            model.optimizer.apply(tape.gradient(loss, variables), variables)

        for own in batches():
            step(*map(tf.constant, own))
        wrapped.flush()
        made.append(flat(model))
        wrapped.close()
        wrapped.close()
    return alike(made[1], made[0]) | {"waiting": int(model.optimizer.iterations), "kept": "_autobyte" in vars(model)}


class Unusual(keras.Model):
    """Steps that loop over parts of a batch, and apply gradients of some variables alone, in another order."""

    def train_step(self, batch: Any) -> Any:
        """The gradients of two halves are added up; then the last layer learns once more."""
        (x, y), variables, loss_of = batch, self.trainable_variables[::-1], keras.losses.MeanSquaredError()

        def add(half: Any, *sums: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = self.optimizer.scale_loss(loss_of(y[half::2], self(x[half::2], training=True)))
            return half + 1, *(a + b for a, b in zip(sums, tape.gradient(loss, variables), strict=True))

        begun = [tf.constant(0), *map(tf.zeros_like, variables)]
        sums = tf.while_loop(lambda half, *_: half < 2, add, begun)[1:]
        self.optimizer.apply(sums, variables)
        with tf.GradientTape() as tape:
            loss = loss_of(y, self(x, training=True))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables[:2]), variables[:2], strict=True))
        return {"loss": loss}


def unusual_model() -> Any:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((WORDS,))
    model = Unusual(inputs, keras.layers.Dense(1)(keras.layers.Dense(8, activation="tanh")(inputs)))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9))
    model.optimizer.build(model.trainable_variables)
    return model


def unusual(rank: int) -> Any:
    """A `train_step` of one's own."""
    theirs, ours = average_after_backward(unusual_model(), all_reduce), unusual_model()
    wrapped = ab.distribute(ours, keep=None)
    for model in (theirs, ours):
        fit(model, rank)
    wrapped.close()
    logs: Any = {"each": np.array([1.0, rank]), "loss": float(rank)}
    ab.MetricAverage().on_epoch_end(0, logs)
    quantized, optimizer = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), sgd()
    quantized.quantize("float8")
    optimizer.build(quantized.trainable_variables)
    said = why_at_once(optimizer, eager=False)
    return alike(flat(ours), flat(theirs)) | {"logs": [logs["each"].tolist(), logs["loss"]], "float8": said}


def flushed(rank: int) -> Any:
    """With updates that wait, whoever reads weights gets the last one; files load without AutoByte. A tuner is on."""
    seen: list[Any] = []
    windows: list[Any] = []

    class Epochs(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append((flat(self.model), int(self.model.optimizer.iterations)))

    model = compiled(make_model(0), sgd())
    file = Path.cwd() / "kept.toml"
    wrapped = ab.distribute(model, cross_step=True, tuner="random", budget=1, keep=file, on_window=windows.append)
    epochs = Path.cwd() / f"epochs{rank}.weights.h5"
    checkpoints = keras.callbacks.ModelCheckpoint(epochs, save_weights_only=True)
    history = fit(model, rank, [ab.MetricAverage(), Epochs(), checkpoints])
    restored = make_model(0)
    restored.load_weights(epochs)
    x, y = data(rank)
    model.train_on_batch(x[:8], y[:8])
    model.train_on_batch(x[8:16], y[8:16])
    path, loaded = Path.cwd() / "model.keras", []
    if rank == 1:
        taken = [int(model.optimizer.iterations)]
        first = model.predict(x, verbose=0)  # takes the last update
        taken.append(int(model.optimizer.iterations))
        loaded = [*taken, bool(np.array_equal(first, model.predict(x, verbose=0)))]
    if rank == 0:
        keras.saving.save_model(model, path)  # takes the last update
        again, loss = keras.models.load_model(path), model.evaluate(x, y, verbose=0)[0]
        same = [np.array_equal(flat(again), flat(model)), abs(again.evaluate(x, y, verbose=0)[0] - loss) < 1e-6]
        loaded = [*map(bool, same), type(again.optimizer).__name__, int(again.optimizer.iterations)]
    report = wrapped.report()
    wrapped.close()
    return {
        "iterations": [count for _, count in seen] + [int(model.optimizer.iterations)],
        "moved": bool(np.abs(seen[0][0] - seen[1][0]).max() > 0),
        "loaded": loaded,
        "losses": [float(loss) for loss in history.history["loss"]],
        "restored": bool(np.array_equal(flat(restored), seen[-1][0])),
        "put back": sorted(set(vars(model)) & {"fit", "train_step", "save"}),
        "windows": len(windows),
        "report": [report.tuner, report.model, report.workers],
    }


class Sleeping(keras.layers.Layer):
    """A weight whose gradient takes 50 ms; what happens is noted with its time."""

    def __init__(self, moments: list[tuple[str, int, float]], number: int) -> None:
        super().__init__()
        self._note = lambda what: moments.append((what, number, time.monotonic()))

    def build(self, shape: Any) -> None:
        self.weight = self.add_weight(shape=(20_000,), initializer="zeros")  # too large for a group

    def call(self, signal: Any) -> Any:
        def forward(signal: Any, _: Any) -> Any:
            self._note("forward")
            return signal

        def backward(upstream: Any) -> Any:
            time.sleep(0.05)
            return upstream, np.zeros(20_000, np.float32)

        @tf.custom_gradient
        def pause(signal: Any, weight: Any) -> Any:
            out = tf.numpy_function(forward, [signal, weight], tf.float32, stateful=False)
            out.set_shape(signal.shape)

            def gradients(upstream: Any) -> Any:
                made = tf.numpy_function(backward, [upstream], [tf.float32, tf.float32], stateful=False)
                made[0].set_shape(signal.shape)
                made[1].set_shape(weight.shape)
                return made

            return out, gradients

        return pause(signal, self.weight.value)


def overlap(rank: int) -> dict[str, float]:
    """How long before the first layer's the last gradient leaves, and what its average lets wait (s); and what of
    Python's state TensorFlow's threads have lost between two calls."""
    moments: list[tuple[str, int, float]] = []
    state, threads, fresh = threading.local(), set(), 0
    model = keras.Sequential([keras.Input((1,)), *(Sleeping(moments, number) for number in range(3))])
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    wrapped = ab.distribute(model, keep=None, cross_step=True)
    averaging = wrapped._gradients.averaging
    ready, wait = averaging.ready, averaging.wait

    def noted(place: int, gradient: Any) -> None:
        nonlocal fresh
        threads.add(threading.get_ident())
        fresh += not hasattr(state, "here")
        state.here = True
        moments.append(("ready", place, time.monotonic()))
        ready(place, gradient)

    def slow(place: int) -> Any:
        time.sleep(0.2 if place == 2 else 0.0)
        average = wait(place)
        moments.append(("average", place, time.monotonic()))
        return average

    averaging.ready, averaging.wait = noted, slow
    model.fit(np.ones((6, 1)), np.ones((6, 1)), batch_size=1, verbose=0, shuffle=False)  # updates of 3 come apart
    wrapped.close()
    at = {}
    for what, number, moment_s in moments[-9 - 3 :]:  # of the last step, with the averages of its flush
        at.setdefault((what, number), moment_s)
    return {
        "leaves": at["ready", 0] - at["ready", 2],
        "first waits": at["average", 2] - at["forward", 0],
        "last waits": at["forward", 2] - at["average", 2],
        "lost": fresh - len(threads),
    }


def refusals(rank: int) -> Any:
    """What cannot be used is one line, on every rank, and nothing is left under way."""
    said, refused = noting()
    model = make_model(0)
    refused("not compiled", lambda: ab.distribute(model))
    refused("not built", lambda: ab.distribute(compiled(keras.Sequential([keras.layers.Dense(2)]), "sgd")))
    refused("no model", lambda: ab.distribute(torch.nn.Linear(2, 2)))
    foreign = type("Model", (), {"__module__": "keras.src.models.model"})  # as another backend's would be
    refused("another backend", lambda: ab.distribute(foreign()))
    refused("a layer", lambda: ab.distribute(keras.layers.Dense(2)))
    refused("jit", lambda: ab.distribute(compiled(model, "sgd", jit_compile=True)))
    refused("engine", lambda: ab.distribute(compiled(model, "sgd"), engine="nccl"))
    refused("tape", lambda: ab.DistributedGradientTape(None, cross_step=True))
    other = make_model(0) if rank else keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    refused("another model", lambda: ab.distribute(compiled(other, "sgd"), timeout=timedelta(seconds=20)))
    wrapped = ab.distribute(compiled(model, "sgd"), keep=None)
    compiled(model, "sgd")
    refused("compiled again", lambda: fit(model, rank))
    wrapped.close()
    model = compiled(make_model(0), sgd())
    wrapped = ab.distribute(model, keep=None)
    model.get_layer("frozen").trainable = True
    refused("thawed", lambda: fit(model, rank))
    wrapped.close()
    model = compiled(make_model(0), sgd())
    wrapped = ab.distribute(model, keep=None)
    fit(model, rank)
    model.get_layer("frozen").trainable = True
    refused("thawed late", lambda: fit(model, rank))
    wrapped.close()
    model = compiled(make_model(0), sgd())
    model.train_step = lambda data: {"loss": tf.reduce_mean(model(data[0]))}
    wrapped = ab.distribute(model, keep=None)
    refused("own optimizer", lambda: fit(model, rank))
    wrapped.close()
    model = unusual_model()
    wrapped = ab.distribute(model, keep=None, cross_step=True)
    refused("applied twice", lambda: fit(model, rank))
    wrapped.close()
    model, usual = unusual_model(), Unusual.train_step
    model.other = sgd()

    def with_another(batch: Any) -> Any:
        model.other.apply([tf.ones_like(v) for v in model.trainable_variables], model.trainable_variables)
        return usual(model, batch)

    model.train_step = with_another
    wrapped = ab.distribute(model, keep=None)
    refused("another optimizer", lambda: fit(model, rank))
    wrapped.close()
    with tf.GradientTape() as tape:
        tape.watch(x := tf.constant(1.0))
        y = x * model.trainable_variables[0]
    refused("no variable", lambda: ab.DistributedGradientTape(tape).gradient(y, {"x": x}))
    return said


def measured(rank: int) -> dict[str, Any]:
    """What `bench --frontend keras-tf` measures of a model whose layers sleep."""
    found, profile = {}, find("alexnet")
    scales = {"time": SLEEPS_S / profile.compute_s, "size": 0.002}
    common = {"model": profile.name, "scales": scales, "engine": "allreduce", "tuner": None, "windows": None}
    for way in ("after", "crossing"):
        began, report = keras_rank._by_fit({**common, "way": way}, 20)
        steps_s = [after - before for before, after in pairwise(began)]
        told = {} if report is None else {"step_s": report.step_s, "exposed_s": report.exposed_s}
        found[way] = {"steps": len(steps_s), "median_s": float(np.median(steps_s)), **told}
    return found


def example(rank: int) -> list[str]:
    """What the example prints, plain and on two ranks, under the variables that torchrun sets."""
    script = load(Path(__file__).parents[3] / "examples" / "train_keras.py")
    said = io.StringIO()
    with redirect_stdout(said):
        for words in ([["--plain"]] if rank == 0 else []) + [["--autobyte", "--cross-step"]]:
            sys.argv = ["train_keras.py", *words, "--epochs", "3"]
            script.main()
    return said.getvalue().splitlines()


def wrong_in_graph(rank: int) -> Any:
    """What goes wrong in a function of ours within the graph keeps its own text and type."""
    model = compiled(make_model(0), sgd())
    wrapped = ab.distribute(model, keep=None, timeout=timedelta(seconds=10))

    def broken(place: int) -> Any:
        raise RuntimeError(f"no average for {place} today")

    def in_own_graph() -> Any:
        loss_of, (x, y) = keras.losses.SparseCategoricalCrossentropy(from_logits=True), data(rank)
        with tf.GradientTape() as tape:
            loss = loss_of(y[:8], other(x[:8], training=True))
        return ab.DistributedGradientTape(tape).gradient(loss, other.trainable_variables)

    said, refused = noting()
    wrapped._gradients.averaging.wait = broken
    refused("fit", lambda: fit(model, rank))
    wrapped.close()
    other = make_model(0)
    averaging = connected(other.trainable_variables, AveragingSettings(keep=None)).averaging
    averaging.wait = broken
    refused("own", tf.function(in_own_graph))
    averaging.close()
    return said


def half_way(rank: int) -> Any:
    """A step that fails with an error of TensorFlow's own takes updates with it, and later calls say so."""
    model = make_model(0)
    model.compile(sgd(), loss=lambda y, out: (tf.debugging.check_numerics(y, "y") - tf.reduce_sum(out)) ** 2)
    wrapped = ab.distribute(model, keep=None, cross_step=True, timeout=timedelta(seconds=10))
    x, said = data(rank)[0][:8], []
    model.train_on_batch(x, np.zeros((8, 1), np.float32))
    nothing = np.full((8, 1), np.nan, np.float32)
    for call in (lambda: model.train_on_batch(x, nothing), lambda: model.evaluate(x, nothing)):
        try:
            call()
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    wrapped.close()
    return said


def stopped(rank: int) -> Any:
    """A rank that stops in the middle of `fit`, until the other has said so and lets it go on."""
    pids = [torch.tensor([0]) for _ in range(2)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if rank == 1 and batch == 4:
                os.kill(os.getpid(), signal.SIGSTOP)

    model, (said, refused) = compiled(make_model(0), sgd()), noting()
    wrapped = ab.distribute(model, keep=None, timeout=timedelta(seconds=5), diagnostics=None)
    refused("fit", lambda: fit(model, rank, [Stops()]))
    if rank == 0:
        os.kill(int(pids[1]), signal.SIGCONT)
    wrapped.close()
    return said


def killed(rank: int) -> Any:
    """A rank that ends in the middle of `fit`; comes last."""

    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if rank == 1 and batch == 4:
                os.kill(os.getpid(), signal.SIGKILL)

    model = compiled(make_model(0), sgd())
    ab.distribute(model, keep=None, timeout=timedelta(seconds=20), diagnostics=None)
    began_s = time.monotonic()
    try:
        fit(model, rank, [Ends()])
    except Exception as error:
        return {"said": f"{type(error).__name__}: {error}", "after_s": time.monotonic() - began_s}
