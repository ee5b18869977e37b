"""Vegas (Brakmo, O'Malley, Peterson, SIGCOMM 1994): keeps two to four packets in the queue."""

import math

from autobyte.congestion.paths import Interval

ALPHA, BETA, GAMMA = 2.0, 4.0, 1.0  # packets in the queue: too few, too many, enough to leave slow start
FIRST, LEAST = 4.0, 2.0


class Vegas:
    """A window that changes by one packet in a round trip."""

    def __init__(self) -> None:
        self.packets_per_s, self.window, self.interval_s = math.inf, FIRST, math.inf
        self._base_s = math.inf
        self._round_s = math.inf  # least round trip of this round
        self._over_s = 0.0  # when this round is over
        self._slow_start, self._doubles = True, True
        self._reduced_s = -math.inf

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        """Look, once in a round trip, how many packets wait."""
        self._base_s = min(self._base_s, round_trip_s)
        self._round_s = min(self._round_s, round_trip_s)
        if self._slow_start and self._doubles:
            self.window += 1
        if now_s < self._over_s:
            return
        waiting = self.window * (1 - self._base_s / self._round_s)
        if self._slow_start:
            self._slow_start = waiting <= GAMMA
            self._doubles = not self._doubles  # every other round
        elif waiting < ALPHA:
            self.window += 1
        elif waiting > BETA:
            self.window = max(LEAST, self.window - 1)
        self._over_s, self._round_s = now_s + round_trip_s, math.inf

    def on_loss(self, now_s: float, sent_s: float) -> None:
        """Give a quarter away (sec. 3.1), once for all packets that were sent before."""
        if sent_s < self._reduced_s:
            return
        self.window, self._slow_start, self._reduced_s = max(LEAST, 0.75 * self.window), False, now_s

    def on_interval(self, interval: Interval) -> None:
        """There are none."""
