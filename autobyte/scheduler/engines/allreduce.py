"""All-reduce through torch.distributed: several blocks in flight, on a process group of its own."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autobyte.internals import hang_up
from autobyte.scheduler.block import Block, Collective
from autobyte.scheduler.engines.abandoned import abandoned
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.labels import shown
from autobyte.scheduler.engines.streams import are_working

ENDING_S = 1.0  # that callbacks may take when the process ends
LEAVING_S = 0.05  # in which a thread that has done its last callback leaves PyTorch
PARTING_S = 2.0  # that blocks under way are waited for: calling back while the interpreter ends aborts the process


class AllReduce(Engine):
    """Sums a block over all ranks, in place, with gloo.

    torch.distributed matches collectives by the order in which they are issued: every rank must start the same blocks
    in the same order. A block is sent and done at the same moment: when its sum is there.

    Args:
        buffers: where the gradients lie.
        backend: the ranks, made for this engine alone (`internals.own_gloo`).

    """

    def __init__(self, buffers: Buffers, backend: Any) -> None:
        self._buffers = buffers
        self._backend = backend
        self.halves: Engine | None = None
        self._options = dist.AllreduceOptions()
        self.flying = 0  # blocks whose callbacks are not over
        _engines.add(self)
        self._lock = threading.Lock()

    def move_halves(self, engine: Engine) -> None:
        """Have another engine move blocks that are one half of an all-reduce, before a plan is used that has them."""
        self.halves = engine

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Issue the collective; its future calls back from one of gloo's threads."""
        done = shown(block, self.names, done)
        if block.op is not Collective.ALL_REDUCE:
            assert self.halves is not None, "a plan with halves needs an engine for them"
            self.halves.start(block, sent, done)
            return
        self._count(1)
        work = self._backend.allreduce([self._buffers.take(block)], self._options)
        work.get_future().then(self._finish(block, sent, done))

    def add(self, tensor: Tensor, over: Callable[[Exception | None], None]) -> None:
        """Sum a tensor that is no block, in place.

        Args:
            tensor: contiguous.
            over: is called from one of gloo's threads with what has gone wrong, None if nothing has.
        """

        def called(future: torch.futures.Future[list[Tensor]]) -> None:
            self._count(-1)
            try:
                future.value()
            except Exception as error:  # whatever the network did
                over(error)
            else:
                over(None)

        self._count(1)
        self._backend.allreduce([tensor], self._options).get_future().then(called)

    def close(self) -> None:
        """Let gloo's threads end: one that still holds a callback when the interpreter ends aborts the process."""
        if self.halves is not None:
            self.halves.close()
        deadline = time.monotonic() + PARTING_S
        while self.flying and time.monotonic() < deadline:  # most are complete soon, whatever has ended this rank
            time.sleep(0.01)
        if self.flying:
            abandoned.append(self._backend)
        self._backend = None

    def _count(self, change: int) -> None:
        with self._lock:
            self.flying += change

    def _finish(self, block: Block, sent: Sent, done: Done) -> Callable[[torch.futures.Future[list[Tensor]]], None]:
        def over(future: torch.futures.Future[list[Tensor]]) -> None:
            try:
                self._pass(future, block, sent, done)
            finally:
                self._count(-1)

        return over

    def _pass(self, future: torch.futures.Future[list[Tensor]], block: Block, sent: Sent, done: Done) -> None:
        """Say what has become of a block."""
        try:
            future.value()
            self._buffers.give(block)
        except Exception as error:  # whatever the network did: the runner tells the training thread
            done(block, error)
            return
        sent(block)
        done(block, None)


_engines: "weakref.WeakSet[AllReduce]" = weakref.WeakSet()


@atexit.register
def end() -> None:
    """Have everything that is still under way fail now: a callback while the interpreter ends crashes the process.

    So does a thread of streams in host memory that comes back from gloo.
    """
    if not abandoned and not _is_under_way():
        return
    hang_up(gloo=True)
    until_s = time.monotonic() + ENDING_S
    while _is_under_way() and time.monotonic() < until_s:
        time.sleep(0.01)
    time.sleep(LEAVING_S)


os.register_at_fork(after_in_child=lambda: atexit.unregister(end))  # what is under way is the parent's


def _is_under_way() -> bool:
    return any(engine.flying for engine in list(_engines)) or are_working()
