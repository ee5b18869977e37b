"""Ranks within one process that sum in memory: a network for tests, without sockets."""

import queue
import threading
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.scheduler.engines.buffers import Buffers

Part = tuple[Buffers, Block, Tensor, Sent, Done]


class MemoryNetwork:
    """As many ranks as there are buffers. A block is sent when it is handed in, and done when all have handed it in.

    >>> network = MemoryNetwork([Buffers(tensors=1, scale=1 / 2) for _ in range(2)])
    >>> network.engines[0].start(block, sent, done)
    """

    def __init__(self, buffers: list[Buffers]) -> None:
        self.engines = [MemoryEngine(each, rank, self) for rank, each in enumerate(buffers)]
        self._waiting: dict[tuple[int, int], dict[int, Part]] = defaultdict(dict)  # by (round, block)
        self._rounds: dict[tuple[int, int], int] = defaultdict(int)  # by (rank, block)
        self._gone: set[int] = set()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="memory-network", daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], None]) -> None:
        """Have something done by the network's thread."""
        self._jobs.put(job)

    def start(self, rank: int, part: Part) -> None:
        """A rank's part of a block is in; with the last one, all get the sum. By the network's thread."""
        index = part[1].index
        self._rounds[rank, index] += 1
        key = self._rounds[rank, index], index
        part[3](part[1])
        self._waiting[key][rank] = part
        if self._gone:
            self._fail()
        elif len(self._waiting[key]) == len(self.engines):
            self._finish(self._waiting.pop(key))

    def close(self, rank: int) -> None:
        """A rank ends; the thread does with the last one."""
        self._gone.add(rank)
        self._fail()
        if len(self._gone) == len(self.engines):
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _finish(self, parts: dict[int, Part]) -> None:
        total = torch.stack([parts[rank][2].double() for rank in sorted(parts)]).sum(dim=0)
        for buffers, block, travelling, _, done in parts.values():
            travelling.copy_(total)
            buffers.give(block)
            done(block, None)

    def _fail(self) -> None:
        waiting, self._waiting = self._waiting, defaultdict(dict)
        for parts in waiting.values():
            for rank, (_, block, _, _, done) in parts.items():
                if rank not in self._gone:
                    done(block, ConnectionError(f"rank {min(self._gone)} is gone"))


class MemoryEngine(Engine):
    """One rank of a `MemoryNetwork`."""

    def __init__(self, buffers: Buffers, rank: int, network: MemoryNetwork) -> None:
        self._buffers = buffers
        self._rank = rank
        self._network = network

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Hand a block in."""
        part = self._buffers, block, self._buffers.take(block), sent, done
        self._network.do(lambda: self._network.start(self._rank, part))

    def close(self) -> None:
        """Leave the network."""
        self._network.do(lambda: self._network.close(self._rank))
