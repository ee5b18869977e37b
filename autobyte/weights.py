"""Wishes as people write them: named weights that sum to 1, such as throughput=0.8,latency=0.1,loss=0.1."""

import math
from collections.abc import Sequence
from numbers import Real

from autobyte.errors import InputError

TOLERANCE = 1e-6  # of a sum


def check_weights(weights: Sequence[float], names: Sequence[str], *, example: Sequence[float]) -> None:
    """Refuse weights that do not weigh.

    Args:
        weights: of each name.
        names: what is weighed.
        example: weights to show where all are 0.

    Raises:
        InputError: a weight is negative or no number, or they do not sum to 1.
    """
    for name, weight in zip(names, weights, strict=True):
        if not isinstance(weight, Real) or not 0 <= weight < math.inf:
            raise InputError(f"weight of {name} must be a number from 0 to 1, got {weight}")
    total = sum(weights)
    if abs(total - 1) > TOLERANCE:
        parts = ", ".join(f"{weight:.3g}" for weight in ([w / total for w in weights] if total else example))
        raise InputError(f"weights must sum to 1, got {show_weights(weights)} with sum {total:.6g}; write {parts}")


def parse_weights(text: str, names: Sequence[str], *, example: Sequence[float]) -> list[float]:
    """Read weights as people write them, in any order or without names; `check_weights` judges them.

    >>> parse_weights("loss=0.1,latency=0.9", ("latency", "loss"), example=(0.5, 0.5))
    [0.9, 0.1]

    Args:
        text: what is read.
        names: what is weighed, in the order of the answer.
        example: weights to show where the text cannot be read.

    Raises:
        InputError: a name that is missing, unknown or there twice, or a weight that is no number.
    """
    parts = [part.strip() for part in text.split(",")]
    named = dict(part.split("=", 1) for part in parts if "=" in part) if "=" in text else dict(zip(names, parts))  # noqa: B905
    try:
        if set(named) != set(names) or len(parts) != len(names):
            raise ValueError
        return [float(named[name]) for name in names]
    except ValueError:
        shown = ",".join(f"{name}={weight:g}" for name, weight in zip(names, example, strict=True))
        raise InputError(f"cannot read objective '{text}'; write it like {shown}") from None


def show_weights(weights: Sequence[float]) -> str:
    """Write weights briefly.

    >>> show_weights((0.8, 0.1, 0.1))
    '⟨0.8, 0.1, 0.1⟩'
    """
    return "⟨" + ", ".join(f"{weight:g}" for weight in weights) + "⟩"
