"""One GPU for the ranks of all hosts: NCCL's settings, and the daemon (MPS) that lets their kernels run side by side.

NCCL refuses two ranks on one device unless they seem to be on two machines, and then would still move gradients in
shared memory: it is told that every rank is a machine of its own, and that there is nothing but sockets. Without MPS,
processes take turns on the GPU, and every collective of theirs takes some turns.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from autobyte.testbed.namespaces import GONE_S, TestbedError, is_gone, new_owner

CONTROL, QUERY = "nvidia-cuda-mps-control", "nvidia-smi"
SUFFIX = "-mps"
STARTING_S, QUITTING_S = 20.0, 5.0

#: What all ranks get, whatever GPU it is.
SETTINGS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
    "CUDA_MODULE_LOADING": "EAGER",  # a kernel that is loaded lazily waits for kernels that wait for it
    "CUDA_SCALE_LAUNCH_QUEUES": "4x",  # under MPS they are short: a rank that runs ahead blocks, its collectives too
}


class SharedGpu:
    """The GPU of this machine, for the ranks of one launch; with MPS, which ends with the block.

    >>> with SharedGpu() as gpu, Testbed(4, rate=1.25e9) as testbed:
    ...     with testbed.start(["python", "train.py"], gpu=gpu) as launch:
    ...         launch.wait(timeout_s=60)

    Use one for each launch: what a rank that hung leaves in MPS, the next launch would find.

    Raises:
        TestbedError: there is no GPU here or no MPS, or MPS does not start.
    """

    def __enter__(self) -> Self:
        self.card, self.driver = find_gpu()
        if shutil.which(CONTROL) is None:
            raise TestbedError(f"ranks cannot share the GPU: no {CONTROL} in PATH; it comes with NVIDIA's driver")
        clean_up()
        self._folder = Path(tempfile.gettempdir()) / f"{new_owner()}{SUFFIX}"
        self._folder.mkdir()
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def environment(self, rank: int) -> dict[str, str]:
        """What a rank needs beside torchrun's variables and the name of its interface."""
        return SETTINGS | _variables(self._folder) | {"NCCL_HOSTID": f"rank{rank}"}

    def _start(self) -> None:
        log = self._folder / "start"
        try:
            with log.open("w") as out:  # the daemon keeps it open: a pipe would never end
                command = [CONTROL, "-d"]
                env = os.environ | _variables(self._folder)
                done = subprocess.run(
                    command, env=env, stdout=out, stderr=out, timeout=STARTING_S, start_new_session=True, check=False
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TestbedError(f"{CONTROL} -d: {error}") from error
        if done.returncode:
            words = log.read_text(errors="replace").strip().splitlines()
            raise TestbedError(f"{CONTROL} -d ended with status {done.returncode}{f': {words[-1]}' if words else ''}")

    def _end(self) -> None:
        end(self._folder)


def find_gpu() -> tuple[str, str]:
    """Name of the first GPU of this machine, and version of its driver.

    Raises:
        TestbedError: there is none, or it is hidden.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        raise TestbedError("CUDA_VISIBLE_DEVICES is empty, so ranks see no GPU; unset it")
    command = [QUERY, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=STARTING_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise TestbedError(f"no GPU on this machine: {QUERY} does not run") from None
    card, _, driver = done.stdout.partition("\n")[0].partition(", ")
    if done.returncode or not driver:
        raise TestbedError(f"no GPU on this machine: {QUERY} names none")
    return card.strip(), driver.strip()


def clean_up() -> None:
    """End the daemons of runs that are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"*{SUFFIX}"):
        if is_gone(folder.name.removesuffix(SUFFIX)):
            end(folder)


def end(folder: Path) -> None:
    """Ask a daemon to quit, kill by their ids what is left of it and of its clients, and remove its folder."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # a client that hangs keeps it from quitting
        subprocess.run(
            [CONTROL],
            input=f"quit -t {QUITTING_S / 2:.0f}\n",
            text=True,
            env=os.environ | _variables(folder),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=QUITTING_S,
            check=False,
        )
    deadline = time.monotonic() + GONE_S
    while (left := users(folder)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def users(folder: Path) -> Sequence[int]:
    """Processes that were started with this folder as MPS's: the daemon, its servers, and ranks."""
    wanted = f"CUDA_MPS_PIPE_DIRECTORY={folder}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # gone meanwhile, or another user's
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
    return pids


def _variables(folder: Path) -> dict[str, str]:
    return {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
