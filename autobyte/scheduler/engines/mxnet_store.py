"""MXNet's parameter servers by the C interface of its library: no Python of MXNet's is loaded, and no NumPy.

A key is an array in memory that both this process and the one that trains see. In `dist_sync` without an optimizer
servers keep the sum of what all workers have pushed. They acknowledge a push when they have that.
"""

import ctypes
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any

Told = Callable[[int], None]  # of a key

LIBRARY = "libmxnet.so"
FLOATS = {"float16": 16, "float32": 32, "float64": 64}  # bits of what servers can add up
WHOLE = 32_768  # elements: a block that has more is split over the servers

_Run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_Control = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class _Context(ctypes.Structure):  # mxnet::Context
    _fields_ = (("kind", ctypes.c_int), ("index", ctypes.c_int))


class _DLTensor(ctypes.Structure):  # DLManagedTensor of dlpack.h, with the DLTensor in it
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Context),
        ("ndim", ctypes.c_int),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_CPU = _Context(1, 0)
_PRIORITIZED = ctypes.c_int(3)  # FnProperty::kCPUPrioritized: threads of its own, beside those that add up


class MXNetStore:
    """A worker's, a server's or the scheduler's end of a `dist_sync` store, as the environment says (`DMLC_*`).

    Making one returns when all of the cluster are there.

    Args:
        library: path of MXNet's shared library.
        pushed: told, from any thread, that servers have a key of all workers.
        pulled: told, from any thread, that a key's sum is in its memory.
    """

    def __init__(self, library: str, *, pushed: Told, pulled: Told) -> None:
        os.environ.setdefault("MXNET_KVSTORE_BIGARRAY_BOUND", str(WHOLE))
        self._mxnet = ctypes.CDLL(library)
        self._mxnet.MXGetLastError.restype = ctypes.c_char_p
        self._pushed, self._pulled = pushed, pulled
        self._arrays: list[tuple[Any, ...]] = []  # handles by key, with what they need to live
        self._told: dict[int, tuple[Told, int]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._run = _Run(self._on_run)
        self._store = ctypes.c_void_p()
        self._call("MXKVStoreCreate", b"dist_sync", ctypes.byref(self._store))

    def serve(self) -> None:
        """Serve, or schedule; it ends with the process."""
        self._control = _Control(lambda head, body, handle: None)
        self._call("MXKVStoreRunServer", self._store, self._control, None)

    def make(self, memory: memoryview, dtype: str) -> None:
        """Make the next key, beginning with 0. All workers must, at the same place among their keys.

        Args:
            memory: where its values lie.
            dtype: of these: one of `FLOATS`.
        """
        raw = (ctypes.c_char * memory.nbytes).from_buffer(memory)
        shape = (ctypes.c_int64 * 1)(memory.nbytes * 8 // FLOATS[dtype])
        described = _DLTensor(
            ctypes.addressof(raw), _CPU, 1, 2, FLOATS[dtype], 1, shape, None, 0, None, None
        )  # 2 is a float
        array = ctypes.c_void_p()
        self._call("MXNDArrayFromDLPackEx", ctypes.byref(described), False, ctypes.byref(array))
        key = len(self._arrays)
        self._arrays.append((array, raw, shape, described))
        self._call("MXKVStoreInit", self._store, 1, (ctypes.c_int * 1)(key), (ctypes.c_void_p * 1)(array))

    def move(self, key: int, priority: int) -> None:
        """Send a key's values to the servers, and get its sum from them."""
        keys, arrays = (ctypes.c_int * 1)(key), (ctypes.c_void_p * 1)(self._arrays[key][0])
        for function, told in (("MXKVStorePush", self._pushed), ("MXKVStorePull", self._pulled)):
            self._call(function, self._store, 1, keys, arrays, priority)
            self._tell_after(key, told, priority)

    def _tell_after(self, key: int, told: Told, priority: int) -> None:
        """Put into MXNet's engine, behind what was given to it for an array and before what follows."""
        with self._lock:
            number = next(self._numbers)
            self._told[number] = told, key
        self._call(
            "MXEnginePushSyncND", self._run, ctypes.c_void_p(number), None, ctypes.byref(_CPU), None, 0,
            (ctypes.c_void_p * 1)(self._arrays[key][0]), 1, ctypes.byref(_PRIORITIZED), priority, b"autobyte",
        )  # fmt: skip

    def _on_run(self, _context: int, number: int) -> None:
        with self._lock:
            told, key = self._told.pop(number)
        told(key)

    def _call(self, function: str, *arguments: Any) -> None:
        if getattr(self._mxnet, function)(*arguments):
            raise RuntimeError(self._mxnet.MXGetLastError().decode(errors="replace").strip().splitlines()[0])
