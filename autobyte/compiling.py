"""Numba's `njit`, which works where nothing can be kept, too, and a word to whoever waits for a compilation."""

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, overload

import numba
from numba.core import event

Function = TypeVar("Function", bound=Callable[..., Any])

log = logging.getLogger("autobyte")


class CompileNotice(event.Listener):
    """Says once that code of this package is being compiled; code that the cache has is not."""

    def __init__(self) -> None:
        self.said = False

    def on_start(self, event: Any) -> None:
        """Look at what is about to be compiled."""
        function = event.data["dispatcher"].py_func
        if not self.said and function.__module__.startswith("autobyte."):
            self.said = True
            log.warning("compiling the simulator for this machine: up to a minute, once")

    def on_end(self, event: Any) -> None:
        """Nobody waits any more."""


@cache
def _say_that_nothing_is_kept() -> None:
    """Once: every process will compile again."""
    log.warning(
        "cannot keep compiled code, so every start compiles it again: neither %s nor the home folder can be written; "
        "set NUMBA_CACHE_DIR to a folder that can",
        Path(__file__).parent,
    )


@overload
def njit(function: Function) -> Function: ...
@overload
def njit(**options: Any) -> Callable[[Function], Function]: ...
def njit(function: Any = None, **options: Any) -> Any:
    """`numba.njit`, but for `cache=True` without a place for it: then the code is compiled, and not kept.

    >>> @njit(cache=True)
    ... def twice(x: float) -> float:
    ...     return 2 * x
    """
    if function is None:
        return lambda one: _compiled(one, options)
    return _compiled(function, options)


def _compiled(function: Any, options: dict[str, Any]) -> Any:
    try:
        return numba.njit(function, **options)
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
        _say_that_nothing_is_kept()
        return numba.njit(function, **(options | {"cache": False}))


event.register("numba:compile", CompileNotice())  # type: ignore[no-untyped-call]
