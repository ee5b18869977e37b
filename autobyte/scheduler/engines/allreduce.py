"""All-reduce through torch.distributed: several blocks in flight, on a process group of its own."""

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autobyte.scheduler.block import Block, Collective
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.scheduler.engines.buffers import Buffers

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
        self._flying = 0
        self._lock = threading.Lock()

    def move_halves(self, engine: Engine) -> None:
        """Have another engine move blocks that are one half of an all-reduce, before a plan is used that has them."""
        self.halves = engine

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Issue the collective; its future calls back from one of gloo's threads."""
        if block.op is not Collective.ALL_REDUCE:
            assert self.halves is not None, "a plan with halves needs an engine for them"
            self.halves.start(block, sent, done)
            return
        self._count(1)
        work = self._backend.allreduce([self._buffers.take(block)], self._options)
        work.get_future().then(self._finish(block, sent, done))

    def close(self) -> None:
        """Let gloo's threads end: one that still holds a callback when the interpreter ends aborts the process."""
        if self.halves is not None:
            self.halves.close()
        deadline = time.monotonic() + PARTING_S
        while self._flying and time.monotonic() < deadline:  # most are complete soon, whatever has ended this rank
            time.sleep(0.01)
        if self._flying:
            abandoned.append(self._backend)
        self._backend = None

    def _count(self, change: int) -> None:
        with self._lock:
            self._flying += change

    def _finish(self, block: Block, sent: Sent, done: Done) -> Callable[[torch.futures.Future[list[Tensor]]], None]:
        def over(future: torch.futures.Future[list[Tensor]]) -> None:
            self._count(-1)
            try:
                future.value()
                self._buffers.give(block)
            except Exception as error:  # whatever the network did: the runner tells the training thread
                done(block, error)
                return
            sent(block)
            done(block, None)

        return over


#: Backends whose destructor would wait, until gloo's timeout, for something that may never end: for peers that are
#: gone, say. They stay until the process ends.
abandoned: list[Any] = []
