"""PCC Allegro (Dong et al., NSDI 2015): tries a little more and a little less, and moves to what has more utility.

An interval here counts the acknowledgements that come in. So each trial has one interval to settle, and one that counts.
"""

import math

import numpy as np

from autobyte.congestion.paths import Interval

LEAST_STEP, MOST_STEP = 0.01, 0.05
STEEP, TOLERATED = 100.0, 0.05  # of the sigmoid in the utility
FIRST_PER_S = 50.0


def utility(interval: Interval, packets_per_s: float) -> float:
    """T · sigmoid(L − 0.05) − x · L (sec. 2.2)."""
    loss = interval.loss
    kept = 1 / (1 + math.exp(min(50.0, STEEP * (loss - TOLERATED))))
    return packets_per_s * (1 - loss) * kept - packets_per_s * loss


class Allegro:
    """Doubles while utility grows; then trials in pairs decide the direction, and it goes there with growing steps.

    Args:
        seed: of the order of the trials.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.packets_per_s, self.window, self.interval_s = FIRST_PER_S, math.inf, 0.1
        self._rng = np.random.default_rng(seed)
        self._base = FIRST_PER_S
        self._phase, self._settles = "start", True
        self._last = -math.inf
        self._step, self._direction, self._moves = LEAST_STEP, 0, 0
        self._order: list[int] = []
        self._votes: list[tuple[int, float]] = []

    def on_interval(self, interval: Interval) -> None:
        """Judge what was tried, and try the next."""
        if interval.acked:
            self.interval_s = max(interval.round_trip_s, 4 / self.packets_per_s)
        if self._settles:
            self._settles = False
            return
        gained = utility(interval, self.packets_per_s)
        match self._phase:
            case "start":
                self._start(gained)
            case "decide":
                self._votes.append((self._order[len(self._votes)], gained))
                if len(self._votes) == 4:
                    self._decide()
            case "move":
                self._move(gained)
        if self._phase == "decide":
            self.packets_per_s = self._base * (1 + self._order[len(self._votes)] * self._step)
        self.packets_per_s = max(2.0, self.packets_per_s)
        self._settles = True  # the next interval is of the old rate

    def _start(self, gained: float) -> None:
        if gained > self._last:
            self._last, self._base = gained, self.packets_per_s
            self.packets_per_s *= 2
        else:
            self._try(self._base)

    def _try(self, base: float) -> None:
        """Begin two pairs of trials."""
        self._phase, self._base = "decide", max(2.0, base)
        self._order = [*self._rng.permutation([1, -1]).tolist(), *self._rng.permutation([1, -1]).tolist()]
        self._votes = []

    def _decide(self) -> None:
        """Both pairs must say the same, else the next trials are wider."""
        firsts, seconds = dict(self._votes[:2]), dict(self._votes[2:])
        if (firsts[1] > firsts[-1]) == (seconds[1] > seconds[-1]):
            self._direction = 1 if firsts[1] > firsts[-1] else -1
            self._last = max(firsts[self._direction], seconds[self._direction])
            self._phase, self._moves = "move", 1
            self._base *= 1 + self._direction * self._step
            self.packets_per_s = self._base * (1 + self._direction * self._step)
        else:
            self._step = min(MOST_STEP, self._step + LEAST_STEP)
            self._try(self._base)

    def _move(self, gained: float) -> None:
        """Go on as long as utility grows."""
        if gained > self._last:
            self._last, self._base, self._moves = gained, self.packets_per_s, self._moves + 1
            self.packets_per_s *= max(0.5, 1 + self._direction * self._moves * LEAST_STEP)
        else:
            self._step = LEAST_STEP
            self._try(self._base)

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        """Intervals say it all."""

    def on_loss(self, now_s: float, sent_s: float) -> None:
        """Intervals say it all."""
