"""One order on all ranks without a plan for it: rank 0 picks, the others follow."""

from collections import deque
from collections.abc import Sequence

from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.base import Done, Engine, Moments, Sent, Timed
from autobyte.scheduler.engines.frames import Connection, Head, Kind, Loop


class Led(Engine):
    """Starts blocks on an engine in the order in which rank 0's core starts them.

    Every pick travels ahead of its block, which costs a message per block and rank; a planned sequence costs none.
    Credit is rank 0's: on others a core releases every block that is ready, and this holds it until its turn.

    Args:
        engine: moves the blocks.
        connections: rank 0 to all others, or another rank to rank 0.
        leads: whether this is rank 0.
    """

    def __init__(self, engine: Engine, connections: Sequence[Connection], *, leads: bool) -> None:
        self._engine = engine
        self._connections = connections
        self._leads = leads
        self._held: dict[int, tuple[Block, Sent, Done]] = {}
        self._picks: deque[int] = deque()
        self._broken: ConnectionError | None = None
        self._loop = Loop(lambda *_: memoryview(bytearray()), self._taken, self._lost, self._fail)
        self._loop.start(list(connections))

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Start a block now and tell the others, or hold it until its turn."""
        if self._leads:
            self._loop.do(lambda: self._tell(block.index))
            self._engine.start(block, sent, done)
        else:
            self._loop.do(lambda: self._hold(block, sent, done))

    def unfinished(self) -> list[Block]:
        """Those of the engine."""
        return self._engine.unfinished()

    def time(self, block: Block, seen: Moments, timed: Timed) -> None:
        """Tell what the engine knows."""
        self._engine.time(block, seen, timed)

    def tell(self) -> None:
        """Have the engine tell what it knows by now."""
        self._engine.tell()

    def close(self) -> None:
        """Part from the other ranks, and close the engine."""
        self._loop.close(timeout_s=0.1 if self._broken else 5.0)
        self._engine.close()

    def _tell(self, index: int) -> None:
        for connection in self._connections:
            connection.queue(Head(Kind.PICK, 0, 0, index, 0))
            self._loop.flush(connection)

    def _hold(self, block: Block, sent: Sent, done: Done) -> None:
        if self._broken is not None:
            done(block, self._broken)
            return
        self._held[block.index] = block, sent, done
        self._issue()

    def _taken(self, _connection: Connection, head: Head) -> None:
        if head.kind is Kind.PICK:
            self._picks.append(head.block)
            self._issue()

    def _issue(self) -> None:
        while self._picks and self._picks[0] in self._held:
            block, sent, done = self._held.pop(self._picks.popleft())
            try:
                self._engine.start(block, sent, done)
            except Exception as error:  # of a network that is gone, say
                done(block, error)

    def _lost(self, connection: Connection, error: Exception) -> None:
        self._fail(ConnectionError(f"rank {connection.peer} is gone: {error}"))

    def _fail(self, error: ConnectionError) -> None:
        self._broken = error
        held, self._held = list(self._held.values()), {}
        for block, _sent, done in held:
            done(block, self._broken)
