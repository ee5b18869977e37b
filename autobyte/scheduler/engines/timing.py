"""When blocks travelled on a device: read from events, once it has got there. Nobody waits."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from autobyte.scheduler.engines.base import Moments, Timed
from autobyte.scheduler.engines.streams import Event


class BlockEvents(NamedTuple):
    """What a device tells of one block.

    Args:
        complete: when its gradients are.
        began: just before its collective, behind all that it waited for; empty until then, and where there is none.
        over: its sums are in place.
    """

    complete: Sequence[Event]
    began: list[Event]
    over: Event


class DeviceTimes:
    """Times of blocks that travel one after the other on one stream.

    Events tell how long something took. To say when it was, by the host's clock, they are compared with an event that
    happened as the host recorded it. If that was late, a block seems to begin before the host has enqueued it, and
    all times are moved by the difference.

    Args:
        reference: an event of the device.
        at_s: when it was recorded (s).
    """

    def __init__(self, reference: Event, at_s: float) -> None:
        self._unread: deque[tuple[BlockEvents, Moments, Timed]] = deque()
        self._failed = False
        self._last = reference  # then, when the block that was read last began
        self._began_s = 0.0  # the same since the reference
        self._over_s = 0.0  # and when that block was over
        self._reference_s = at_s

    def __len__(self) -> int:
        """Blocks that are not read yet."""
        return len(self._unread)

    def add(self, events: BlockEvents, seen: Moments, timed: Timed) -> None:
        """Note a block that was enqueued, and tell of those before it that are over by now.

        Args:
            events: of the block; blocks come in the order of the stream.
            seen: when the host enqueued it.
            timed: is told its times.
        """
        self.read()
        if not self._failed:
            self._unread.append((events, seen, timed))

    def read(self) -> None:
        """Tell of blocks that are over; of one that has failed, and of those behind it, nothing is told."""
        while self._unread and self._is_over(self._unread[0][0].over):
            events, seen, timed = self._unread.popleft()
            timed(self._moments(events, seen.start_s))

    def _is_over(self, event: Event) -> bool:
        try:
            return event.is_over()
        except Exception:  # of the network: told to whoever waits for the block
            self._failed = True
            self._unread.clear()
            return False

    def _moments(self, events: BlockEvents, enqueued_s: float) -> Moments:
        began = events.began[0] if events.began else events.over
        self._began_s += self._last.elapsed_s(began)  # block by block: times of events are too coarse for days
        self._last = began
        self._reference_s = max(self._reference_s, enqueued_s - self._began_s)
        before_s, self._over_s = self._over_s, self._began_s + began.elapsed_s(events.over)
        start_s, over_s = self._reference_s + self._began_s, self._reference_s + self._over_s
        ready_s = start_s - min((event.elapsed_s(began) for event in events.complete), default=0.0)
        return Moments(ready_s, start_s, over_s, over_s, self._over_s - max(self._began_s, before_s), alone=True)
