"""What trials may cost: a part of the time trained so far."""

from collections.abc import Sequence
from statistics import median

OUTLIER = 3  # times the median of its window: a longer step holds something else, such as an evaluation


class LossBudget:
    """Knows how long training has taken, and how much longer than it would have with DDP's buckets.

    It reads no clock, but is told. Steps that are shorter than with DDP's buckets pay for trials.

    Args:
        share: of the time trained that may be lost; 0 allows nothing.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.reference_s: float | None = None  # a step with DDP's buckets; None as long as it is not known
        self.trained_s = 0.0
        self.lost_s = 0.0

    def add(self, steps: Sequence[float], *, tried: bool) -> None:
        """Add steps.

        Args:
            steps: their times (s).
            tried: whether anything was different from training with DDP's buckets alone.
        """
        if not steps:
            return
        most_s = OUTLIER * median(steps)
        total_s = sum(min(step_s, most_s) for step_s in steps)
        self.trained_s += total_s
        if tried and self.reference_s is not None:
            self.lost_s += total_s - len(steps) * self.reference_s

    def lose(self, seconds: float) -> None:
        """Add time in which nothing was trained (s)."""
        self.lost_s += seconds

    @property
    def left_s(self) -> float:
        """What may still be lost (s); negative if too much was."""
        return self.share * self.trained_s - self.lost_s

    def affords(self, *, steps: int, seconds: float = 0.0) -> bool:
        """Whether so many steps with DDP's buckets may be lost, and so many seconds at least."""
        if self.reference_s is None or not self.share:
            return False
        return self.left_s >= max(steps * self.reference_s, seconds)

    def begin_again(self) -> None:
        """The job has changed: what it costs now is not known yet, and what was lost or gained does not count."""
        self.reference_s, self.trained_s, self.lost_s = None, 0.0, 0.0
