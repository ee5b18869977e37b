"""A congestion control inside the kernel, whose rate is read from a map for each connection; the paper's CCP.

MOCC's kernel datapath (section 5) is CCP, a kernel module that user space tells rates. Here a BPF program takes its
place (`paced.bpf.c`, struct_ops). Unlike a pace by SO_MAX_PACING_RATE, its rate holds alone: no other control of the
kernel's bounds what is in flight, so random losses do not slow a connection down.

It needs Linux 6.0, root, clang and bpftool; it ran on Linux 6.18. If its process is killed, it stays in the kernel
until the next one uses it, and connections that have it keep their last rates.
"""

import contextlib
import ctypes
import fcntl
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autobyte.errors import AutoByteError

NAME = "autobyte"  # of the congestion control, for TCP_CONGESTION
SOURCE = Path(__file__).with_name("paced.bpf.c")
MOUNT = Path("/sys/fs/bpf")
RATES = MOUNT / "autobyte_rates"  # where the loader pins the map
LOCK = Path("/run/autobyte-bpf.lock")
SYSCALL = {"x86_64": 321, "aarch64": 280}  # bpf(2), which C libraries do not wrap
MAP_UPDATE_ELEM, OBJ_GET = 2, 7  # commands of bpf(2)
TOOLS_S = 30.0
SINCE = (6, 0)  # of Linux: from then on such a program may set a connection's pace
MOST = (1 << 63) - 1


@dataclass(frozen=True)
class Rates:
    """The rates of connections, as the kernel reads them.

    Args:
        map: descriptor of the map.
    """

    map: int

    def set_pace(self, sock: socket.socket, bytes_per_s: float) -> None:
        """Send at this rate of payload (bytes/s), however high; the connection's TCP_CONGESTION must be `NAME`.

        Raises:
            AutoByteError: the kernel refuses it.
        """
        descriptor, rate = ctypes.c_int(sock.fileno()), ctypes.c_uint64(max(1, int(min(bytes_per_s, MOST))))
        element = _Element(self.map, 0, ctypes.addressof(descriptor), ctypes.addressof(rate), 0)
        _bpf(MAP_UPDATE_ELEM, element, f"takes no rate for '{NAME}'")


@contextlib.contextmanager
def paced_kernel() -> Iterator[Rates]:
    """Let the kernel have the congestion control `NAME`, for as long as the block lasts.

    It is built from source each time (0.3 s), for the kernel that runs. One process at a time may have it.

    >>> with paced_kernel() as rates:
    ...     sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME.encode())
    ...     rates.set_pace(sock, 1e6)

    Raises:
        AutoByteError: no right, no clang or bpftool, the kernel refuses the program, or another process has it.
    """
    _check()
    with contextlib.ExitStack() as stack:
        try:
            lock = os.open(LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AutoByteError(f"another process has the kernel's '{NAME}': wait until it ends") from None
        except OSError as error:
            raise AutoByteError(f"cannot lock {LOCK}: {error.strerror}") from error
        _remove()  # what a process left that was killed
        built = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "paced.o"
        _run("clang", "-O2", "-g", "-target", "bpf", "-c", str(SOURCE), "-o", str(built))
        if not MOUNT.is_mount():
            _run("mount", "-t", "bpf", "bpf", str(MOUNT))
        stack.callback(_remove)
        _run("bpftool", "struct_ops", "register", str(built))
        path = ctypes.create_string_buffer(bytes(RATES))
        found = _bpf(OBJ_GET, _Pinned(ctypes.addressof(path), 0, 0), f"does not open {RATES}")
        stack.callback(os.close, found)
        yield Rates(found)


class _Element(ctypes.Structure):
    """The part of the kernel's `union bpf_attr` that a map's update reads."""

    _fields_ = (
        ("map", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class _Pinned(ctypes.Structure):
    """The part of the kernel's `union bpf_attr` that opens what is pinned."""

    _fields_ = (("path", ctypes.c_uint64), ("descriptor", ctypes.c_uint32), ("flags", ctypes.c_uint32))


def _bpf(command: int, attributes: ctypes.Structure, failed: str) -> int:
    found: int = ctypes.CDLL(None, use_errno=True).syscall(
        SYSCALL[platform.machine()], command, ctypes.byref(attributes), ctypes.sizeof(attributes)
    )
    if found < 0:
        raise AutoByteError(f"the kernel {failed}: {os.strerror(ctypes.get_errno())}")
    return found


def _check() -> None:
    if platform.machine() not in SYSCALL:
        raise AutoByteError(f"the kernel's datapath does not know this machine, {platform.machine()}: take UDP")
    release = platform.release()
    if tuple(int(part) for part in re.findall(r"\d+", release)[:2]) < SINCE:
        raise AutoByteError(
            f"the kernel's datapath needs Linux {'.'.join(map(str, SINCE))}, this is {release}: take UDP"
        )
    if os.geteuid() != 0:
        raise AutoByteError("loading a BPF program needs root: run it by sudo, or take UDP")
    for tool in ("clang", "bpftool"):
        if shutil.which(tool) is None:
            raise AutoByteError(
                f"the kernel's datapath is built by clang and loaded by bpftool, and {tool} is missing"
            )


def _remove() -> None:
    """Take the control out of the kernel, if it is there; connections that have it keep it until they end."""
    with contextlib.suppress(AutoByteError):
        _run("bpftool", "struct_ops", "unregister", "name", NAME)
    RATES.unlink(missing_ok=True)


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TOOLS_S)
    except subprocess.TimeoutExpired:
        raise AutoByteError(f"{words[0]} did not end within {TOOLS_S:g} s") from None
    if done.returncode != 0:
        said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise AutoByteError(f"{' '.join(words[:3])} failed: {said[-1] if said else f'status {done.returncode}'}")
