"""Threads that may be inside PyTorch when the process ends. Coming back while the interpreter ends crashes it."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable

from autobyte.internals import hang_up

PARTING_S = 1.0  # that they are waited for, before they are cut off from the store, and after that

ending = threading.Event()  # the process ends
_threads: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


def in_thread(action: Callable[[], None], *, name: str) -> threading.Thread:
    """Start an action in a thread that is waited for when the process ends."""
    thread = threading.Thread(target=action, name=name, daemon=True)
    _threads.add(thread)
    thread.start()
    return thread


@atexit.register
def part() -> None:
    """Let threads come back. One that waits for a store that does not answer does so once its socket is shut down."""
    ending.set()
    if not _come_back():
        hang_up()
        _come_back()


os.register_at_fork(after_in_child=lambda: atexit.unregister(part))  # threads and sockets are the parent's


def _come_back() -> bool:
    until_s = time.monotonic() + PARTING_S
    for thread in list(_threads):
        thread.join(max(0.0, until_s - time.monotonic()))
    return not any(thread.is_alive() for thread in list(_threads))
