"""When a predicted gain is worth a change of config, and when to think about it at all.

Reference: AutoByte, sec. III-C, "optimization trigger"; the back-off and the bar that follows the error are ours.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from autobyte.errors import InputError


@dataclass(frozen=True)
class Trigger:
    """The bar that a predicted gain must clear: the larger of a floor and a multiple of the predictor's own error.

    A config that is predicted to be better by less than the predictor is wrong by may as well be worse; changing to
    it, and back at the next window, costs time twice.

    >>> PAPER.fires(1.00, 0.96), OURS.fires(1.00, 0.96, error=0.01), OURS.fires(1.00, 0.96, error=0.03)
    (False, True, False)

    Args:
        floor: the least gain, as a part of the speed.
        errors: how many times the predictor's own error the gain must be.

    Raises:
        InputError: one of them negative or no finite number.
    """

    floor: float = 0.01
    errors: float = 2.0

    def __post_init__(self) -> None:
        for name in ("floor", "errors"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InputError(f"trigger {name} must be a finite number of at least 0, got {value}")

    def bar(self, error: float = 0.0) -> float:
        """The least gain, as a part of the speed, at a relative error of the predictor's."""
        return max(self.floor, self.errors * error)

    def fires(self, now_s: float, then_s: float, *, error: float = 0.0) -> bool:
        """Whether to change from a config of one predicted step time (s) to one of another.

        Args:
            now_s: of the config in force (s).
            then_s: of the candidate (s).
            error: by how much, relatively, such a comparison is wrong.
        """
        return then_s > 0 and now_s / then_s - 1 >= self.bar(error)


PAPER = Trigger(floor=0.05, errors=0.0)
OURS = Trigger(floor=0.01, errors=2.0)


class Backoff:
    """Decisions become rarer while nothing changes: after 1, 2, 4, 8, … windows, but not while all is new.

    >>> pace = Backoff(most=4, first=2)
    >>> [pace.due() for _ in range(9)], pace.due(changed=True)
    ([True, True, True, False, True, False, False, False, True], True)

    Args:
        most: windows between two decisions in the long run; 1 decides after every window.
        first: windows at the beginning, after each of which to decide.

    Raises:
        InputError: `most` below 1.
    """

    def __init__(self, *, most: int = 16, first: int = 5) -> None:
        if most < 1:
            raise InputError(f"most must be at least 1 window, got {most}")
        self._most = most
        self._new = first
        self._pause = 1
        self._left = 1

    def due(self, *, changed: bool = False) -> bool:
        """Count a window, and say whether to decide after it.

        Args:
            changed: the job or its config is not what it was: start over.
        """
        if changed or self._new > 0:
            self._pause = self._left = 1
            self._new -= 1
        self._left -= 1
        if self._left:
            return False
        self._left = self._pause
        self._pause = min(2 * self._pause, self._most)
        return True


class Misses:
    """How wrong a predictor has been of late.

    >>> misses = Misses()
    >>> misses.note(predicted_s=1.1, observed_s=1.0)
    >>> round(misses.error, 3), misses.last
    (0.1, 0.10000000000000009)

    Args:
        keep: how many predictions count, the latest.
        unknown: the error to go by before any was compared with what came.
    """

    def __init__(self, *, keep: int = 8, unknown: float = 0.0) -> None:
        self._misses: deque[float] = deque(maxlen=keep)
        self._noise: deque[float] = deque(maxlen=keep)
        self._unknown = unknown
        self.compared = 0  # predictions so far

    def note(self, *, predicted_s: float, observed_s: float, noise: float = 0.0) -> None:
        """Compare a predicted step time with the one that came (s); what is no positive number says nothing.

        Args:
            noise: relative, of what came; the prediction may have as much, and neither is the predictor's error.
        """
        if math.isfinite(predicted_s) and 0 < observed_s < math.inf:
            self.compared += 1
            self._misses.append(predicted_s / observed_s - 1)
            self._noise.append(noise)

    @property
    def last(self) -> float:
        """The latest, relative to what came; positive is too slow a prediction."""
        return self._misses[-1] if self._misses else self._unknown

    @property
    def error(self) -> float:
        """The root mean square of them, beyond twice the noise that is usual in them."""
        if not self._misses:
            return self._unknown
        square = math.fsum(miss * miss for miss in self._misses) / len(self._misses)
        return math.sqrt(max(0.0, square - (2 * median(self._noise)) ** 2))
