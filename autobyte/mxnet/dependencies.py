"""MXNet's dependency engine, by its C interface: what waits for an array, and what an array waits for."""

import ctypes
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet.base import _LIB, check_call

Release = Callable[[], None]

_Run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class _Device(ctypes.Structure):  # mxnet::Context
    _fields_ = (("kind", ctypes.c_int), ("index", ctypes.c_int))


_CPU = _Device(1, 0)
_PRIORITIZED = ctypes.c_int(3)  # FnProperty::kCPUPrioritized: threads of its own, beside those that compute

_waiting: dict[int, Callable[[Release], None]] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()


def hold(
    array: mx.nd.NDArray,
    begin: Callable[[Release], None],
    priority: int = 0,
    *,
    beside: Sequence[mx.nd.NDArray] = (),
    reads: Sequence[mx.nd.NDArray] = (),
) -> None:
    """Let whatever reads or writes an array from now on wait until it is released.

    Args:
        array: in host memory.
        begin: called in a thread of MXNet's, when all that was issued on the array so far is done. It is given what
            releases the array, to be called once, from any thread.
        priority: among what is ready.
        beside: more arrays that are held with it.
        reads: arrays that nothing writes meanwhile; others may read them.
    """
    held = [array, *beside]
    with _lock:
        number = next(_numbers)
        _waiting[number] = begin
    check_call(
        _LIB.MXEnginePushAsyncND(
            _run, ctypes.c_void_p(number), None, ctypes.byref(_CPU), _handles(reads), len(reads), _handles(held),
            len(held), ctypes.byref(_PRIORITIZED), priority, b"autobyte", False,
        )
    )  # fmt: skip


def _handles(arrays: Sequence[mx.nd.NDArray]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(arrays))(*(each.handle for each in arrays))


def memory(array: mx.nd.NDArray) -> npt.NDArray[Any]:
    """An array's values where they lie, flat; nothing waits."""
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    kind = np.dtype(array.dtype)
    raw = (ctypes.c_char * (array.size * kind.itemsize)).from_address(address.value or 0)
    return np.frombuffer(raw, dtype=kind)


def _on_run(_context: int, complete: int, number: int) -> None:
    """Copy the callback {callback, engine, parameter}, which lies on the caller's stack."""
    callback, engine, parameter = (ctypes.c_void_p * 3).from_address(complete)
    with _lock:
        begin = _waiting.pop(number)
    begin(lambda: _Run(callback or 0)(engine, parameter, None))


_run = _Run(_on_run)
