"""Hooks on the user's modules that stay where they were set: a copy of a module, or a file of it, gets none."""

from collections.abc import Callable
from typing import Any, Self


class Hook:
    """A hook of one training.

    Args:
        call: what it does.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        self._call(*arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (nothing,)


def nothing(*_: object) -> None:
    """What a copied hook does."""
