"""The interface of engines, which move blocks: one verb."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from autobyte.scheduler.block import Block

Sent = Callable[[Block], None]
Done = Callable[[Block, Exception | None], None]


class Engine(ABC):
    """Moves one block at a time; blocks are started in the order in which they must travel."""

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

    @abstractmethod
    def close(self) -> None:
        """Release threads and sockets. No block may be in flight."""
