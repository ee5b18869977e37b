"""Blocks ordered on a device: the host enqueues them, and waits for none."""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autobyte.internals import gather_options
from autobyte.scheduler.block import Block, Collective
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.streams import Event


class Ordered(Engine):
    """Enqueues each block on the communication stream, behind the gradients that it holds.

    A block is sent and done as soon as it is enqueued. That its sums are in place is known to the stream alone:
    `Buffers.follow` lets the model's stream wait for them. So credit bounds nothing here, and the order of blocks is
    the order in which they are enqueued, which every rank must keep.

    Args:
        buffers: where the gradients lie, with the streams of their device.
        backend: the ranks, made for this engine alone.
        abort: ends what is under way when a rank is lost; called at most once.
    """

    def __init__(self, buffers: Buffers, backend: Any, *, abort: Callable[[], None] = lambda: None) -> None:
        assert buffers.streams is not None
        self._buffers = buffers
        self._streams = buffers.streams
        self._backend = backend
        self._abort = abort
        self._size = int(backend.size())
        self.under_way: deque[tuple[Block, Event]] = deque()  # oldest first; those that are over may still be in it

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Enqueue a block."""
        move = {
            Collective.ALL_REDUCE: self._all_reduce,
            Collective.REDUCE_SCATTER: self._reduce_scatter,
            Collective.ALL_GATHER: self._all_gather,
        }[block.op]
        buffers = self._buffers
        event = self._streams.enqueue(lambda: move(block), buffers.complete(block), buffers.pieces(block))
        buffers.arrive(block, event)
        if block.op is Collective.REDUCE_SCATTER:
            buffers.shares.over = event
        self.under_way.append((block, event))
        sent(block)
        done(block, None)

    def late(self) -> Block | None:
        """The oldest block that is not over; None if all are.

        Raises:
            Exception: of a block that failed.
        """
        while self.under_way and self.under_way[0][1].is_over():
            self.under_way.popleft()
        return self.under_way[0][0] if self.under_way else None

    def abort(self, error: Exception) -> None:
        """End what is under way: what waits for it on the device goes on, with whatever lies in memory."""
        self._streams.give_up(error)
        self._abort()

    def close(self) -> None:
        """Let go of streams and ranks."""
        self._streams.close()

    def _all_reduce(self, block: Block) -> None:
        options = dist.AllreduceOptions()
        options.asyncOp = False  # on the current stream: one event less for every block
        self._backend.allreduce([self._buffers.take(block)], options).wait()
        self._buffers.give(block)

    def _reduce_scatter(self, block: Block) -> None:
        parts = self._padded(self._buffers.take(block))
        share = parts.new_empty(parts.numel() // self._size)
        options = dist.ReduceScatterOptions()
        options.asyncOp = False
        self._backend._reduce_scatter_base(share, parts, options).wait()
        self._buffers.shares.put(block, share)

    def _all_gather(self, block: Block) -> None:
        share = self._buffers.shares.pop(block)
        room = self._buffers.room(block)
        whole = room if room.numel() == share.numel() * self._size else share.new_empty(share.numel() * self._size)
        self._backend._allgather_base(whole, share, gather_options()).wait()
        if whole is not room:
            room.copy_(whole[: room.numel()])
        self._buffers.give(block)

    def _padded(self, travelling: Tensor) -> Tensor:
        """Every rank has the same share: what is missing are zeros."""
        missing = -travelling.numel() % self._size
        return torch.cat([travelling, travelling.new_zeros(missing)]) if missing else travelling
