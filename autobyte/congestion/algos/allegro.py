"""PCC Allegro (Dong et al., NSDI 2015): tries a little more and a little less, and moves to what has more utility."""

import math

import numpy as np

from autobyte.congestion.algos.trials import RateTrial, Trials
from autobyte.congestion.paths import Interval

LEAST_STEP, MOST_STEP = 0.01, 0.05
STEEP, TOLERATED = 100.0, 0.05  # of the sigmoid in the utility
FIRST_PER_S, LEAST_PER_S = 50.0, 2.0
FIRST_S, PACKETS = 0.1, 10  # an interval: the first, and how many packets it has at least
FASTER, SLOWER, MOVE = 1, -1, 2  # kinds of trials


def utility(packets_per_s: float, loss: float) -> float:
    """T · sigmoid(L − 0.05) − x · L, with T = x (1 − L) (sec. 2.2).

    >>> utility(100.0, 0.0) > utility(90.0, 0.0), utility(100.0, 0.1) > 0
    (True, False)
    """
    kept = 1 / (1 + math.exp(min(50.0, STEEP * (loss - TOLERATED))))
    return packets_per_s * (1 - loss) * kept - packets_per_s * loss


class Allegro:
    """Doubles while utility grows; then trials in pairs decide the direction, and it goes there with growing steps.

    Args:
        seed: of the order of the trials.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.packets_per_s, self.window, self.interval_s = FIRST_PER_S, math.inf, FIRST_S
        self._rng, self._trials = np.random.default_rng(seed), Trials(FIRST_PER_S)
        self._base, self._best = FIRST_PER_S, -math.inf
        self._starts, self._direction, self._moves, self._step = True, 0, 0, LEAST_STEP
        self._queue: list[tuple[float, int]] = [(FIRST_PER_S, MOVE)]  # rates to try, and what for
        self._votes: list[tuple[int, float]] = []
        self._round_trip_s = FIRST_S

    def on_interval(self, interval: Interval) -> None:
        """Begin the next trial, or send at the base until those under way are known."""
        self.packets_per_s, kind = self._queue.pop(0) if self._queue else (self._base, 0)
        self.interval_s = max(self._round_trip_s, PACKETS / self.packets_per_s)
        self._trials.begin(interval.end_s, self.packets_per_s, kind=kind)

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        """Count it for the trial that it was sent in."""
        self._round_trip_s = round_trip_s
        for trial in self._trials.acked(now_s - round_trip_s, round_trip_s):
            self._judge(trial)

    def on_loss(self, now_s: float, sent_s: float) -> None:
        """Count it for the trial that it was sent in."""
        for trial in self._trials.lost(sent_s):
            self._judge(trial)

    def _judge(self, trial: RateTrial) -> None:
        gained = utility(trial.packets_per_s, trial.loss)
        if trial.kind == MOVE:
            self._move(trial.packets_per_s, gained)
        elif trial.kind:
            self._votes.append((trial.kind, gained))
            if len(self._votes) == 4:
                self._decide()

    def _move(self, packets_per_s: float, gained: float) -> None:
        """Go on as long as utility grows; else trials decide."""
        if gained <= self._best:
            self._starts, self._step = False, LEAST_STEP
            self._try()
            return
        self._base, self._best, self._moves = packets_per_s, gained, self._moves + 1
        factor = 2.0 if self._starts else max(0.5, 1 + self._direction * self._moves * LEAST_STEP)
        self._queue = [(max(LEAST_PER_S, self._base * factor), MOVE)]

    def _try(self) -> None:
        """Begin two pairs of trials around the base."""
        order = [kind for _ in range(2) for kind in self._rng.permutation([FASTER, SLOWER]).tolist()]
        self._votes = []
        self._queue = [(max(LEAST_PER_S, self._base * (1 + kind * self._step)), kind) for kind in order]

    def _decide(self) -> None:
        """Both pairs must say the same, else the next trials are wider."""
        firsts, seconds = dict(self._votes[:2]), dict(self._votes[2:])
        if (firsts[FASTER] > firsts[SLOWER]) != (seconds[FASTER] > seconds[SLOWER]):
            self._step = min(MOST_STEP, self._step + LEAST_STEP)
            self._try()
            return
        self._direction = FASTER if firsts[FASTER] > firsts[SLOWER] else SLOWER
        self._best, self._moves = max(firsts[self._direction], seconds[self._direction]), 1
        self._base = max(LEAST_PER_S, self._base * (1 + self._direction * self._step))
        self._queue = [(max(LEAST_PER_S, self._base * (1 + self._direction * LEAST_STEP)), MOVE)]
