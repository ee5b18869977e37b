"""Real ranks for tests: a function runs in n processes that talk over gloo, and ends in time or is killed.

A server process imports torch once; ranks are forked from it, so each case has fresh processes for some 50 ms. Where
ranks need what takes seconds to import, another server imports that as well.
"""

import contextlib
import faulthandler
import gc
import importlib.util
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

_context = multiprocessing.get_context("forkserver")
#: Names the engine that `auto` stands for on all ranks, as it stands for `nccl` where there are GPUs
ENGINE = "AUTOBYTE_ENGINE"
#: What most ranks need; DDP needs dynamo, and a fit of costs SciPy
PRELOADED = ("torch._dynamo", "autobyte.torch", "scipy.optimize", "pytest", "hypothesis")


class RankError(AssertionError):
    """A rank has failed, or has not ended in time."""


class Ranks:
    """Processes that are under way, one per rank.

    Args:
        function: of a test file, called as `function(rank, *arguments)` on every rank.
        size: how many ranks.
        timeout_s: after which all are killed.
        environ: set in every rank, before torch.distributed begins.
        init: whether torch.distributed is initialised, with gloo.
        imports: modules that are imported already where they are installed.
        daemon: whether they end with this process; then they may start none themselves.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        size: int,
        *arguments: Any,
        timeout_s: float = 60.0,
        environ: Mapping[str, str] | None = None,
        init: bool = True,
        imports: tuple[str, ...] = (),
        daemon: bool = True,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ranks"))
        self._clean = weakref.finalize(self, shutil.rmtree, self._folder, True)
        where = str(Path(function.__code__.co_filename)), function.__qualname__
        engine = {ENGINE: os.environ[ENGINE]} if ENGINE in os.environ else {}
        variables = {**engine, **(environ or {}), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        pipes = [_context.Pipe() for _ in range(size)]
        self._answers = [ours for ours, _ in pipes]
        self.processes = []
        for rank, (_, theirs) in enumerate(pipes):
            settings = {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
            log = str(self._log(rank))
            process = _context.Process(
                target=_run, args=(where, settings, log, init, timeout_s, theirs, arguments), daemon=daemon
            )
            with mock.patch.object(forkserver, "connect_to_new_process", server(imports).connect_to_new_process):
                process.start()
            theirs.close()
            self.processes.append(process)
        self._until = time.monotonic() + timeout_s  # the first to start also waits for what all import

    def outcomes(self) -> list[Any]:
        """What every rank returned, or the exception that it raised; None of one that was killed.

        Raises:
            RankError: a rank has not ended in time; it says where it was.
        """
        try:
            return [self._outcome(rank) for rank in range(len(self.processes))]
        finally:
            self.kill()

    def results(self) -> list[Any]:
        """What every rank returned.

        Raises:
            RankError: with the first traceback.
        """
        outcomes = self.outcomes()
        failures = [(rank, failure) for rank, failure in enumerate(outcomes) if isinstance(failure, BaseException)]
        if failures:  # the first to fail has caused what the others say
            rank, failure = min(failures, key=lambda each: each[1].failed_at)
            raise RankError(f"rank {rank} of {len(outcomes)}:\n{failure.trace}")
        return outcomes

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank."""
        os.kill(self.processes[rank].pid, number)

    def written(self, rank: int) -> str:
        """What a rank has written, to stdout and stderr."""
        return self._log(rank).read_text() if self._log(rank).exists() else ""

    def kill(self) -> None:
        """End all that are left."""
        for process, answer in zip(self.processes, self._answers, strict=True):
            if process.is_alive():
                process.kill()
            process.join()
            answer.close()
        self._clean()

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank{rank}"

    def _outcome(self, rank: int) -> Any:
        answer, process = self._answers[rank], self.processes[rank]
        if not answer.poll(max(0.0, self._until - time.monotonic())):
            raise RankError(f"rank {rank} has not ended in time:\n{self.written(rank)[-2000:]}")
        try:
            kind, value = answer.recv()
        except EOFError:
            process.join(5)
            return None
        process.join(max(0.1, self._until - time.monotonic()))
        if process.is_alive():
            raise RankError(f"rank {rank} has returned, but does not end:\n{self.written(rank)[-2000:]}")
        if kind == "returned":
            return value
        error = RankError(value[0])
        error.trace, error.failed_at = value[1], value[2]  # type: ignore[attr-defined]
        return error


def on_ranks(function: Callable[..., Any], size: int, *arguments: Any, **keywords: Any) -> list[Any]:
    """Run a function on so many ranks; return what each returned."""
    return Ranks(function, size, *arguments, **keywords).results()


def free_port() -> int:
    """A port that nobody listens on, below those that Linux hands out meanwhile."""
    chance = random.SystemRandom()  # hypothesis seeds the other one: two tests at a time would draw the same ports
    while True:
        port = chance.randrange(20_000, 32_768)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


@cache
def server(imports: tuple[str, ...]) -> forkserver.ForkServer:
    """The process that ranks are forked from, for the modules that it imports beside the usual ones."""
    made = forkserver.ForkServer()
    made.set_forkserver_preload([*PRELOADED, *imports])
    return made


def children_of(pid: int) -> Iterator[int]:
    """Processes that a process has started and that have not ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(line)


def _run(
    where: tuple[str, str],
    settings: Mapping[str, str],
    log: str,
    init: bool,
    timeout_s: float,
    answer: Connection,
    arguments: tuple[Any, ...],
) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from autobyte.exchange import diagnostics  # noqa: PLC0415
    from autobyte.torch.exchange import training, ways  # noqa: PLC0415

    stderr = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stderr, 2)
    os.dup2(stderr, 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.freeze()  # what was there before: the collection at the end is of this rank's own
    faulthandler.dump_traceback_later(timeout_s * 0.9, file=sys.stderr)
    os.environ.update(settings)
    torch.set_num_threads(1)
    diagnostics.job_folder = lambda: Path(log).parent  # goes with the ranks
    if engine := settings.get(ENGINE):
        training.resolve = lambda asked, *rest: engine if asked == "auto" else ways.resolve(asked, *rest)
    try:
        if init:
            dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        function: Any = _load(where[0])
        for name in where[1].split("."):
            function = getattr(function, name)
        value = function(int(settings["RANK"]), *arguments)
        answer.send(("returned", value))
    except BaseException as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what it has raised is told
        lines = traceback.format_exc().splitlines()
        short = "\n".join(lines if len(lines) < 30 else [*lines[:4], "  ...", *lines[-24:]])
        answer.send(("raised", (f"{type(error).__name__}: {error}", short[-4000:], time.monotonic())))
    finally:
        answer.close()
        if init and dist.is_initialized():
            gc.collect()  # DDP must not be the last to hold the group: PyTorch may hang when it lets go of it
            dist.destroy_process_group()


def _load(file: str) -> ModuleType:
    name = Path(file).stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
