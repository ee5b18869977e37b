"""PCC Vivace (Dong et al., NSDI 2018), its latency utility: climbs the gradient of utility over the rate.

An interval here counts the acknowledgements that come in. So each trial has one interval to settle, and one that counts.
"""

import math

import numpy as np

from autobyte.congestion.paths import Interval
from autobyte.congestion.ranges import MBIT

POWER, LATENCY, LOSS = 0.9, 900.0, 11.35  # sec. 4.1
STEP = 0.05  # of a trial
RATE = 1.0  # Mbit/s per unit of gradient (θ0)
BOUND, WIDER = 0.05, 0.1  # ω0 and δ: what a move may change of the rate
NOISE = 0.01  # gradients of the round trip below it are taken for none
FIRST_PER_S = 50.0


def utility(interval: Interval, mbit: float) -> float:
    """x^0.9 − 900 x dRTT/dt − 11.35 x L (eq. 1), x in Mbit/s."""
    rise = interval.gradient if abs(interval.gradient) > NOISE else 0.0
    return float(mbit**POWER - LATENCY * mbit * max(0.0, rise) - LOSS * mbit * interval.loss)


class Vivace:
    """Two trials, one a little faster and one a little slower, and a step along the slope between them.

    Args:
        seed: of the order of the trials.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.packets_per_s, self.window, self.interval_s = FIRST_PER_S, math.inf, 0.1
        self._rng = np.random.default_rng(seed)
        self._base, self._starts, self._settles = FIRST_PER_S, True, True
        self._last = -math.inf
        self._order: list[int] = []
        self._found: dict[int, float] = {}
        self._sign, self._same, self._widened = 0, 0, 0

    def on_interval(self, interval: Interval) -> None:
        """Judge what was tried, and try the next."""
        if interval.acked:
            self.interval_s = max(interval.round_trip_s, 4 / self.packets_per_s)
        if self._settles:
            self._settles = False
            return
        gained = utility(interval, self.packets_per_s / MBIT)
        if self._starts and gained > self._last:
            self._last, self._base = gained, self.packets_per_s
            self.packets_per_s *= 2
        else:
            if self._starts:
                self._starts = False
            elif self._order:
                self._found[self._order.pop()] = gained
            if not self._order and self._found:
                self._climb()
            if not self._order:
                self._order, self._found = self._rng.permutation([1, -1]).tolist(), {}
            self.packets_per_s = self._base * (1 + self._order[-1] * STEP)
        self._settles = True

    def _climb(self) -> None:
        """Move along the gradient, farther after moves in one direction (sec. 4.2), never beyond the bound (sec. 4.3)."""
        mbit = self._base / MBIT
        gradient = (self._found[1] - self._found[-1]) / (2 * STEP * mbit)
        sign = 1 if gradient > 0 else -1
        self._same = self._same + 1 if sign == self._sign else 1
        self._widened = self._widened if sign == self._sign else 0
        self._sign = sign
        amplified = self._same if self._same <= 3 else 2 * self._same - 3
        change = amplified * RATE * gradient
        bound = (BOUND + WIDER * self._widened) * mbit
        if abs(change) > bound:
            change, self._widened = sign * bound, self._widened + 1
        elif self._widened:
            self._widened -= 1
        self._base = max(2.0, (mbit + change) * MBIT)

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        """Intervals say it all."""

    def on_loss(self, now_s: float, sent_s: float) -> None:
        """Intervals say it all."""
