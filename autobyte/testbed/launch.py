"""Starts a command as several ranks, as torchrun would; when one fails or is late, it ends all of them."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from autobyte.errors import InputError
from autobyte.testbed.namespaces import TestbedError

PORT = 29500
ENDING_S = 2.0  # between SIGTERM and SIGKILL
TICK_S = 0.1
READING_S = 1.0  # for what a rank wrote last
KEPT_LINES = 200_000
TIMED_OUT = 124  # the exit status that timeout(1) gives

Show = Callable[[int, str], None]


@dataclass(frozen=True)
class Finished:
    """How one rank ended.

    `returncode` is its exit status, or minus the signal that ended it; `output` is what it wrote, both streams;
    `stopped` says that it was ended because another rank had failed, or time was up.
    """

    rank: int
    host: int
    returncode: int
    output: str
    stopped: bool


class LaunchError(TestbedError):
    """A rank failed, or was late. `finished` says how each ended, `status` is an exit status to pass on."""

    def __init__(self, message: str, finished: Sequence[Finished], status: int) -> None:
        super().__init__(message)
        self.finished = list(finished)
        self.status = status


@dataclass(frozen=True)
class Seat:
    """Where a rank runs: on which host, how a thread gets in there and out again, and variables of its own."""

    host: int
    inside: Callable[[], AbstractContextManager[None]]
    env: Mapping[str, str] = field(default_factory=dict)


class Launch:
    """A command that runs as several ranks; whatever happens, none is left when the block ends.

    >>> with testbed.start(["python", "train.py"]) as launch:
    ...     testbed.cut(2)
    ...     finished = launch.wait(timeout_s=60, check=False)

    Args:
        command: the program and its arguments.
        seats: one for each rank.
        master: address of the first rank's host.
        port: that the ranks meet at; two jobs at the same time need two.
        interface: that gloo and NCCL are told to use.
        env: variables beside this process's own and torchrun's.
        show: called with rank and line, from several threads, as lines are written.

    Raises:
        InputError: there is no such command.
    """

    def __init__(
        self,
        command: Sequence[str],
        seats: Sequence[Seat],
        *,
        master: str,
        port: int = PORT,
        interface: str = "lo",
        env: Mapping[str, str] | None = None,
        show: Show | None = None,
    ) -> None:
        if not command or not seats:
            raise InputError("nothing to start: a launch needs a command and at least one host")
        self._began_s = time.monotonic()
        self._seats = list(seats)
        self._show = show
        self._lines: list[deque[str]] = [deque(maxlen=KEPT_LINES) for _ in seats]
        self._processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._running: dict[int, int] = {}  # pidfd by rank
        self._stopped: set[int] = set()
        self._failed: int | None = None  # the first rank that ended badly by itself
        hosts = [seat.host for seat in seats]
        # Ctrl-C interrupts the main thread, never the one that starts processes.
        with ThreadPoolExecutor(1) as starter:
            try:
                for rank, seat in enumerate(seats):
                    variables = rank_environment(rank, hosts, master, port, interface)
                    variables |= dict(seat.env) | dict(env or {})
                    starter.submit(self._start, command, rank, seat, variables).result()
            except BaseException:
                starter.submit(self.stop).result()  # after a start that is under way, even if Ctrl-C comes again
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> list[int]:
        """Ranks that have not ended."""
        self._collect(0.0)
        return sorted(self._running)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a rank and to what it has started."""
        if rank in self._running:
            os.killpg(self._processes[rank].pid, number)

    def wait(
        self,
        *,
        timeout_s: float | None = None,
        grace_s: float = 0.0,
        check: bool = True,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Finished]:
        """Wait until all ranks have ended.

        Args:
            timeout_s: since the start; then all are ended.
            grace_s: how long the others may go on when one has failed.
            check: whether a failed rank is an error, and ends the others; if not, look at what comes back.
            meanwhile: called every 0.1 s.

        Raises:
            LaunchError: a rank failed, naming it with its last words; or time was up, naming those that still ran.
        """
        deadline = float("inf") if timeout_s is None else self._began_s + timeout_s
        graced = False
        while self._running:
            if check and self._failed is not None and not graced:
                graced, deadline = True, min(deadline, time.monotonic() + grace_s)
            left_s = deadline - time.monotonic()
            if not self._collect(left_s if meanwhile is None else min(left_s, TICK_S)) and left_s <= 0:
                break
            if meanwhile is not None:
                meanwhile()
        late = sorted(self._running)
        self.stop()
        finished = self._finished()
        if check and self._failed is not None:
            failed = finished[self._failed]
            raise LaunchError(_failure(failed), finished, exit_status(failed.returncode))
        if late:
            who = ", ".join(f"rank {rank} on host {self._seats[rank].host}" for rank in late)
            raise LaunchError(f"after {timeout_s:g} s still running, and ended: {who}", finished, TIMED_OUT)
        return finished

    def stop(self) -> None:
        """End the ranks that still run, and all they have started."""
        self._stopped |= self._running.keys()
        for rank in list(self._running):
            self.kill(rank, signal.SIGTERM)
            self.kill(rank, signal.SIGCONT)  # one that is halted would not hear it
        deadline = time.monotonic() + ENDING_S
        while self._running and self._collect(deadline - time.monotonic()):
            pass
        for rank in list(self._running):
            self.kill(rank)
        while self._running:
            self._collect(float("inf"))
        for reader in self._readers:
            reader.join(READING_S)  # what has left its group may hold the pipe open

    def _start(self, command: Sequence[str], rank: int, seat: Seat, variables: Mapping[str, str]) -> None:
        with seat.inside():
            try:
                process = subprocess.Popen(
                    list(command),
                    env=_environment() | dict(variables),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=True,
                )
            except OSError as error:
                raise InputError(f"cannot start '{command[0]}': {error.strerror}") from None
        self._processes.append(process)
        self._running[rank] = os.pidfd_open(process.pid)
        self._readers.append(threading.Thread(target=self._read, args=(rank,), daemon=True))
        self._readers[-1].start()

    def _read(self, rank: int) -> None:
        stdout = self._processes[rank].stdout
        assert stdout is not None
        with stdout:
            for line in stdout:
                self._lines[rank].append(line)
                if self._show is not None:
                    self._show(rank, line.rstrip("\n"))

    def _collect(self, timeout_s: float) -> list[int]:
        """Ranks that have ended meanwhile: what they have left running is ended too. Empty when time is up."""
        with selectors.DefaultSelector() as selector:
            for rank, fd in self._running.items():
                selector.register(fd, selectors.EVENT_READ, rank)
            timeout = None if timeout_s == float("inf") else max(0.0, timeout_s)
            ended = sorted(key.data for key, _ in selector.select(timeout))
        for rank in ended:
            self.kill(rank)  # before it is waited for: until then nobody else can get its number
            os.close(self._running.pop(rank))
            if self._processes[rank].wait() and self._failed is None and rank not in self._stopped:
                self._failed = rank
        return ended

    def _finished(self) -> list[Finished]:
        return [
            Finished(rank, seat.host, process.returncode, "".join(self._lines[rank]), rank in self._stopped)
            for rank, (seat, process) in enumerate(zip(self._seats, self._processes, strict=True))
        ]


