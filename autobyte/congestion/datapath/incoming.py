"""What has arrived, at the receiver's end: each chunk counts once, however often it comes; no socket, no clock."""

from collections.abc import Callable
from dataclasses import dataclass, field

AHEAD = 1 << 20  # chunks beyond the first missing one that are taken


@dataclass
class Incoming:
    """One transfer, as its receiver sees it.

    Args:
        store: called once for each chunk, with its place and its bytes.
    """

    store: Callable[[int, memoryview], None]
    nbytes: int = 0
    chunks: int = 0
    twice: int = 0  # packets whose chunk was there already
    _all_before: int = 0  # every chunk before it has arrived
    _beyond: set[int] = field(default_factory=set)

    def take(self, chunk: int, body: memoryview) -> bool:
        """Take a packet in; False if it is so far ahead that it is not acknowledged either."""
        if chunk < self._all_before or chunk in self._beyond:
            self.twice += 1
            return True
        if chunk >= self._all_before + AHEAD:
            return False
        self.store(chunk, body)
        self.chunks += 1
        self.nbytes += len(body)
        self._beyond.add(chunk)
        while self._all_before in self._beyond:
            self._beyond.remove(self._all_before)
            self._all_before += 1
        return True
