"""Gradients that are clipped when they are used: the norm is known before the averages are in place."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from autobyte.errors import InputError

EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it


@dataclass(frozen=True)
class Clipping:
    """What happens to averages before the optimizer sees them.

    Args:
        factor: by which all are multiplied.
        limit: to which every element is clamped, both ways.
    """

    factor: float = 1.0
    limit: float = math.inf

    @classmethod
    def by_norm(cls, total: float, limit: float) -> "Clipping":
        """Clip so that the norm of all gradients is at most a limit.

        Reference: torch.nn.utils.clip_grad_norm_: limit / (norm + 1e-6), at most 1; NaN stays NaN.

        Args:
            total: the norm of all gradients.
            limit: to which it is brought.
        """
        factor = limit / (total + EPSILON)
        return cls(factor=factor if math.isnan(factor) else min(1.0, factor))

    @torch.no_grad()
    def apply(self, parameters: Iterable[nn.Parameter]) -> None:
        """Clip gradients in place; those that are None stay so."""
        if self.factor == 1.0 and self.limit == math.inf:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients and self.factor != 1.0:
            torch._foreach_mul_(gradients, self.factor)
        if gradients and self.limit < math.inf:
            torch._foreach_clamp_min_(gradients, -self.limit)
            torch._foreach_clamp_max_(gradients, self.limit)


def check_norm(max_norm: float, norm_type: float) -> tuple[float, float]:
    """The two as numbers.

    Raises:
        InputError: one of them is no such number.
    """
    limit, kind = float(max_norm), float(norm_type)
    if math.isnan(limit):
        raise InputError(f"max_norm must be a number, got {max_norm}")
    if not kind > 0:
        raise InputError(f"norm_type must be above 0, or infinity, got {norm_type}")
    return limit, kind


def check_finite(total: float, norm_type: float, *, error_if_nonfinite: bool) -> None:
    """Refuse to clip by a norm that is no number, in torch's words.

    Raises:
        RuntimeError: it is not finite, and that is to be an error.
    """
    if error_if_nonfinite and not math.isfinite(total):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be "
            "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
