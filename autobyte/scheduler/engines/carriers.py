"""The processes of one rank that carry blocks, and serve, for a library of parameter servers."""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil
import torch

from autobyte.scheduler.engines import carrier
from autobyte.scheduler.engines.lines import Line

STARTING_S = 60.0  # in which the scheduler must have begun
ENDING_S = 5.0
LOOK_S = 0.02  # between two looks at what the scheduler listens at
PORTS = 3  # that the scheduler tries


class Library(NamedTuple):
    """A library of parameter servers.

    Args:
        name: for messages.
        path: of MXNet's shared library; empty is BytePS.
        wide: what travels instead of a dtype that its servers do not add up.
        environment: what its processes read beside what ps-lite does.
    """

    name: str
    path: str
    wide: Mapping[torch.dtype, torch.dtype]
    environment: dict[str, str]


class Carriers:
    """Starts a carrier and a server on every rank, and a scheduler on the first.

    Args:
        library: of the servers.
        rank, size: of this process among those that train.
        host: the address of this host that others reach.
        share: gives the first rank's value to all; collective.

    Raises:
        OSError: a process does not start; on all ranks, if it is the scheduler.
    """

    def __init__(
        self,
        library: Library,
        *,
        rank: int,
        size: int,
        host: str,
        share: Callable[[Any], Any],
    ) -> None:
        self.what, self.wide = library.name, library.wide
        self._rank = rank
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: list[Line] = []
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this
        self.memory = os.memfd_create("autobyte")
        self._environment = library.environment
        self._told = {"library": library.path, "rank": rank, "workers": size, "host": host, "memory": self.memory}
        self._told["parent"] = os.getpid()
        self._token = ""
        try:
            place = share(self._schedule(host) if rank == 0 else None)
            if isinstance(place, str):
                raise ConnectionError(place)
            root, port, meeting, self._token = place
            self._told |= {"root": root, "port": port, "meeting": (root, meeting)}
            self._launch("server")
            self.line = self._launch("worker")
        except BaseException:
            self.close()
            raise

    def last_words(self, role: str = "worker") -> str:
        """What is known of the end of the process that was started last."""
        with suppress(subprocess.TimeoutExpired):
            self._processes[-1].wait(ENDING_S)
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        told = f": {lines[-1]:.200}" if lines else ""
        status = self._processes[-1].returncode
        end = f"does not answer for {STARTING_S:g} s" if status is None else f"has ended with status {status}"
        return f"the {role} of {self.what} on rank {self._rank} {end}{told}"

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for line in self._lines:
            line.close()
        self._log.close()
        memory, self.memory = self.memory, -1
        if memory >= 0:
            os.close(memory)

    def _schedule(self, host: str) -> tuple[str, int, int, str] | str:
        """Start the scheduler; its address, its port, the one where all members meet and their token, or its end.

        The library takes the port itself, after it was found free: if another process was faster, it is told another.
        """
        self._token = secrets.token_hex(16)
        for _ in range(PORTS):
            port = free_port(host)
            self._told |= {"root": host, "port": port}
            line = self._launch("scheduler")
            line.sock.settimeout(STARTING_S)
            meet = next(line.messages(), None)
            if meet is None:
                break
            if listens(self._processes[-1], port):
                return host, port, meet[1], self._token
            if self._processes[-1].poll() is None:
                break
        return self.last_words("scheduler")

    def _launch(self, role: str) -> Line:
        near, far = socket.socketpair()
        told = {**self._told, "role": role}
        with far:
            process = subprocess.Popen(
                [sys.executable, "-m", carrier.__name__, json.dumps(told)],
                stdin=far.fileno(), stdout=self._log, stderr=self._log, pass_fds=[self.memory],
                env=environment(role, told) | self._environment | {carrier.TOKEN: self._token},
            )  # fmt: skip
        self._processes.append(process)
        self._lines.append(Line(near))
        return self._lines[-1]


def free_port(host: str) -> int:
    """A port that nobody listens at, for the moment."""
    with socket.create_server((host, 0)) as free:
        port: int = free.getsockname()[1]
        return port


def listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until a process listens at a port: False if it ends before, or takes too long."""
    until = time.monotonic() + STARTING_S
    while process.poll() is None and time.monotonic() < until:
        for each in psutil.net_connections("tcp"):
            if each.pid == process.pid and each.status == psutil.CONN_LISTEN and each.laddr.port == port:
                return True
        time.sleep(LOOK_S)
    return False


def environment(role: str, told: Mapping[str, Any]) -> dict[str, str]:
    """What ps-lite reads, beside what this process has; of `DMLC_*` and `PS_*` nothing of this process's own.

    Args:
        role: of the process.
        told: what it is told.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "PS_"))}
    paths = [str(Path(__file__).parents[3]), kept.get("PYTHONPATH", "")]
    return kept | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "DMLC_ROLE": role,
        "DMLC_NUM_WORKER": str(told["workers"]),
        "DMLC_NUM_SERVER": str(told["workers"]),
        "DMLC_PS_ROOT_URI": told["root"],
        "DMLC_PS_ROOT_PORT": str(told["port"]),
        "DMLC_NODE_HOST": told["host"],
        "DMLC_WORKER_ID": str(told["rank"]),
    }
