"""The two halves of an all-reduce, by direct exchange: every rank sums its share of a block, and hands it out later.

gloo's reduce-scatter takes as long as its all-reduce (57 and 54 ms for 4 MiB on 4 hosts at 1 Gbit/s, where half the
bytes should take 27), so halves travel over sockets of our own.
"""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from autobyte.scheduler.block import Block, Collective, Segment
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.frames import Connection, Head, Kind, Loop
from autobyte.scheduler.engines.server import DTYPES, PARTING_S, WIDE, as_bytes
from autobyte.scheduler.engines.shares import norm_of

QUIET_S = 2e-3  # in which nothing came: whoever has sent a block need not hold up others for it


@dataclass
class Half:
    """A block on its way on this rank.

    Args:
        block, travelling, sent, done: as it was started.
        told: ranks whose norms of their shares are known, where norms are measured.
        is_sent: whether its credit has come back.
    """

    block: Block
    travelling: Tensor
    sent: Sent
    done: Done
    told: set[int] = field(default_factory=set)
    is_sent: bool = False

    def leave(self) -> None:
        """Give its credit back, once."""
        if not self.is_sent:
            self.is_sent = True
            self.sent(self.block)


class Halves(Engine):
    """Reduce-scatters and all-gathers.

    A reduce-scatter is sent when this rank has the sum of its share, and done then, too. Where norms are measured it
    is done when all ranks have told the norms of their shares: nobody gathers them, and they do not wait in line
    behind all-gathers. The all-gather of the same segments is sent and done when all shares are in place. Shares are
    summed in the order of ranks.

    Ranks may start blocks in any order. A block is also sent when other ranks have received all that this one has
    sent, and nothing comes from them: they may wait for a block that has no credit here.

    Args:
        buffers: where the gradients lie.
        rank: of this process.
        ranks: that take part, in the order in which their parts are summed.
        connections: as servers have them, two with every other rank: `server` carries parts there, `worker` shares.
    """

    def __init__(
        self,
        buffers: Buffers,
        *,
        rank: int,
        ranks: Sequence[int],
        connections: Mapping[tuple[int, str], Connection],
    ) -> None:
        self._buffers = buffers
        self._rank = rank
        self._places = {rank: place for place, rank in enumerate(ranks)}
        self._connections = connections
        self._peers = [peer for peer, role in connections if role == "server"]
        self._under_way: dict[int, Half] = {}
        self._early: dict[tuple[Segment, ...], Half] = {}  # all-gathers whose sums are not here
        self._parts: dict[tuple[int, int], dict[int, Tensor]] = defaultdict(dict)  # by (step, block) and rank
        self._steps: dict[int, int] = defaultdict(int)  # how often each block was started here
        self._arriving: dict[Connection, Tensor] = {}
        self._shares: dict[int, dict[int, Tensor | None]] = defaultdict(dict)  # gathered, by block and rank
        self._broken: ConnectionError | None = None
        buffers.shares.of_all = True
        self._loop = Loop(self._place, self._taken, self._lost, self._fail, self._leave_all)
        self._loop.start(list(connections.values()))

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Send what others sum, or hand out what was summed here."""
        scatter = block.op is Collective.REDUCE_SCATTER
        travelling = self._buffers.take(block) if scatter else self._buffers.room(block)
        self._loop.do(lambda: (self._scatter if scatter else self._gather)(block, travelling, sent, done))

    def close(self) -> None:
        """Send what others still wait for, and end."""
        self._loop.close(timeout_s=0.1 if self._broken else PARTING_S)

    def _begin(self, block: Block, travelling: Tensor, sent: Sent, done: Done) -> bool:
        over = [connection.peer for connection in self._connections.values() if connection.ended]
        if over:
            self._fail(ConnectionError(f"rank {over[0]} has ended its training"))
        if self._broken is not None:
            done(block, self._broken)
            return False
        self._under_way[block.index] = Half(block, travelling, sent, done)
        self._loop.patience_s = QUIET_S
        return True

    def _scatter(self, block: Block, travelling: Tensor, sent: Sent, done: Done) -> None:
        if not self._begin(block, travelling, sent, done):
            return
        step = self._steps[block.index] = self._steps[block.index] + 1
        for peer in self._peers:
            self._send(peer, Kind.PUSH, step, block.index, self._share(travelling, peer))
        self._add(step, block.index, self._rank, self._share(travelling, self._rank).clone())

    def _gather(self, block: Block, travelling: Tensor, sent: Sent, done: Done) -> None:
        if not self._begin(block, travelling, sent, done):
            return
        half = self._under_way[block.index]
        if block in self._buffers.shares:
            self._hand_out(half)
        else:
            self._early[block.segments] = half

    def _hand_out(self, half: Half, *, early: bool = False) -> None:
        """Send this rank's share to all, and take those that have come.

        If the all-gather started before its sum was here, the share goes before all messages that have not begun:
        those that started after it have filled the line meanwhile.
        """
        index, share = half.block.index, self._buffers.shares.pop(half.block)
        self._share(half.travelling, self._rank).copy_(share)
        for peer in self._peers:
            self._send(peer, Kind.SUM, 0, index, share, urgent=early)
        for peer, come in self._shares[index].items():
            if come is not None:
                self._share(half.travelling, peer).copy_(come)
        self._shares[index][self._rank] = None
        self._finish_gather(index)

    def _leave_all(self) -> None:
        """Nothing comes: blocks that have reached the other ranks hold up no others."""
        if all(each.delivered and not each.arriving for each in self._connections.values()):
            self._loop.patience_s = None
            for half in list(self._under_way.values()):
                half.leave()

    def _tell(self, block: int, norm: float) -> None:
        """Tell all ranks the norm of this rank's share, over connections that all-gathers do not fill."""
        for peer in self._peers:
            connection = self._connections[peer, "server"]
            connection.queue(Head(Kind.NORM, 0, 0, block, 0, norm), urgent=True)
            self._loop.flush(connection)

    def _told(self, block: int, rank: int, norm: float) -> None:
        """A rank has told the norm of its share; with the last one, the reduce-scatter is over."""
        half = self._under_way.get(block)
        if half is None:  # the engine has failed meanwhile
            return
        self._buffers.shares.count(block, rank, norm)
        half.told.add(rank)
        if len(half.told) == len(self._places):
            del self._under_way[block]
            half.done(half.block, None)

    def _send(self, peer: int, kind: Kind, step: int, block: int, part: Tensor, *, urgent: bool = False) -> None:
        connection = self._connections[peer, "server" if kind is Kind.PUSH else "worker"]
        view = as_bytes(part)
        connection.queue(Head(kind, DTYPES.index(part.dtype), step, block, len(view)), view, urgent=urgent)
        self._loop.flush(connection)

    def _share(self, travelling: Tensor, rank: int) -> Tensor:
        numel, place, size = travelling.numel(), self._places[rank], len(self._places)
        return travelling[numel * place // size : numel * (place + 1) // size]

    def _place(self, connection: Connection, head: Head) -> memoryview:
        """A share into the gradient itself where its all-gather has begun here, all else into memory of its own."""
        dtype = DTYPES[head.dtype] if head.dtype < len(DTYPES) else None
        if dtype is None or head.nbytes % dtype.itemsize:
            raise ConnectionError(f"rank {connection.peer} sent {head.nbytes} bytes of no dtype")
        if head.kind is Kind.SUM and head.block in self._under_way:
            part = self._share(self._under_way[head.block].travelling, connection.peer)
            if part.nbytes != head.nbytes:
                raise ConnectionError(
                    f"rank {connection.peer} sent {head.nbytes} bytes of block {head.block} for {part.nbytes}"
                )
        else:
            part = self._arriving[connection] = torch.empty(head.nbytes // dtype.itemsize, dtype=dtype)
        return as_bytes(part)

    def _taken(self, connection: Connection, head: Head) -> None:
        if head.kind is Kind.BYE:
            self._ended(connection.peer)
            return
        if head.kind is Kind.NORM:
            self._told(head.block, connection.peer, head.number)
            return
        part = self._arriving.pop(connection, None)
        if head.kind is Kind.PUSH:
            empty = torch.empty(0, dtype=DTYPES[head.dtype])
            self._add(head.step, head.block, connection.peer, empty if part is None else part)
            return
        if part is not None and head.block in self._under_way:  # begun while it came in
            self._share(self._under_way[head.block].travelling, connection.peer).copy_(part)
            part = None
        self._shares[head.block][connection.peer] = part
        self._finish_gather(head.block)

    def _add(self, step: int, index: int, rank: int, part: Tensor) -> None:
        """A rank's part of this rank's share is in; with the last one, the sum is."""
        parts = self._parts[step, index]
        parts[rank] = part
        if len(parts) < len(self._places) or index not in self._under_way:
            return
        del self._parts[step, index]
        half, shares = self._under_way[index], self._buffers.shares
        share = _sum([parts[rank] for rank in self._places])
        shares.put(half.block, share)
        if shares.kind is None:
            del self._under_way[index]
            half.leave()
            half.done(half.block, None)
        else:
            norm = norm_of(share, shares.kind)
            self._tell(index, norm)
            half.leave()
            self._told(index, self._rank, norm)
        if early := self._early.pop(half.block.segments, None):
            self._hand_out(early, early=True)

    def _finish_gather(self, index: int) -> None:
        shares = self._shares[index]
        if len(shares) < len(self._places) or index not in self._under_way:
            return
        del self._shares[index]
        half = self._under_way[index]
        self._buffers.give(half.block)
        del self._under_way[index]
        half.leave()
        half.done(half.block, None)

    def _ended(self, peer: int) -> None:
        """A rank has ended its training: what still waits for it will not come."""
        if not all(connection.ended for (other, _), connection in self._connections.items() if other == peer):
            return
        for index, half in self._under_way.items():
            if peer not in self._heard(index, half):
                self._fail(ConnectionError(f"rank {peer} has ended its training"))
                break

    def _heard(self, index: int, half: Half) -> Container[int]:
        """Ranks from which a block waits for nothing any more."""
        if half.block.op is Collective.ALL_GATHER:
            return self._shares[index]
        return self._parts[self._steps[index], index] if self._buffers.shares.kind is None else half.told

    def _lost(self, connection: Connection, error: Exception) -> None:
        self._fail(ConnectionError(f"rank {connection.peer} is gone: {error}"))

    def _fail(self, error: ConnectionError) -> None:
        self._broken = self._broken or error
        under_way, self._under_way = list(self._under_way.values()), {}
        for half in under_way:
            half.done(half.block, self._broken)


def _sum(parts: list[Tensor]) -> Tensor:
    dtype = parts[0].dtype
    total = parts[0].to(WIDE[dtype]) if dtype in WIDE else parts[0]
    for part in parts[1:]:
        total.add_(part)
    return total.to(dtype)
