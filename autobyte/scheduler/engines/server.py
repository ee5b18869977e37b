"""Parameter servers: every block is split over them, pushed, summed, and pulled.

Servers only sum; workers update. A push returns its credit when the servers have it, whatever other workers do: if
it came back with the pull, ranks that differ would wait for each other's credit. The sum of a block is taken in the
order of ranks when all parts are in, so it does not depend on who was first.

A push and its pull may be two blocks, a reduce-scatter and an all-gather. The push is done when all servers have
summed, and they tell the norms of their sums. A sum is sent to all workers when the first of them starts its pull:
each request would wait behind whatever its worker sends.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autobyte.job import ITEMSIZE
from autobyte.scheduler.block import Block, Collective, Segment
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.frames import Connection, Head, Kind, Loop
from autobyte.scheduler.engines.labels import shown
from autobyte.scheduler.engines.shares import norm_of

DTYPES = [getattr(torch, name) for name in ITEMSIZE]
PARTING_S = 30.0  # in which what others need must have been sent to them
BROKEN_S = 2.0  # on a server that does not train: for telling the workers that one of them is gone
STALE = 4096  # pushes without one of a size, after which no memory of that size is kept
WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # what halves are summed in


@dataclass
class Flight:
    """A block on its way on this worker."""

    block: Block
    travelling: Tensor
    sent: Sent
    done: Done
    pushes: int  # that servers do not have yet
    pulls: int  # parts whose sum is not here yet, or of which it is not known that they are summed
    norm_kind: float = math.nan  # p of the norm of the sums, where they are kept


class ParameterServer(Engine):
    """Moves a block to the servers and back; this process may be a worker, a server, or both.

    Args:
        buffers: where the gradients lie; None on a server that does not train.
        rank: of this process.
        workers: the ranks that push and pull.
        servers: the ranks that sum.
        connect: makes the connections that this process takes part in, by rank.
    """

    def __init__(
        self,
        buffers: Buffers | None,
        *,
        rank: int,
        workers: Sequence[int],
        servers: Sequence[int],
        connect: Callable[[], dict[tuple[int, str], Connection]],
    ) -> None:
        self._buffers = buffers
        if buffers is not None:
            buffers.shares.of_all = True
        self._rank = rank
        self._workers = list(workers)
        self._servers = list(servers)
        connections = connect()
        self._to_server = {peer: c for (peer, role), c in connections.items() if role == "server"}
        self._to_worker = {peer: c for (peer, role), c in connections.items() if role == "worker"}
        self._flights: dict[int, Flight] = {}
        self._places = {peer: place for place, peer in enumerate(self._servers)}
        self._sums: dict[tuple[int, int], dict[int, Tensor]] = defaultdict(dict)  # parts, by (step, block) and worker
        self._kept: dict[tuple[int, int], Tensor] = {}  # sums that nobody has asked for, by (step, block)
        self._handed_out: dict[int, int] = {}  # the latest step of each block whose sum was asked for
        self._early: dict[int, dict[int, Tensor | None]] = defaultdict(dict)  # sums before their pull, by block
        self._pushed: dict[tuple[Segment, ...], tuple[int, int]] = {}  # (step, block) of what is to be pulled
        self._pool: dict[int, list[Tensor]] = defaultdict(list)  # memory that is free, by its bytes
        self._used: dict[int, int] = {}  # at which push each size was last asked for
        self._pushes = 0
        self._arriving: dict[Connection, Tensor] = {}
        self._steps: dict[int, int] = defaultdict(int)  # how often each block was started here
        self.broken: ConnectionError | None = None
        self._loop = Loop(self._place, self._taken, self._lost, self._fail)
        self._loop.start([*self._to_server.values(), *self._to_worker.values()])

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Push a block's parts to their servers, or pull what was pushed before."""
        assert self._buffers is not None
        pulls = block.op is Collective.ALL_GATHER
        travelling = self._buffers.room(block) if pulls else self._buffers.take(block)
        done = shown(block, self.names, done)
        flight = Flight(block, travelling, sent, done, len(self._servers), len(self._servers))
        if block.op is Collective.REDUCE_SCATTER and self._buffers.shares.kind is not None:
            flight.norm_kind = self._buffers.shares.kind
        self._loop.do(lambda: (self._pull if pulls else self._push)(flight))

    def close(self) -> None:
        """Send what others still wait for, and end."""
        self._loop.close(timeout_s=0.1 if self.broken or self._flights else PARTING_S)

    def wait(self, over: Callable[[], bool] = lambda: False) -> None:
        """On a server that does not train: return when all workers have ended, or soon after one is gone.

        Args:
            over: whether there is no use in waiting any longer.
        """
        self._loop.join(lambda: self.broken is not None or over(), BROKEN_S)

    def _push(self, flight: Flight) -> None:
        if not self._begin(flight, [connection.peer for connection in self._to_server.values() if connection.ended]):
            return
        index = flight.block.index
        step = self._steps[index] = self._steps[index] + 1
        self._flights[index] = flight
        code = DTYPES.index(flight.travelling.dtype)
        kind = Kind.PUSH if flight.block.op is Collective.ALL_REDUCE else Kind.KEEP
        for server in self._servers:
            part = self._part(flight.travelling, server)
            view = as_bytes(part)
            head = Head(kind, code, step, index, len(view), flight.norm_kind)
            if server == self._rank:
                own = self._memory(part.dtype, part.nbytes).copy_(part)
                self._acknowledged(index)  # before the sum: with no other worker's part to come, it is there at once
                self._add(head, self._rank, own)
            else:
                connection = self._to_server[server]
                connection.queue(head, view)
                self._loop.flush(connection)

    def _pull(self, flight: Flight) -> None:
        """Ask for sums that are there, as all servers have said."""
        step, index = self._pushed.get(flight.block.segments, (0, -1))
        early = self._early.pop(index, {})
        closed = (peer for peer, connection in self._to_server.items() if connection.sock.fileno() < 0)
        if not self._begin(flight, [peer for peer in closed if peer not in early]):
            return
        del self._pushed[flight.block.segments]
        self._flights[index] = flight
        for server in self._servers:
            if server in early:
                self._take(index, server, early[server])
            elif server == self._rank:
                self._hand_out(step, index)
            else:
                connection = self._to_server[server]
                connection.queue(Head(Kind.PULL, 0, step, index, 0), urgent=True)
                self._loop.flush(connection)

    def _pulling(self, block: int) -> Flight | None:
        """What a sum of a block belongs to, unless its pull has not begun."""
        flight = self._flights.get(block)
        return None if flight is None or flight.block.op is Collective.REDUCE_SCATTER else flight

    def _take(self, block: int, server: int, part: Tensor | None) -> None:
        """A server's sum is here, in place if it is None; before its pull it is kept."""
        flight = self._pulling(block)
        if flight is None:
            self._early[block][server] = part
            return
        if part is not None:
            self._part(flight.travelling, server).copy_(part)
        self._pulled(block)

    def _begin(self, flight: Flight, gone: list[int]) -> bool:
        """Whether a block may travel; if not, it has failed."""
        if gone:
            self._fail(ConnectionError(f"rank {gone[0]} has ended its training"))
        if self.broken is not None:
            flight.done(flight.block, self.broken)
        return self.broken is None

    def _part(self, travelling: Tensor, server: int) -> Tensor:
        """What of a block a server sums."""
        numel, count, place = travelling.numel(), len(self._servers), self._places[server]
        return travelling[numel * place // count : numel * (place + 1) // count]

    def _place(self, connection: Connection, head: Head) -> memoryview:
        """Where a payload goes: a sum that is pulled into the gradient itself, all else into memory of its own."""
        if not 0 <= head.dtype < len(DTYPES) or head.nbytes % DTYPES[head.dtype].itemsize:
            raise ConnectionError(f"rank {connection.peer} sent {head.nbytes} bytes of no dtype")
        flight = self._pulling(head.block)
        if head.kind is Kind.SUM and flight is not None:
            part = self._part(flight.travelling, connection.peer)
            if part.nbytes != head.nbytes:
                raise ConnectionError(
                    f"rank {connection.peer} sent {head.nbytes} bytes of block {head.block} for {part.nbytes}"
                )
        elif head.kind is Kind.SUM:
            part = self._arriving[connection] = torch.empty(
                head.nbytes // DTYPES[head.dtype].itemsize, dtype=DTYPES[head.dtype]
            )
        else:
            part = self._arriving[connection] = self._memory(DTYPES[head.dtype], head.nbytes)
        return as_bytes(part)

    def _taken(self, connection: Connection, head: Head) -> None:
        if head.kind in (Kind.PUSH, Kind.KEEP):
            part = self._arriving.pop(connection, torch.empty(0, dtype=DTYPES[head.dtype]))
            connection.queue(Head(Kind.ACK, 0, head.step, head.block, 0), urgent=True)
            self._loop.flush(connection)
            self._add(head, connection.peer, part)
        elif head.kind is Kind.PULL:
            if self._handed_out.get(head.block) != head.step:
                self._hand_out(head.step, head.block)
        elif head.kind is Kind.NORM:
            self._summed(head, connection.peer)
        elif head.kind is Kind.ACK:
            self._acknowledged(head.block)
        elif head.kind is Kind.SUM:
            self._take(head.block, connection.peer, self._arriving.pop(connection, None))
        elif head.kind is Kind.LOST:
            self._fail(ConnectionError(f"rank {head.block} is gone"))
        elif head.kind is Kind.BYE:
            worker = self._to_worker.get(connection.peer) is connection
            if worker and self._sums:  # its part will never come, or it has given up to wait for another's
                self._announce_lost(connection.peer)

    def _add(self, head: Head, worker: int, part: Tensor) -> None:
        """A worker's part is in; with the last one, the sum goes back to all, or its norm."""
        step, block = head.step, head.block
        waiting = self._sums[step, block]
        waiting[worker] = part
        if len(waiting) < len(self._workers):
            for peer, connection in self._to_worker.items():
                if connection.ended and peer not in waiting:
                    self._announce_lost(peer)
            return
        del self._sums[step, block]
        total = self._sum([waiting[w] for w in self._workers])
        if head.kind is Kind.KEEP:
            self._keep(head, total)
            return
        for connection in self._to_worker.values():
            self._send_sum(connection, step, block, total)
        if block in self._flights:
            self._take(block, self._rank, total)

    def _send_sum(self, connection: Connection, step: int, block: int, total: Tensor) -> None:
        connection.queue(Head(Kind.SUM, DTYPES.index(total.dtype), step, block, total.nbytes), as_bytes(total))
        self._loop.flush(connection)

    def _keep(self, head: Head, total: Tensor) -> None:
        """Keep a sum until a worker asks for it, and tell its norm."""
        self._kept[head.step, head.block] = total
        told = Head(Kind.NORM, 0, head.step, head.block, 0, norm_of(total, head.number))
        for connection in self._to_worker.values():
            connection.queue(told, urgent=True)
            self._loop.flush(connection)
        if self._buffers is not None:
            self._summed(told, self._rank)

    def _hand_out(self, step: int, block: int) -> None:
        """Send a sum to all workers, because one of them asks for it."""
        total = self._kept.pop((step, block), None)
        if total is None:
            raise ConnectionError(f"a worker asks for block {block} of step {step}, whose sum is not here")
        self._handed_out[block] = step
        for connection in self._to_worker.values():
            self._send_sum(connection, step, block, total)
        if self._buffers is not None:
            self._take(block, self._rank, total)

    def _summed(self, told: Head, server: int) -> None:
        """A server has the sum of its part: with the last one, a push is done, and may be pulled."""
        flight = self._flights.get(told.block)
        if flight is None:
            return
        assert self._buffers is not None
        if self._buffers.shares.kind is not None:
            self._buffers.shares.count(told.block, server, told.number)
        flight.pulls -= 1
        if flight.pulls == 0:
            del self._flights[told.block]
            self._pushed[flight.block.segments] = told.step, told.block
            flight.done(flight.block, None)

    def _sum(self, parts: list[Tensor]) -> Tensor:
        """In the order of ranks; halves are summed wide. The memory of all parts but the sum is used again."""
        dtype = parts[0].dtype
        total = parts[0].to(WIDE[dtype]) if dtype in WIDE else parts[0]
        for part in parts[1:]:
            total.add_(part)
            self._pool[part.nbytes].append(part)
        return total.to(dtype)

    def _memory(self, dtype: torch.dtype, nbytes: int) -> Tensor:
        self._pushes += 1
        self._used[nbytes] = self._pushes
        if self._pushes % STALE == 0:  # sizes of configs that are no longer in force
            for size in [size for size, at in self._used.items() if at <= self._pushes - STALE]:
                del self._used[size]
                self._pool.pop(size, None)
        free = self._pool[nbytes]
        return free.pop().view(dtype) if free else torch.empty(nbytes // dtype.itemsize, dtype=dtype)

    def _acknowledged(self, block: int) -> None:
        flight = self._flights.get(block)
        if flight is not None:
            flight.pushes -= 1
            if flight.pushes == 0:
                flight.sent(flight.block)

    def _pulled(self, block: int) -> None:
        flight = self._flights.get(block)
        if flight is not None:
            flight.pulls -= 1
            if flight.pulls == 0:
                assert self._buffers is not None
                self._buffers.give(flight.block)
                del self._flights[block]
                if flight.block.op is Collective.ALL_GATHER:
                    flight.sent(flight.block)
                flight.done(flight.block, None)

    def _lost(self, connection: Connection, error: Exception) -> None:
        """A peer is gone: the workers that wait for its part are told."""
        if self._to_worker.get(connection.peer) is connection:
            self._announce_lost(connection.peer)
        self._fail(ConnectionError(f"rank {connection.peer} is gone: {error}"))

    def _announce_lost(self, worker: int) -> None:
        """Tell the workers, this process if it is one, that a sum will never be complete."""
        for other in self._to_worker.values():
            other.queue(Head(Kind.LOST, 0, 0, worker, 0), urgent=True)
            self._loop.flush(other)
        if self._flights or self._buffers is None:
            self._fail(ConnectionError(f"rank {worker} has ended its training"))

    def _fail(self, error: ConnectionError) -> None:
        """What is on its way will not arrive."""
        self.broken = self.broken or error
        flights, self._flights = list(self._flights.values()), {}
        for flight in flights:
            flight.done(flight.block, self.broken)


def as_bytes(part: Tensor) -> memoryview:
    """A flat tensor's memory."""
    return memoryview(part.view(torch.uint8).numpy().data)
