"""CUBIC (Ha, Rhee, Xu, SIGOPS OSR 2008; RFC 9438): the window is a cubic function of the time since the last loss."""

import math

from autobyte.congestion.paths import Interval

C = 0.4
BETA = 0.7  # what a loss leaves of the window
FIRST, LEAST = 10.0, 2.0  # packets


class Cubic:
    """A window that a loss shrinks, and that returns to where it was by a cubic curve.

    >>> PacketLink(bottleneck, [(Route(0.05), Cubic())])
    """

    def __init__(self) -> None:
        self.packets_per_s, self.window, self.interval_s = math.inf, FIRST, math.inf
        self._slow_start = True
        self._most = 0.0  # where the curve is flat: the window before the last loss, or less by fast convergence
        self._start = 0.0  # the window that the last loss left
        self._prior = 0.0  # and the one that it met
        self._epoch_s = self._reduced_s = -math.inf
        self._friendly = 0.0  # the window that Reno would have

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        """Grow: by one in slow start, else towards the curve, and never slower than Reno would."""
        if self._slow_start:
            self.window += 1
            return
        since_s = now_s - self._epoch_s
        back_s = math.cbrt((self._most - self._start) / C)  # eq. (2): when the curve is flat
        target = C * (since_s + round_trip_s - back_s) ** 3 + self._most  # eq. (1)
        gain = 1.0 if self._friendly >= self._prior else 3 * (1 - BETA) / (1 + BETA)
        self._friendly += gain / self.window  # eq. (4)
        if self._friendly > target:
            self.window = max(self.window, self._friendly)
        elif target > self.window:
            self.window += min((target - self.window) / self.window, 0.5)

    def on_loss(self, now_s: float, sent_s: float) -> None:
        """Shrink, once for all packets that were sent before."""
        if sent_s < self._reduced_s:
            return
        # fast convergence: a flow that did not get back to where it was leaves room for others
        self._prior = self.window
        self._most = self.window * (1 + BETA) / 2 if self.window < self._most else self.window
        self.window = max(LEAST, self.window * BETA)
        self._friendly = self._start = self.window
        self._slow_start, self._epoch_s, self._reduced_s = False, now_s, now_s

    def on_interval(self, interval: Interval) -> None:
        """There are none."""
