"""Numba's `njit`, and a word to whoever waits for the first compilation on a machine."""

import logging
from typing import Any

from numba import njit
from numba.core import event

__all__ = ["njit"]

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


event.register("numba:compile", CompileNotice())  # type: ignore[no-untyped-call]
