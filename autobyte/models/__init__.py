"""The known networks: a table of names, and what stands behind each.

Sizes are exact; times are scaled from FLOPs and bytes by `roofline.py` (docs/models.md has the error).
"""

import importlib
from dataclasses import dataclass
from functools import cache

from autobyte.errors import unknown
from autobyte.job import Model
from autobyte.models.network import NetworkTable

_ROOFLINE = "scaled from FLOPs by a roofline fitted to PipeDream's published per-layer measurements (GPU not stated)"
_MEASURED = f"{_ROOFLINE}, this network among them"
_EXTRAPOLATED = f"{_ROOFLINE} of convolutional networks: extrapolated"

_NETWORKS = {
    "resnet50": ("vision:resnet50", _MEASURED),
    "vgg16": ("vision:vgg16", _MEASURED),
    "alexnet": ("vision:alexnet", _MEASURED),
    "densenet121": ("vision:densenet121", _MEASURED),
    "bert-base": ("transformers:bert_base", _EXTRAPOLATED),
    "bert-large": ("transformers:bert_large", _EXTRAPOLATED),
    "gpt2": ("transformers:gpt2", _EXTRAPOLATED),
}


@dataclass(frozen=True)
class Description:
    """A model in one row: its size, and the time of a step's compute on one worker (s).

    Args:
        name: of the model.
        parameters: elements of all tensors together.
        tensors: how many.
        layers: how many.
        batch_size: samples per step and worker.
        sample: shape of a sample: channels x height x width, or tokens.
        flops: of the forward pass of one sample, 2 per multiply-add.
        forward_s: of the batch.
        backward_s: of the batch.
        provenance: how the times came about.
    """

    name: str
    parameters: int
    tensors: int
    layers: int
    batch_size: int
    sample: tuple[int, ...]
    flops: float
    forward_s: float
    backward_s: float
    provenance: str


def names() -> list[str]:
    """Every name that `load` knows."""
    return list(_NETWORKS)


@cache
def network(name: str) -> NetworkTable:
    """Write a network down: its modules and what they compute. Not to be changed.

    Raises:
        InputError: no such model.
    """
    if name not in _NETWORKS:
        raise unknown("model", name, _NETWORKS)
    module, _, function = _NETWORKS[name][0].partition(":")
    table: NetworkTable = getattr(importlib.import_module(f"autobyte.models.{module}"), function)()
    return table


@cache
def load(name: str) -> Model:
    """Get a model with fp32 tensors in forward order, and times of one forward and backward pass.

    >>> load("resnet50").parameters
    25557032

    Raises:
        InputError: no such model.
    """
    return network(name).model()


def describe(name: str) -> Description:
    """Sum a model up.

    Raises:
        InputError: no such model.
    """
    net, model = network(name), load(name)
    return Description(
        name=name,
        parameters=model.parameters,
        tensors=len(model.tensors),
        layers=len(model.layers),
        batch_size=model.batch_size,
        sample=net.sample,
        flops=net.flops,
        forward_s=float(model.forward_s.sum()),
        backward_s=float(model.backward_s.sum()),
        provenance=_NETWORKS[name][1],
    )


def find(name: str) -> Model:
    """A model of the table, or of a profile.

    Raises:
        InputError: no such model.
        FileError: the profile cannot be read.
    """
    if name.endswith(".json") or "/" in name:
        from autobyte.models.profile import Profile  # noqa: PLC0415 - pydantic takes its time

        return Profile.load(name).model()
    return load(name)
