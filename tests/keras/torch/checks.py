"""Checks of Keras on torch; each runs on two ranks, in a process that `keras_ranks` starts."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
from keras_models import WORDS, alike, average_after_backward, compiled, data, fit, flat, make_model, mean_of, noting

import autobyte.keras as ab

torch.set_num_threads(1)
ab.rank()  # lets ranks find each other


def all_reduce(_model: Any, _variables: Any, gradients: list[Any]) -> list[Any]:
    return [torch.from_numpy(mean_of(gradient.numpy())) for gradient in gradients]


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=1.0),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, clipvalue=0.5),
}


def parity(kind: str, rank: int, **arguments: Any) -> Any:
    """Ranks begin with different weights, of which rank 0's count."""
    theirs = average_after_backward(compiled(make_model(0), OPTIMIZERS[kind]()), all_reduce)
    fit(theirs, rank)
    ours = compiled(make_model(rank), OPTIMIZERS[kind]())
    wrapped = ab.distribute(ours, keep=None, **arguments)
    fit(ours, rank, [ab.MetricAverage(), ab.BroadcastGlobalVariables()])
    found = alike(flat(ours), flat(theirs)) | {"steps": wrapped._stepped._mode.steps}
    wrapped.close()
    return found


def sgd_allreduce(rank: int) -> Any:
    return parity("sgd", rank, engine="allreduce")


def adamw_ps(rank: int) -> Any:
    return parity("adamw", rank, engine="ps", cross_step=True)


def sgd_ps(rank: int) -> Any:
    return parity("sgd", rank, engine="ps")


def adamw_allreduce(rank: int) -> Any:
    return parity("adamw", rank, engine="allreduce")


def unused(rank: int) -> Any:
    """Keras reads gradients before it applies them, though a variable has none."""
    inputs = keras.Input((3,))
    first = keras.layers.Dense(4, name="used")(inputs)
    model = keras.Model(inputs, [first, keras.layers.Dense(2, name="unused")(first)])
    model.compile(keras.optimizers.SGD(0.1), loss=["mse", None])
    wrapped = ab.distribute(model, keep=None)
    where = np.full((4, 3), rank, "float32")
    model.fit(where, [np.ones((4, 4), "float32"), np.ones((4, 2), "float32")], epochs=2, verbose=0, batch_size=2)
    steps = wrapped._stepped._mode.steps
    wrapped.close()
    return steps


class Unusual(keras.Model):
    """Layers in a list and in a model that is built late, LoRA, and gradients in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [keras.layers.Dense(6)]
        self.head = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])

    def call(self, x: Any) -> Any:
        return self.head(self.blocks[0](x))

    def train_step(self, batch: Any) -> Any:
        self.zero_grad()
        loss = keras.losses.MeanSquaredError()(batch[1], self(batch[0]))
        loss.backward()
        variables = self.trainable_variables[::-1]
        with torch.no_grad():
            self.optimizer.apply([self.given(variable) for variable in variables], variables)
        return {"loss": loss}

    @staticmethod
    def given(variable: Any) -> Any:
        return variable.value.grad


def unusual_model() -> Any:
    keras.utils.clear_session()  # numbers layers from the same on
    keras.utils.set_random_seed(0)
    model = Unusual()
    model(np.zeros((1, WORDS), "float32"))
    model.blocks[0].enable_lora(2)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9))
    return model


def unusual(rank: int) -> Any:
    """A subclass of `Model` with a `train_step` of its own."""
    theirs, ours = average_after_backward(unusual_model(), all_reduce), unusual_model()
    wrapped = ab.distribute(ours, keep=None)
    for model in (theirs, ours):
        fit(model, rank)
    wrapped.close()
    return alike(flat(ours), flat(theirs)) | {"steps": wrapped._stepped._mode.steps}


def saved(rank: int) -> Any:
    """Files load without AutoByte, and `evaluate` sees the last update."""
    model = compiled(make_model(0), "adam")
    wrapped = ab.distribute(model, keep=None)
    fit(model, rank)
    path = Path.cwd() / f"torch{rank}.keras"
    model.save(path)
    x, y = data(rank)
    loss = model.evaluate(x, y, verbose=0)[0]
    wrapped.close()
    again = keras.models.load_model(path)
    return [bool(np.array_equal(flat(again), flat(model))), abs(again.evaluate(x, y, verbose=0)[0] - loss) < 1e-6]


def refusals(rank: int) -> Any:
    """One line each, before ranks wait for each other."""
    said, refused = noting()
    model = make_model(0)
    refused("tape", lambda: ab.DistributedGradientTape(None))
    other = make_model(0) if rank else keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    refused("another model", lambda: ab.distribute(compiled(other, "sgd"), timeout=timedelta(seconds=20)))
    refused("jit", lambda: ab.distribute(compiled(model, "sgd", jit_compile=True)))
    wrapped = ab.distribute(compiled(model, "sgd"), keep=None)
    model.get_layer("frozen").trainable = True
    refused("thawed", lambda: fit(model, rank))
    compiled(model, "sgd")
    refused("compiled again", lambda: fit(model, rank))
    wrapped.close()
    model = compiled(make_model(0), "sgd")
    model.train_step = lambda data: {"loss": model(data[0]).mean()}
    wrapped = ab.distribute(model, keep=None)
    refused("own optimizer", lambda: fit(model, rank))
    wrapped.close()
    model = unusual_model()
    model.given = lambda variable: variable.value.grad / 2
    wrapped = ab.distribute(model, keep=None)
    refused("scaled", lambda: fit(model, rank))
    wrapped.close()
    model = unusual_model()
    model.other = keras.optimizers.SGD(0.1)
    usual = model.train_step

    def with_another(batch: Any) -> Any:
        model.other.apply([torch.ones_like(v.value) for v in model.trainable_variables], model.trainable_variables)
        return usual(batch)

    model.train_step = with_another
    wrapped = ab.distribute(model, keep=None)
    refused("another optimizer", lambda: fit(model, rank))
    wrapped.close()
    backend, version = keras.backend.backend, keras.__version__
    keras.backend.backend = lambda: "jax"
    refused("jax", lambda: ab.distribute(model))
    keras.backend.backend, keras.__version__ = backend, "3.4.0"
    refused("old", lambda: ab.distribute(model))
    keras.__version__ = version
    return said
