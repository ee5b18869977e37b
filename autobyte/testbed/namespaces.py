"""Network namespaces: who may make them, whose they are, how a thread enters, and what goes when their owner is gone.

pyroute2 forks a child for much of this. That hangs sooner or later in a process with threads, so here the calling
thread itself changes its namespace: those of other threads stay as they are.
"""

import contextlib
import ctypes
import itertools
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autobyte.errors import AutoByteError, require

PREFIX = "autobyte"
CLONE_NEWNET = 0x40000000
GONE_S = 5.0  # how long a killed process may take to end

_testbeds = itertools.count()  # of this process


class TestbedError(AutoByteError):
    """The testbed cannot be made, or is not what it should be."""

    __test__ = False  # pytest: no test


def pyroute2() -> Any:
    """The library that speaks netlink.

    Raises:
        MissingExtra: it is not installed.
    """
    return require("pyroute2", extra="testbed", what="the testbed")


def check_right() -> None:
    """Make sure that this process may make network namespaces.

    Raises:
        TestbedError: it may not, with what to do.
    """
    if not Path("/proc/self/ns/net").exists():
        raise TestbedError("the testbed needs Linux with network namespaces")
    if os.geteuid() != 0:
        raise TestbedError("the testbed needs root, to make network namespaces: run it with sudo")


def new_owner() -> str:
    """A name for one more testbed of this process: its id, when it started, and a number.

    The start time tells a process from a later one with the same id.
    """
    return f"{PREFIX}-{os.getpid()}-{_started(os.getpid())}-{next(_testbeds)}"


def create(name: str) -> None:
    """Make a namespace."""
    with _aside():
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        pyroute2().netns.attach(name, "thread-self")


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """Let the calling thread be in a namespace: sockets and processes that it makes are there, and stay there."""
    with _aside():
        place = os.open(f"/run/netns/{name}", os.O_RDONLY)
        try:
            pyroute2().netns.setns(place)
        finally:
            os.close(place)
        yield


@contextlib.contextmanager
def netlink(name: str) -> Iterator[Any]:
    """Talk to a namespace's kernel side."""
    with inside(name), pyroute2().IPRoute() as route:
        yield route


def clean_up() -> None:
    """Remove namespaces of runs that are gone, with what still runs in them."""
    for name in pyroute2().netns.listnetns():
        owner, _, part = name.rpartition("-")
        if re.fullmatch(r"h\d+|switch", part) and is_gone(owner):
            remove(name)


def is_gone(owner: str) -> bool:
    """Whether this is a name of `new_owner`'s, and the process that made it runs no more."""
    match = re.fullmatch(rf"{PREFIX}-(\d+)-(\d+)-\d+", owner)
    return match is not None and _started(int(match[1])) != int(match[2])


def remove(name: str) -> None:
    """Remove a namespace, with what still runs in it."""
    deadline = time.monotonic() + GONE_S
    while (left := processes_in(name)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)
    with contextlib.suppress(OSError):  # another run has cleaned up meanwhile
        pyroute2().netns.remove(name)


def processes_in(name: str) -> Sequence[int]:
    """Processes whose network namespace is this one, but for the calling one."""
    try:
        wanted = Path(f"/run/netns/{name}").stat()
    except OSError:
        return []
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # gone meanwhile; a zombie has no namespace any more
                its = (entry / "ns" / "net").stat()
                if (its.st_dev, its.st_ino) == (wanted.st_dev, wanted.st_ino):  # inodes alone may be another file's
                    pids.append(int(entry.name))
    return pids


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    """Bring the calling thread back to the namespace that it is in now."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        yield
    finally:
        pyroute2().netns.setns(own)
        os.close(own)


def _started(process: int) -> int | None:
    """When a process started, in the kernel's ticks since boot; None if there is none."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
