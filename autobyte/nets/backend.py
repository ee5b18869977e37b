"""Keras on the backend that the user chose; on torch where none was chosen."""

import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from autobyte.errors import MissingExtra, require

BACKENDS = {"torch": "torch", "tensorflow": "tensorflow", "jax": "jax"}


def keras() -> ModuleType:
    """Import Keras; `import autobyte` never does.

    Raises:
        MissingExtra: Keras, or the backend that KERAS_BACKEND names, is not installed.
    """
    chosen = os.environ.setdefault("KERAS_BACKEND", "torch")
    if chosen in BACKENDS and find_spec(BACKENDS[chosen]) is None:
        raise MissingExtra(f"KERAS_BACKEND={chosen} needs {chosen}: pip install {chosen}, or choose another")
    return require("keras", extra="metanet", what="fitting the meta-network")


def arrays(variables: Iterable[Any]) -> list[npt.NDArray[Any]]:
    """What Keras variables hold, in order."""
    return [np.array(keras().ops.convert_to_numpy(variable.value)) for variable in variables]


@contextmanager
def modestly(*, learning: bool) -> Iterator[None]:
    """Run a small network without taking the job's cores: on torch, one thread, and gradients only to learn.

    Small operations gain nothing from several threads, and wait for each other on a busy machine. The number holds
    for the calling thread, and for threads that begin meanwhile.
    """
    if keras().backend.backend() != "torch":
        yield
        return
    torch = importlib.import_module("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.set_grad_enabled(learning):
            yield
    finally:
        torch.set_num_threads(threads)


def lstm() -> Any:
    """Keras's LSTM layer; on torch, one that runs torch's own, with the same weights and eight times as fast.

    Keras's loop over rows is Python, some twenty operations for each row; a fit takes minutes or an hour.
    """
    k = keras()
    if k.backend.backend() != "torch":
        return k.layers.LSTM
    torch = importlib.import_module("torch")

    def call(self: Any, sequences: Any, initial_state: Any = None, mask: Any = None, training: bool = False) -> Any:
        """Run over rows; both have the gates in one order. Neither state nor mask is used here."""
        assert initial_state is None
        assert mask is None
        if sequences.is_meta:  # Keras asks for the shape: torch would run over rows in Python
            shape = sequences.shape[:2] if self.return_sequences else sequences.shape[:1]
            return sequences.new_empty((*shape, self.units))
        kernel, recurrent, bias = (w.value for w in (self.cell.kernel, self.cell.recurrent_kernel, self.cell.bias))
        start = torch.zeros(1, sequences.shape[0], self.units, dtype=sequences.dtype, device=sequences.device)
        weights = [kernel.T.contiguous(), recurrent.T.contiguous(), bias, torch.zeros_like(bias)]
        rows, _, _ = torch.lstm(sequences, (start, start), weights, True, 1, 0.0, training, False, True)
        return rows if self.return_sequences else rows[:, -1]

    return type("LSTM", (k.layers.LSTM,), {"call": call})
