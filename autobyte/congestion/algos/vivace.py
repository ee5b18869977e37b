"""PCC Vivace (Dong et al., NSDI 2018), its latency utility: climbs the gradient of utility over the rate."""

from autobyte.congestion.algos.trials import LEAST_PER_S, RateTrial, TryingControl
from autobyte.congestion.ranges import MBIT

POWER, LATENCY, LOSS = 0.9, 900.0, 11.35  # sec. 4.1
STEP = 0.05  # of a trial
RATE = 1.0  # Mbit/s per unit of gradient (θ0)
BOUND, WIDER = 0.05, 0.1  # ω0 and δ: what a move may change of the rate
NOISE = 0.01  # gradients of the round trip below it are taken for none
FASTER, SLOWER, START = 1, -1, 2  # kinds of trials


def utility(mbit: float, gradient: float, loss: float) -> float:
    """x^0.9 − 900 x dRTT/dt − 11.35 x L (eq. 1), x in Mbit/s.

    >>> utility(10.0, 0.0, 0.0) > utility(9.0, 0.0, 0.0) > utility(10.0, 0.02, 0.0)
    True
    """
    rise = gradient if gradient > NOISE else 0.0
    return float(mbit**POWER - LATENCY * mbit * rise - LOSS * mbit * loss)


class Vivace(TryingControl):
    """Two trials, one a little faster and one a little slower, and a step along the slope between them.

    Args:
        seed: of the order of the trials.
    """

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(START, seed=seed)
        self._found: dict[int, float] = {}
        self._sign, self._same, self._widened = 0, 0, 0

    def _judge(self, trial: RateTrial) -> None:
        gained = utility(trial.packets_per_s / MBIT, trial.gradient, trial.loss)
        if trial.kind == START and gained > self._best:
            self._base, self._best = trial.packets_per_s, gained
            self._queue = [(2 * self._base, START)]
        elif trial.kind == START:
            self._try()
        elif trial.kind:
            self._found[trial.kind] = gained
            if len(self._found) == 2:
                self._climb()
                self._try()

    def _try(self) -> None:
        """Begin a pair of trials around the base."""
        order = self._rng.permutation([FASTER, SLOWER]).tolist()
        self._found, self._queue = {}, [(self._base * (1 + kind * STEP), kind) for kind in order]

    def _climb(self) -> None:
        """Move along the gradient, farther after moves in one direction, within a bound (sec. 4.2, 4.3)."""
        mbit = self._base / MBIT
        gradient = (self._found[FASTER] - self._found[SLOWER]) / (2 * STEP * mbit)
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
        self._base = max(LEAST_PER_S, (mbit + change) * MBIT)
