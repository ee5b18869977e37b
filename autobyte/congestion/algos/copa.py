"""Copa (Arun and Balakrishnan, NSDI 2018), its default mode: aims at a rate of 1 / (δ × queueing delay).

The mode for competition with flows that fill queues is left out.
"""

import math
from collections import deque

from autobyte.congestion.paths import Interval

DELTA = 0.5
FIRST, LEAST = 10.0, 2.0
LONG_S = 10.0  # of which the least round trip is


class Copa:
    """A window that follows the queueing delay, faster while it goes one way."""

    def __init__(self) -> None:
        self.packets_per_s, self.window, self.interval_s = math.inf, FIRST, math.inf
        self._smooth_s = 0.0
        self._recent: deque[tuple[float, float]] = deque()  # ascending round trips of the last half of one
        self._long: deque[tuple[float, float]] = deque()  # and of the last ten seconds
        self._slow_start = True
        self._velocity, self._up, self._same = 1.0, True, 0
        self._mark_s, self._mark = 0.0, FIRST

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        """Move the window towards the target (sec. 2.1)."""
        self._smooth_s = round_trip_s if self._smooth_s == 0 else 0.875 * self._smooth_s + 0.125 * round_trip_s
        standing_s = _least(self._recent, now_s, round_trip_s, self._smooth_s / 2)
        queueing_s = standing_s - _least(self._long, now_s, round_trip_s, LONG_S)
        target = math.inf if queueing_s <= 1e-9 else 1 / (DELTA * queueing_s)
        rises = self.window / standing_s <= target
        if self._slow_start and rises:
            self.window += 1
        else:
            self._slow_start = False
            change = self._velocity / (DELTA * self.window)
            self.window = max(LEAST, self.window + (change if rises else -change))
        self._turn(now_s)
        self.packets_per_s = 2 * self.window / standing_s

    def _turn(self, now_s: float) -> None:
        """Once in a round trip: double the velocity after three in one direction, begin again after a turn."""
        if now_s - self._mark_s < self._smooth_s:
            return
        up = self.window > self._mark
        self._same = self._same + 1 if up == self._up else 0
        self._velocity = self._velocity * 2 if self._same >= 3 else 1.0
        self._velocity = min(self._velocity, self.window * DELTA)
        self._up, self._mark_s, self._mark = up, now_s, self.window

    def on_loss(self, now_s: float, sent_s: float) -> None:
        """Loss says nothing in the default mode."""

    def on_interval(self, interval: Interval) -> None:
        """There are none."""


def _least(kept: deque[tuple[float, float]], now_s: float, value: float, within_s: float) -> float:
    """The least value of the last seconds, this one included."""
    while kept and kept[-1][1] >= value:
        kept.pop()
    kept.append((now_s, value))
    while kept[0][0] < now_s - within_s:
        kept.popleft()
    return kept[0][1]
