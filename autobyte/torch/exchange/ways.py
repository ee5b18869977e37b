"""Ways for gradients to travel, between which a training can change from one step to the next."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from autobyte.errors import InputError
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.base import Done, Engine, Moments, Sent, Timed
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.torch.exchange.mirrors import Mirrors


class Way(NamedTuple):
    """How gradients travel.

    Args:
        engine: moves the blocks.
        buffers: where it finds gradients.
        mirrors: makes the copies in host memory from which they travel, if they do.
    """

    engine: Engine
    buffers: Buffers
    mirrors: Callable[[], Mirrors]


class Ways(Engine):
    """Engines, of which one at a time moves blocks; one is connected when it is needed first.

    >>> ways = Ways(["nccl", "allreduce"], connect, tensors=list)
    >>> ways.take(ways.reach("allreduce"))     # when nothing is under way: blocks go there from now on

    Args:
        engines: their names; training begins with the first.
        connect: makes the way of an engine. Collective.
        tensors: names of what travels, for a profiler.
    """

    def __init__(
        self, engines: Sequence[str], connect: Callable[[str], Way], *, tensors: Callable[[], Sequence[str]]
    ) -> None:
        self._known, self._tensors = tuple(engines), tensors
        self._connect = connect
        self._made: dict[str, Way] = {}
        self.own = self.reach("")
        self._now = self.own.engine

    @property
    def engine(self) -> Engine:
        """What moves blocks: the only engine, or whichever is in force."""
        return self if len(self._known) > 1 else self._now

    def reach(self, name: str) -> Way:
        """The way of an engine. Collective where it is not connected yet.

        Args:
            name: of the engine; empty is the one to begin with.

        Raises:
            InputError: gradients cannot change to it.
        """
        name = name or self._known[0]
        if name not in self._known:
            raise InputError(f"gradients travel by engine '{self._known[0]}' here, and cannot change to '{name}'")
        if name not in self._made:
            way = self._made[name] = self._connect(name)
            way.engine.names = self._tensors
        return self._made[name]

    def take(self, way: Way) -> Way:
        """Give blocks to another engine; nothing is under way. It has another way's buffers and mirrors."""
        self._now.tell()
        self._now = way.engine
        return way

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Start a block on the engine in force."""
        self._now.start(block, sent, done)

    def unfinished(self) -> list[Block]:
        """What the engine in force has not finished."""
        return self._now.unfinished()

    def time(self, block: Block, seen: Moments, timed: Timed) -> None:
        """Tell what the engine in force knows."""
        self._now.time(block, seen, timed)

    def tell(self) -> None:
        """Have the engine in force tell what it knows by now."""
        self._now.tell()

    def close(self) -> None:
        """Close all engines."""
        for way in self._made.values():
            way.engine.close()
