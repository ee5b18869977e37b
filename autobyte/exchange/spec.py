"""The gradients that travel: name, layer, shape and dtype of each, in the order of the forward pass."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from autobyte.errors import InputError
from autobyte.job import Layer, Model
from autobyte.job import Tensor as Travelling

TRAVELLING = ("float16", "float32", "float64")  # NumPy has no bfloat16


class ArraySpec(NamedTuple):
    """A gradient, as a front end describes it.

    Args:
        name: unlike any other.
        layer: that it belongs to.
        shape: of the array.
        dtype: as NumPy names it, `float32` say.
    """

    name: str
    layer: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Of the gradient, as it is computed."""
        return self.size * np.dtype(self.dtype).itemsize


class ArrayLayer(NamedTuple):
    """A layer, as tuning asks for it: the places in memory in which its gradients travel."""

    name: str
    parameters: list[tuple[str, Tensor]]


def check_specs(specs: Sequence[ArraySpec]) -> None:
    """Look at what is to travel.

    Raises:
        InputError: nothing is, two have one name, or one has a dtype or shape that does not travel.
    """
    if not specs:
        raise InputError("the model has no trainable variable: no gradient to send")
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise InputError(f"two variables are named '{spec.name}': give their layers names of their own")
        seen.add(spec.name)
        if spec.dtype not in TRAVELLING:
            raise InputError(f"variable '{spec.name}' is {spec.dtype}; gradients travel as {', '.join(TRAVELLING)}")
        if any(not isinstance(side, int) for side in spec.shape):
            raise InputError(f"variable '{spec.name}' has no fixed shape: build the model before wrapping it")


def layers_of(specs: Sequence[ArraySpec]) -> dict[str, list[int]]:
    """Layers in the order of their first gradient, each with the places of its gradients."""
    layers: dict[str, list[int]] = {}
    for place, spec in enumerate(specs):
        layers.setdefault(spec.layer, []).append(place)
    return layers


def groups_of(specs: Sequence[ArraySpec], *, small: int) -> list[list[int]]:
    """Places of gradients that leave and come together: small ones with the one before them.

    Args:
        specs: in the order of the forward pass.
        small: the most bytes that a group has beside its first gradient.
    """
    groups: list[list[int]] = []
    left = 0
    for place, spec in enumerate(specs):
        if not groups or spec.nbytes > left:
            groups.append([])
            left = small
        else:
            left -= spec.nbytes
        groups[-1].append(place)
    return groups


def shape_of(name: str, specs: Sequence[ArraySpec]) -> Model:
    """The model as the scheduler knows it before anything is measured."""
    layers = tuple(
        Layer(layer, tuple(Travelling(specs[p].name, specs[p].size, specs[p].dtype, index) for p in places), 0.0, 0.0)
        for index, (layer, places) in enumerate(layers_of(specs).items())
    )
    return Model(name, layers, 1)
