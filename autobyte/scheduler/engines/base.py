"""The interface of engines, which move blocks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from autobyte.scheduler.block import Block

Sent = Callable[[Block], None]
Done = Callable[[Block, Exception | None], None]


class Moments(NamedTuple):
    """When a block's gradients were complete, and when it started, left this rank and was in place (s).

    Args:
        busy_s: since it started, or since another was done while it was under way.
        alone: whether no other was being sent when it started, none started before it was sent, and then it was in
            place at once.
    """

    ready_s: float
    start_s: float
    sent_s: float
    done_s: float
    busy_s: float
    alone: bool


Timed = Callable[[Moments], None]


class Engine(ABC):
    """Moves one block at a time; blocks are started in the order in which they must travel.

    `names` gives the names of tensors, for the trace of a profiler.
    """

    names: Callable[[], Sequence[str]] = tuple

    @abstractmethod
    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Start to move a block, and return at once.

        Later, from any thread, `sent` and then `done` are called exactly once each: together for an all-reduce;
        for a parameter server when the push is acknowledged and when the pull is in place. A failure is handed to
        `done`, with or without `sent` before it.
        """

    def unfinished(self) -> list[Block]:
        """Blocks that were `done` for the host while a device still works on them, the oldest first; any thread."""
        return []

    def time(self, block: Block, seen: Moments, timed: Timed) -> None:
        """Tell, now or later, when a block that is done travelled: as the host saw it, if no device knows better.

        Args:
            block: the one that was just done.
            seen: when the engine was called for it, and when it called back.
            timed: is told; from any thread, block by block, and never of a block that fails on the device.
        """
        timed(seen)

    def tell(self) -> None:  # noqa: B027 - an engine without a device has told all
        """Tell what `time` has not told yet and is known by now."""

    @abstractmethod
    def close(self) -> None:
        """Release threads and sockets. No block may be in flight."""
