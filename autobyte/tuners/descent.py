"""Online coordinate descent: one knob at a time, in the direction that helps."""

import math

from autobyte.config import Config, Space
from autobyte.job import Model
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner
from autobyte.tuners.trigger import OURS

STEP = 2.0  # doublings of the partition, or of the window, at first
LEAST = 0.5  # and at last
AGAIN = 0.1  # a relative change of the step time that calls for a new search


class Descent(Tuner):
    """Moves along one knob while that helps, turns round, takes the next; after a round without gain, smaller steps.

    It rests when the smallest step helps nowhere, and begins again from where it is when the time of a step changes:
    alive for the whole run. A step must gain 1 %, or twice the noise of the window.

    Reference: AutoCCL (NSDI'25), which tunes a collective library's knobs online by coordinate descent; the steps
    and the rest are ours.
    """

    def __init__(self, space: Space, *, model: Model, seed: int = 0, budget: int | None = None) -> None:
        self._space = space
        self._trigger = OURS
        self._best: Config | None = None
        self._best_s = float("inf")
        self._start(STEP)

    def _start(self, step: float) -> None:
        self._step = step
        self._moves = self._all()

    def _all(self) -> list[tuple[int, int]]:
        return [(knob, sign) for knob in range(len(self._space.names)) for sign in (1, -1)]

    def ask(self) -> Config | None:
        """The next point along the knob; where that lies outside or no step helps, the next knob, or the best."""
        while self._best is not None and self._step >= LEAST:
            while self._moves:
                config = self._moved(self._best, *self._moves[0])
                if config != self._best:
                    return config
                self._moves.pop(0)
            self._start(self._step / 2)
        return self._best

    def tell(self, measurement: Measurement) -> None:
        """Stay at what is better by more than noise; a move that is not is over."""
        seconds, error = measurement.mean_s, measurement.error
        if self._best is None:
            self._best, self._best_s = measurement.config, seconds
        elif measurement.config == self._best:
            changed = abs(seconds - self._best_s) > max(AGAIN, 4 * error) * self._best_s
            self._best_s = seconds if changed else (self._best_s + seconds) / 2
            if changed:
                self._start(STEP)
        elif self._trigger.fires(self._best_s, seconds, error=error):
            self._best, self._best_s = measurement.config, seconds
            on = self._moves[:1]  # on in the same direction, then the other knobs
            self._moves = on + [move for move in self._all() if move[0] not in [knob for knob, _ in on]]
        elif self._moves:
            self._moves.pop(0)

    def _moved(self, config: Config, knob: int, sign: int) -> Config:
        """A step along a knob, as far as the space goes."""
        point = list(self._space.locate(config))
        point[knob] = min(max(point[knob] + sign * self._step * self._unit(knob), 0.0), 1.0)
        moved = self._space.at(point)
        return config if self._space.locate(moved) == self._space.locate(config) else moved

    def _unit(self, knob: int) -> float:
        """What a doubling is on the unit scale; of a knob of the policy's own, a quarter of its range."""
        ranges = (self._space.partition_bytes, self._space.credit_ratio)
        if knob >= len(ranges):
            return 0.25
        low, high = ranges[knob]
        doublings = math.log2(high / low)
        return 1 / doublings if doublings > 0 else 0.0
