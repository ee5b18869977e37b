"""A small Keras model with the layers that are special, its data, and a training that averages without AutoByte."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import torch
import torch.distributed as dist

STEPS, BATCH, CLASSES, WORDS = 20, 8, 4, 12


def make_model(seed: int) -> Any:
    """Embedding, a layer that is called twice, batch normalization, a frozen layer, and one more."""
    keras.utils.set_random_seed(seed)
    words = keras.Input((WORDS,), dtype="int32")
    shared = keras.layers.Dense(8, activation="tanh", name="shared")
    x = keras.layers.Flatten()(keras.layers.Embedding(50, 4, name="embedding")(words))
    x = shared(keras.layers.Dense(8, name="first")(x))
    x = keras.layers.BatchNormalization(name="norm")(shared(x))
    x = keras.layers.Dense(8, activation="relu", name="frozen", trainable=False)(x)
    return keras.Model(words, keras.layers.Dense(CLASSES, name="last", dtype="float32")(x), name="small")


def data(rank: int) -> tuple[Any, Any]:
    """A rank's part of the words and their classes."""
    rng = np.random.default_rng(rank)
    size = STEPS // 2 * BATCH
    return rng.integers(0, 50, size=(size, WORDS)), rng.integers(0, CLASSES, size=(size,))


def compiled(model: Any, optimizer: Any, **arguments: Any) -> Any:
    """The model, ready to train."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"], **arguments)
    return model


def fit(model: Any, rank: int, callbacks: Any = ()) -> Any:
    """Twenty steps, in two epochs."""
    x, y = data(rank)
    return model.fit(x, y, epochs=2, batch_size=BATCH, shuffle=False, verbose=0, callbacks=list(callbacks))


def flat(model: Any) -> Any:
    """All trainable weights in a row."""
    arrays = [keras.ops.convert_to_numpy(v.value).reshape(-1) for v in model.trainable_variables]
    return np.concatenate(arrays)


def average_after_backward(model: Any, all_reduce: Callable[[Any, Any, list[Any]], list[Any]]) -> Any:
    """Let the optimizer apply averages that are made, one after the other, when all gradients are computed."""
    base = type(model.optimizer)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        return base.apply(self, all_reduce(model, trainable_variables, list(grads)), trainable_variables)

    model.optimizer.__class__ = type(base.__name__, (base,), {"apply": apply, "__module__": base.__module__})
    return model


def mean_of(array: Any) -> Any:
    """An array's mean over ranks, by torch.distributed."""
    tensor = torch.from_numpy(np.array(array)).mul_(1 / dist.get_world_size())
    dist.all_reduce(tensor)
    return tensor.numpy()


def alike(ours: Any, theirs: Any) -> dict[str, Any]:
    """How far weights are apart, from a reference and between ranks."""
    rows = [torch.empty_like(torch.from_numpy(ours)) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, torch.from_numpy(ours))
    return {"apart": float(np.abs(ours - theirs).max()), "ranks": all(torch.equal(row, rows[0]) for row in rows)}


def noting() -> tuple[dict[str, str], Callable[[str, Callable[[], Any]], None]]:
    """What calls have said, by a name, and a function that calls one and notes its error."""
    said: dict[str, str] = {}

    def refused(what: str, call: Callable[[], Any]) -> None:
        try:
            call()
            said[what] = "nothing"
        except Exception as error:
            said[what] = f"{type(error).__name__}: {error}"

    return said, refused
