"""How noisy the steps of a job are: a window of a few steps cannot tell by itself."""

import math
import statistics
from collections import deque
from collections.abc import Sequence

import numpy as np

from autobyte.trace import Measurement
from autobyte.tuners.twin.windows import broken

KEEP = 16  # windows that tell what is usual
PRIOR = 4.0  # steps that what is usual counts for


class Noise:
    """Standard errors of windows, the shorter the more by what is usual in the job.

    Three steps are alike by chance often enough that a window which is taken at its word would be believed beyond any
    longer one. So the variance of its steps is mixed with the median of windows before it, which count as 4 steps;
    those in which the job changed are not among them.
    """

    def __init__(self) -> None:
        self._variances: deque[float] = deque(maxlen=KEEP)
        self._asked: tuple[tuple[tuple[float, ...], float | None], int] | None = None  # of `broken`, and its answer

    def error(self, measurement: Measurement) -> float:
        """Take in a window; the standard error of its mean step, as a part of it."""
        count = len(measurement.step_s) - measurement.warmup
        if count < 2:
            return measurement.error if self._usual is None else math.sqrt(self._usual)
        own = measurement.error**2 * count
        mixed = self._mixed(own, count)
        if not self.broken(measurement.step_s):
            self._variances.append(own)
        return math.sqrt(mixed / count)

    def error_of(self, step_s: Sequence[float], *, otherwise: float) -> float:
        """The same of some steps of a window; of less than two, what is given."""
        count = len(step_s)
        if count < 2:
            return otherwise
        own = float(np.var(step_s, ddof=1)) / max(float(np.mean(step_s)), 1e-12) ** 2
        return math.sqrt(self._mixed(own, count) / count)

    def broken(self, step_s: Sequence[float]) -> int:
        """The step from which a window's step times are others than before it; 0 where they are not."""
        key = tuple(step_s), self._usual
        if self._asked is None or self._asked[0] != key:  # a window is asked about by several
            self._asked = key, broken(step_s, usual=self._usual, counts=PRIOR)
        return self._asked[1]

    @property
    def _usual(self) -> float | None:
        """Variance of a step."""
        return statistics.median(self._variances) if self._variances else None

    def _mixed(self, own: float, count: int) -> float:
        usual = own if self._usual is None else self._usual
        return ((count - 1) * own + PRIOR * usual) / (count - 1 + PRIOR)
