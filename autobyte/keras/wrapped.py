"""What `distribute` returns: a model whose gradients are averaged, until it is closed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping
from typing import Any

from autobyte.errors import InputError, needs
from autobyte.exchange.tuning.report import Report

with needs("keras", what="training with Keras"):
    import keras

#: The attribute of a model that keeps what it is wrapped in.
OWN = "_autobyte"

#: What is said of a model that trains with optimizers of its own.
UNUSED = (
    "train_step did not use model.optimizer, and no gradient was averaged: apply gradients with the optimizer that "
    "compile() was given, or use DistributedGradientTape in place of distribute()"
)


def other_optimizers(model: Any) -> dict[str, int]:
    """How often optimizers that are attributes of a model, beside its own, have been applied, by attribute."""
    held = vars(model).items()
    kind = keras.optimizers.Optimizer
    return {k: int(v.iterations) for k, v in held if isinstance(v, kind) and v is not model.optimizer}


def refuse_others(model: Any, before: Mapping[str, int], *, averaged: Container[int] = ()) -> None:
    """Refuse a model whose first step has applied gradients that were not averaged.

    Args:
        model: its other optimizers are looked at.
        before: what `other_optimizers` said before the step.
        averaged: ids of variables that are averaged in another way.

    Raises:
        InputError: a step uses one of them.
    """
    for name, count in other_optimizers(model).items():
        variables = vars(model)[name]._trainable_variables
        if count != before.get(name) and any(id(variable) not in averaged for variable in variables):
            raise InputError(
                f"train_step applies gradients with self.{name} beside model.optimizer, and they are not averaged: "
                "use one optimizer, or DistributedGradientTape for all of them in place of distribute()"
            )


class Wrapped(ABC):
    """A model that `distribute` has taken in hand. It has the same methods on every backend, and on a single rank.

    >>> wrapped = ab.distribute(model)
    >>> model.fit(...)
    >>> print(wrapped.report())
    >>> wrapped.close()
    """

    @abstractmethod
    def flush(self) -> None:
        """Take every update that is due: afterwards weights are what the last step made of them. Not collective."""

    @abstractmethod
    def report(self) -> Report | None:
        """What was tried, won and spent; None on a single rank."""

    @abstractmethod
    def close(self) -> None:
        """Take the last updates, let go of threads and sockets, and leave the model as it was without AutoByte."""


class Alone(Wrapped):
    """A model on a single rank: there is nothing to average."""

    def flush(self) -> None:
        """Do nothing."""

    def report(self) -> None:
        """Know nothing."""

    def close(self) -> None:
        """Do nothing."""


class Overrides:
    """Methods of an object that are replaced on this object alone, and put back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str]] = []

    def set(self, owner: Any, name: str, method: Callable[..., Any]) -> None:
        """Replace a method, beside Keras's tracking of attributes: saving sees the object as it was."""
        vars(owner)[name] = method
        self._replaced.append((owner, name))

    def remove(self) -> None:
        """Put all methods back."""
        for owner, name in self._replaced:
            vars(owner).pop(name, None)
        self._replaced.clear()
