"""Which optimizers can update a model layer by layer."""

from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)

from autobyte.internals import has_own_step, has_step_hooks
from autobyte.torch.model.pending import kind_of

#: Optimizers that treat every element by itself and keep state per parameter: updating layer by layer is the same.
ELEMENTWISE = (ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, Rprop)


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether an optimizer is one of these, and no subclass, which may override anything."""
    return kind_of(optimizer) in ELEMENTWISE


def can_cross_steps(optimizer: Optimizer) -> bool:
    """Whether updating layer by layer gives the same parameters as updating all at once.

    It does not for optimizers outside the list above, because a subclass may override anything. Nor does it with step
    hooks, or with a `step` that was set on the object: these expect one call a step.
    """
    return is_elementwise(optimizer) and not has_own_step(optimizer) and not has_step_hooks(optimizer)
