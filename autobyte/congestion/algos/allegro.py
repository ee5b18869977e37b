"""PCC Allegro (Dong et al., NSDI 2015): tries a little more and a little less, and moves to what has more utility."""

import math

from autobyte.congestion.algos.trials import LEAST_PER_S, RateTrial, TryingControl

LEAST_STEP, MOST_STEP = 0.01, 0.05
STEEP, TOLERATED = 100.0, 0.05  # of the sigmoid in the utility
FASTER, SLOWER, MOVE = 1, -1, 2  # kinds of trials


def utility(packets_per_s: float, loss: float) -> float:
    """T · sigmoid(L − 0.05) − x · L, with T = x (1 − L) (sec. 2.2).

    >>> utility(100.0, 0.0) > utility(90.0, 0.0), utility(100.0, 0.1) > 0
    (True, False)
    """
    kept = 1 / (1 + math.exp(min(50.0, STEEP * (loss - TOLERATED))))
    return packets_per_s * (1 - loss) * kept - packets_per_s * loss


class Allegro(TryingControl):
    """Doubles while utility grows; then trials in pairs decide the direction, and it goes there with growing steps.

    Args:
        seed: of the order of the trials.
    """

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(MOVE, seed=seed)
        self._starts, self._direction, self._moves, self._step = True, 0, 0, LEAST_STEP
        self._votes: list[tuple[int, float]] = []

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
