"""Clusters of parameter servers of another library, with all ranks in this process."""

import importlib
import importlib.util
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes.util import find_library
from typing import Any

import pytest

from autobyte.scheduler.engines.base import Engine
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.carried import Carried
from autobyte.scheduler.engines.carriers import Carriers, Library

STARTING_S = 60.0


def _is_installed(package: str) -> bool:
    """The folder tests/mxnet has a name alone."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def _why_no_mxnet() -> str:
    if not _is_installed("mxnet"):
        return "MXNet is not installed here: make mxnet"
    return "" if find_library("quadmath") else "MXNet needs libquadmath.so.0, which is not here: install libquadmath0"


WITH_MXNET = pytest.mark.skipif(bool(_why_no_mxnet()), reason=_why_no_mxnet())
WITH_BYTEPS = pytest.mark.skipif(not _is_installed("byteps"), reason="BytePS is not installed here: make byteps")
WITH_HOROVOD = pytest.mark.skipif(not _is_installed("horovod"), reason="Horovod is not installed here: make horovod")


def carried(buffers: list[Buffers], library: Library) -> list[Engine]:
    """An engine for each rank, connected to the servers of all of them."""
    size = len(buffers)
    shared: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def share_first(value: Any) -> Any:
        for _ in range(size - 1):
            shared.put(value)
        return value

    def make(rank: int) -> Carried:
        share: Callable[[Any], Any] = share_first if rank == 0 else lambda _: shared.get(timeout=STARTING_S)
        engine = Carried(buffers[rank], Carriers(library, rank=rank, size=size, host="127.0.0.1", share=share))
        engine.join(STARTING_S)
        return engine

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(make, range(size)))


def with_names() -> tuple[Any, Any]:
    """`autobyte.mxnet` and `mxnet`, in this order, which a linter would change."""
    return importlib.import_module("autobyte.mxnet"), importlib.import_module("mxnet")