def rank_environment(rank: int, hosts: Sequence[int], master: str, port: int, interface: str) -> dict[str, str]:
    """What torchrun tells a rank, and the interface that its sockets belong on; `hosts` are those of all ranks."""
    order = list(dict.fromkeys(hosts))
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": len(hosts),
        "LOCAL_RANK": hosts[:rank].count(hosts[rank]),
        "LOCAL_WORLD_SIZE": hosts.count(hosts[rank]),
        "GROUP_RANK": order.index(hosts[rank]),
        "GROUP_WORLD_SIZE": len(order),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": len(hosts),
        "MASTER_PORT": port,
    }
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    return {name: str(n) for name, n in numbers.items()} | dict.fromkeys(names, interface) | {"MASTER_ADDR": master}


def exit_status(returncode: int) -> int:
    """What a shell makes of a return code."""
    return returncode if returncode >= 0 else 128 - returncode


def _environment() -> dict[str, str]:
    """This process's own; `python` is the one that runs it. Ranks share this machine's cores: one thread each."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | os.environ
    own = {"TORCH_CPP_LOG_LEVEL": "ERROR"} | own  # c10d warns of every address without a name, and none has one
    path = os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)])
    return own | {"PATH": path}


def _failure(finished: Finished) -> str:
    how = (
        f"ended with status {finished.returncode}"
        if finished.returncode > 0
        else f"was killed by {_signal_name(-finished.returncode)}"
    )
    words = [line.strip() for line in finished.output.splitlines() if line.strip()]
    last = f": {words[-1][:300]}" if words else ""
    return f"rank {finished.rank} on host {finished.host} {how}{last}"


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
