"""Hooks on the user's modules that stay where they were set: a copy of a module, or a file of it, gets none."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Self

from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class Hook(partial[None]):
    """A hook of one training: it calls what it is made of, with no call of Python's in between.

    Args:
        call: what it does.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (nothing,)


def nothing(*_: object) -> None:
    """What a copied hook does."""


def around_state(
    model: nn.Module, optimizer: Optimizer, *, before: Callable[[], None], loaded: Callable[[], None]
) -> list[RemovableHandle]:
    """Hear of everybody who reads or writes state.

    Args:
        model: whose state it is, or a part's.
        optimizer: whose state it is, too.
        before: is called before state is read or written.
        loaded: is called when it was written.
    """
    first, last = Hook(lambda *_: before()), Hook(lambda *_: loaded())
    handles: list[RemovableHandle] = []
    for module in model.modules():
        handles += [
            module.register_state_dict_pre_hook(first),  # type: ignore[no-untyped-call]
            module.register_load_state_dict_pre_hook(first),  # type: ignore[no-untyped-call]
            module.register_load_state_dict_post_hook(last),  # type: ignore[no-untyped-call]
        ]
    with suppress(AttributeError):  # an optimizer that never called torch's constructor has no places for hooks
        handles += [
            optimizer.register_state_dict_pre_hook(first),
            optimizer.register_load_state_dict_pre_hook(first),
            optimizer.register_load_state_dict_post_hook(last),
        ]
    return handles
