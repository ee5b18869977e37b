"""BytePS's parameter servers by its public interface for PyTorch.

A key is a tensor in memory that this process and the one that trains both see. BytePS pushes and pulls it in one
operation, whose end it tells only if it is asked.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Told = Callable[[int], None]  # of a key

POLL_S = 2e-4
#: Names of a key, in turn: a server writes what is pushed first over a sum that others may not have pulled yet.
TURNS = 2
NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
PRIVATE = 0x4000 | (1 << 18)  # MS_REC | MS_PRIVATE
SHARED_MEMORY = b"/dev/shm"

#: What BytePS reads beside `DMLC_*`: a rank is a machine with one device, and a block is not cut again.
ENVIRONMENT = {
    "BYTEPS_LOCAL_SIZE": "1",
    "BYTEPS_LOCAL_RANK": "0",
    "BYTEPS_FORCE_DISTRIBUTED": "1",
    "BYTEPS_PARTITION_BYTES": str(1 << 30),
    "BYTEPS_SOCKET_PATH": SHARED_MEMORY.decode(),
}


class BytePSStore:
    """A worker's end of BytePS's servers, or what serves or schedules, as the environment says (`DMLC_*`).

    Args:
        role: of this process.
        pushed, pulled: told, from another thread, that a key's sum is in its memory.
    """

    def __init__(self, role: str, *, pushed: Told, pulled: Told) -> None:
        self._pushed, self._pulled = pushed, pulled
        self._keys: list[torch.Tensor] = []
        self._rounds: list[int] = []  # how often each was moved
        self._pending: dict[int, int] = {}  # keys by BytePS's handles
        self._lock = threading.Lock()
        if role == "worker":
            from byteps.torch import ops  # noqa: PLC0415 - it brings PyTorch

            self._byteps = ops
            ops.init()
            threading.Thread(target=self._poll, name="autobyte-byteps", daemon=True).start()

    def serve(self) -> None:
        """Serve, or schedule; it ends with the process."""
        import byteps.server  # noqa: F401, PLC0415 - to import it is to serve

    def make(self, memory: memoryview, dtype: str) -> None:
        """Make the next key, beginning with 0. All workers must, at the same place among their keys.

        Args:
            memory: where its values lie.
            dtype: of these.
        """
        import torch  # noqa: PLC0415 - servers and scheduler do without

        for turn in range(TURNS):
            self._byteps.declare(f"autobyte.{len(self._keys)}.{turn}")
        self._keys.append(torch.frombuffer(memory, dtype=getattr(torch, dtype)))
        self._rounds.append(0)

    def move(self, key: int, priority: int) -> None:
        """Send a key's values to the servers, and get its sum from them."""
        turn = self._rounds[key] % TURNS
        self._rounds[key] += 1
        handle = self._byteps.push_pull_async_inplace(
            self._keys[key], average=False, name=f"autobyte.{key}.{turn}", priority=priority
        )
        with self._lock:
            self._pending[handle] = key

    def _poll(self) -> None:
        while True:
            with self._lock:
                pending = list(self._pending.items())
            for handle, key in pending:
                if self._byteps.poll(handle):
                    self._byteps.synchronize(handle)
                    with self._lock:
                        del self._pending[handle]
                    self._pushed(key)
                    self._pulled(key)
            time.sleep(POLL_S)


def own_shared_memory() -> None:
    """Let this process have a /dev/shm of its own: BytePS gives shared memory the same names in every process.

    It must run before any thread does: the kernel refuses a new user namespace to a process that has several.

    Raises:
        RuntimeError: this process may not have one.
    """
    libc: Any = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(NEW_MOUNTS) and libc.unshare(NEW_MOUNTS | NEW_USER):
        raise RuntimeError(
            f"engine='byteps' needs a /dev/shm of its own for each rank ({os.strerror(ctypes.get_errno())}): start "
            "ranks as root, or where user namespaces are allowed"
        )
    if os.getuid() != user:
        for name, line in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123 - no path of a file system
                file.write(line)
    if libc.mount(b"none", b"/", None, PRIVATE, None) or libc.mount(b"tmpfs", SHARED_MEMORY, b"tmpfs", 0, None):
        raise RuntimeError(f"cannot mount {SHARED_MEMORY.decode()}: {os.strerror(ctypes.get_errno())}")
