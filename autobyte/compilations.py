"""What Numba compiles in the background, and an end to it when the process ends."""

import atexit
import threading
import time
from typing import Any

from numba.core import event

COMPILE = "numba:compile"
PARTING_S = 10.0  # how long the end of a process waits for a pass of the compiler, which takes up to 2 s alone


class Compilations(event.Listener):
    """Knows which threads compile code of this package.

    When the process ends, those in the background end before the next pass of the compiler: nobody needs the result,
    and LLVM at work while it is unloaded crashes the process.
    """

    def __init__(self) -> None:
        self.under_way: list[threading.Thread] = []  # once for each function

    def on_start(self, event: Any) -> None:
        """Look whether this thread shall go on."""
        thread = threading.current_thread()
        if _is_ours(event):
            self.under_way.append(thread)
        if thread in self.under_way and thread.daemon and not threading.main_thread().is_alive():
            raise SystemExit("the process ends")

    def on_end(self, event: Any) -> None:
        """A function is compiled, or never will be."""
        if _is_ours(event):
            self.under_way.remove(threading.current_thread())


def _is_ours(event: Any) -> bool:
    """Whether a function of this package is meant, not one of a library or a pass of the compiler."""
    return event.kind == COMPILE and bool(event.data["dispatcher"].py_func.__module__.startswith("autobyte."))


_compilations = Compilations()
for kind in (COMPILE, "numba:run_pass"):
    event.register(kind, _compilations)  # type: ignore[no-untyped-call]


def is_compiling() -> bool:
    """Whether code of this package is being compiled."""
    return bool(_compilations.under_way)


@atexit.register
def _part() -> None:
    """Wait until nothing is compiled."""
    until_s = time.monotonic() + PARTING_S
    for thread in {*_compilations.under_way} - {threading.current_thread()}:
        thread.join(max(0.0, until_s - time.monotonic()))
