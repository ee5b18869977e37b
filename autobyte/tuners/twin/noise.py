"""How noisy the steps of a job are: a window of a few steps cannot tell by itself."""

import math
import statistics
from collections import deque

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

    def error(self, measurement: Measurement) -> float:
        """Take in a window; the standard error of its mean step, as a part of it."""
        count = len(measurement.step_s) - measurement.warmup
        own, usual = measurement.error**2 * count, self._usual
        if count < 2:
            return measurement.error if usual is None else math.sqrt(usual)
        if not self.torn(measurement):
            self._variances.append(own)
        mixed = own if usual is None else ((count - 1) * own + PRIOR * usual) / (count - 1 + PRIOR)
        return math.sqrt(mixed / count)

    def torn(self, measurement: Measurement) -> bool:
        """Whether the job changed within a window, after its warm-up."""
        return broken(measurement.step_s, usual=self._usual, counts=PRIOR) > measurement.warmup

    @property
    def _usual(self) -> float | None:
        """Variance of a step."""
        return statistics.median(self._variances) if self._variances else None
