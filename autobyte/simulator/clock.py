"""Virtual time: now, at, after, run. Nothing here knows what is simulated."""

import heapq
import itertools
import math
from collections.abc import Callable

Action = Callable[[], None]


class VirtualClock:
    """A clock and the events ahead of it, in the order (time, urgency, first come).

    >>> clock = VirtualClock()
    >>> clock.after(1.5, lambda: print("at", clock.now))
    >>> clock.run()
    at 1.5

    It is a `TimeSource`: calling it gives the time.

    Reference: SimPy's event loop.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, int, Action]] = []
        self._count = itertools.count()

    def __call__(self) -> float:
        """The time now (s)."""
        return self.now

    def at(self, when_s: float, action: Action, *, urgency: int = 0) -> None:
        """Do something at a time; among events of one time, smaller urgencies come first."""
        assert when_s >= self.now, f"{when_s} lies before {self.now}"
        heapq.heappush(self._events, (when_s, urgency, next(self._count), action))

    def after(self, delay_s: float, action: Action, *, urgency: int = 0) -> None:
        """Do something after a delay."""
        self.at(self.now + delay_s, action, urgency=urgency)

    def run(self, until_s: float = math.inf) -> None:
        """Let time pass until nothing is left to happen, or until a time."""
        while self._events and self._events[0][0] <= until_s:
            self.now, _, _, action = heapq.heappop(self._events)
            action()
        if until_s < math.inf:
            self.now = until_s
