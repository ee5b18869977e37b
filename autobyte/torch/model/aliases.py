"""Finds parameters and gradients that somebody else holds: what is done to them by another name cannot be seen."""

import sys
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from autobyte.internals import is_shared


def held(parameters: Mapping[str, nn.Parameter]) -> str:
    """The first parameter whose memory, or whose gradient, something else holds: a view, an array, a list.

    Args:
        parameters: by name; no update is due, and no gradient travels.

    Returns:
        its name; empty if there is none.
    """
    alone = torch.zeros(1, requires_grad=True)
    alone.grad = torch.zeros(1)
    least = _names(alone)
    for name, parameter in parameters.items():
        if is_shared(parameter) or _names(parameter) > least:
            return name
        gradient = parameter.grad
        if gradient is not None and (gradient._is_view() or is_shared(gradient)):
            return name
    return ""


def _names(parameter: Tensor) -> int:
    """How many names a gradient has, besides its parameter's."""
    return 0 if parameter.grad is None else sys.getrefcount(parameter.grad)
