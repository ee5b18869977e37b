"""Blocks ordered on a device: the host enqueues them, and waits for none."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autobyte.internals import gather_options, is_profiled
from autobyte.scheduler.block import Block, Collective
from autobyte.scheduler.engines.abandoned import abandoned
from autobyte.scheduler.engines.base import Done, Engine, Moments, Sent, Timed
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.labels import label
from autobyte.scheduler.engines.streams import Event
from autobyte.scheduler.engines.timing import BlockEvents, DeviceTimes


class Ordered(Engine):
    """Enqueues each block on the communication stream, behind the gradients that it holds.

    A block is sent and done as soon as it is enqueued. That its sums are in place is known to the stream alone:
    `Buffers.follow` lets the model's stream wait for them. So credit bounds nothing here, and the order of blocks is
    the order in which they are enqueued, which every rank must keep.

    Args:
        buffers: where the gradients lie, with the streams of their device.
        backend: the ranks, made for this engine alone.
        abort: ends what is under way when a rank is lost; called at most once.
        part: lets go of the ranks when nothing is under way; not called after `abort`.
        clock: the time, by which blocks are told.
    """

    def __init__(
        self,
        buffers: Buffers,
        backend: Any,
        *,
        abort: Callable[[], None] = lambda: None,
        part: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        assert buffers.streams is not None
        self._buffers = buffers
        self._streams = buffers.streams
        self._backend = backend
        self._abort = abort
        self._part = part
        self._aborted = False
        self._size = int(backend.size())
        self._moves = {
            Collective.ALL_REDUCE: self._all_reduce,
            Collective.REDUCE_SCATTER: self._reduce_scatter,
            Collective.ALL_GATHER: self._all_gather,
        }
        self._times = DeviceTimes(self._streams.mark(), clock())
        self._events: dict[int, BlockEvents] = {}  # by block, until `time` is called
        self.under_way: deque[tuple[Block, Event]] = deque()  # oldest first; those that are over may still be in it

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Enqueue a block."""
        buffers = self._buffers
        move: Callable[[Block], None] = self._labelled(block) if is_profiled() else self._moves[block.op]
        complete, began = buffers.complete(block), list[Event]()

        def work() -> None:
            began.append(self._streams.mark())
            move(block)

        event = self._streams.enqueue(work, complete, buffers.pieces(block))
        self._events[block.index] = BlockEvents(complete, began, event)
        buffers.arrive(block, event)
        if block.op is Collective.REDUCE_SCATTER:
            buffers.shares.over = event
        self.under_way.append((block, event))
        sent(block)
        done(block, None)

    def time(self, block: Block, seen: Moments, timed: Timed) -> None:
        """Tell when a block travelled on the device, once that is over."""
        self._times.add(self._events.pop(block.index), seen, timed)

    def tell(self) -> None:
        """Tell of blocks that are over by now."""
        self._times.read()

    def late(self) -> tuple[Block, Event] | None:
        """The oldest block that is not over, and the moment at which it will be; None if all are.

        The next step moves the same block again, and has another moment for it.

        Raises:
            Exception: of a block that failed.
        """
        while self.under_way and self.under_way[0][1].is_over():
            self.under_way.popleft()
        return self.under_way[0] if self.under_way else None

    def unfinished(self) -> list[Block]:
        """Blocks that are enqueued and not over, and those that failed; the oldest first."""
        return [block for block, event in self.under_way.copy() if not _is_over(event)]

    def abort(self, error: Exception) -> None:
        """End what is under way: what waits for it on the device goes on, with whatever lies in memory."""
        with suppress(Exception):  # of a block that failed
            self.late()  # what is over by now stays so
        self._aborted = True
        abandoned.append(self._backend)  # its destructor would wait for an abort that hangs
        self._streams.give_up(error)
        self._abort()

    def close(self) -> None:
        """Let go of streams and ranks."""
        self._streams.close()
        if not self._aborted:
            self._part()
        self._backend = None  # `_moves` holds this engine: its threads would live until the garbage is collected

    def _labelled(self, block: Block) -> Callable[[Block], None]:
        """What moves a block, so that a profiler shows it by its name."""
        move, name = self._moves[block.op], label(block, self.names())

        def labelled(block: Block) -> None:
            with torch.profiler.record_function(name):
                move(block)

        return labelled

    def _all_reduce(self, block: Block) -> None:
        options = dist.AllreduceOptions()
        options.asyncOp = False  # on the current stream: one event less for every block
        _wait(self._backend.allreduce([self._buffers.take(block)], options))
        self._buffers.give(block)

    def _reduce_scatter(self, block: Block) -> None:
        parts = self._padded(self._buffers.take(block))
        share = parts.new_empty(parts.numel() // self._size)
        options = dist.ReduceScatterOptions()
        options.asyncOp = False
        _wait(self._backend._reduce_scatter_base(share, parts, options))
        self._buffers.shares.put(block, share)

    def _all_gather(self, block: Block) -> None:
        share = self._buffers.shares.pop(block)
        room = self._buffers.room(block)
        whole = room if room.numel() == share.numel() * self._size else share.new_empty(share.numel() * self._size)
        _wait(self._backend._allgather_base(whole, share, gather_options()))
        if whole is not room:
            room.copy_(whole[: room.numel()])
        self._buffers.give(block)

    def _padded(self, travelling: Tensor) -> Tensor:
        """Every rank has the same share: what is missing are zeros."""
        missing = -travelling.numel() % self._size
        return torch.cat([travelling, travelling.new_zeros(missing)]) if missing else travelling


def _wait(work: Any) -> None:
    """Let the current stream wait for a collective: gloo's holds up its thread, NCCL's is on that stream already."""
    if work is not None:  # so NCCL says since torch 2.8 of what is on the current stream
        work.wait()


def _is_over(event: Event) -> bool:
    try:
        return event.is_over()
    except Exception:  # of the network: the block never will be
        return False
