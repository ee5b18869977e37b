"""Calibrate a predictor of the running job on its statistics, and try the candidates in it instead of in the job."""

import logging
import math
from typing import ClassVar, final

import numpy as np

from autobyte.config import Config, Space
from autobyte.job import Floats, Model
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner
from autobyte.tuners.trigger import Backoff, Misses
from autobyte.tuners.twin.calibration import JobCalibration
from autobyte.tuners.twin.choosing import (
    AHEAD,
    ahead,
    blindly,
    choice,
    measured_alone,
    worth,
    worth_together,
)
from autobyte.tuners.twin.expectations import Expectations
from autobyte.tuners.twin.predictor import Predictor, Settings
from autobyte.tuners.twin.windows import complete

log = logging.getLogger(__name__)

SOON = 3  # windows in which it knows too little for trials that would not pay off at once


@final
class Twin(Tuner):
    """Calibrate, predict the candidates, choose: after every window, for the whole run.

    It chooses by the step time it expects, and by what a window would tell of all configs (the knowledge gradient).
    Where its predictor keeps missing, it doubts more and measures more; where it has been right, it doubts less.
    Without statistics it only measures. A trial has to pay off while the job stays as it is; where the config of the
    last window stays in force, it has longer.

    >>> twin = Twin(Space(), model=job.model, predictor=Simulated(job))
    >>> twin.tell(measurement)
    >>> config = twin.ask()

    Args:
        space, model, seed, budget: as for every tuner.
        predictor: of steps; None measures only.
        after: windows for which the config of the last one stays in force.
        settings: what to make of the predictor.
    """

    needs: ClassVar[tuple[str, ...]] = ("predictor", "after")

    def __init__(
        self,
        space: Space,
        *,
        model: Model,
        seed: int = 0,
        budget: int | None = None,
        predictor: Predictor | None = None,
        after: int | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._model = model
        self._predictor = predictor
        self._ahead = max(AHEAD, after or 0)  # windows for which a trial is expected to pay off, at least
        self._settings = settings or Settings()
        self._expectations = Expectations(space, predictor, self._settings)
        self._candidates = self._expectations.candidates
        self._unseen: list[tuple[Config, float, float]] = []  # windows without statistics
        self._misses = Misses()
        self._pace = Backoff()
        self._running: Config | None = None
        self._left: Config | None = None  # in force before
        self._number = {config: index for index, config in enumerate(self._candidates)}
        self._expected_s = np.full(len(self._candidates), math.nan)
        self._news = True
        self._windows = 0  # windows
        self.calibration: JobCalibration = self._expectations.calibration
        self.miss = 0.0
        self.brief = True

    def tell(self, measurement: Measurement) -> None:
        """Calibrate on a window, and compare it with what was expected.

        `miss` is then how far off the expectation was, relative to what came; 0 where the window cannot say.
        """
        self._windows += 1
        if measurement.config != self._running:
            self._news, self._left = True, self._running
        self._running = measurement.config
        number, compared = self.calibration.number, self._misses.compared
        expected_s, changed = self._expects_s(measurement.config), False
        if self._predictor is not None and complete(measurement, self._model):
            changed = self.calibration.note(measurement, expected_s=expected_s)
            self._news |= changed
        else:
            if self._predictor is not None and not self._unseen:
                log.warning("%s has no statistics to calibrate on, and measures instead", self._settings.name)
            self._unseen.append((measurement.config, measurement.mean_s, self.calibration.noise.error(measurement)))
            del self._unseen[:-64]
        if not changed and not self.calibration.noise.broken(measurement.step_s):  # it predicted the job that was
            self._misses.note(predicted_s=expected_s, observed_s=measurement.mean_s, noise=measurement.error)
        clear = self.calibration.number > number and self._misses.compared > compared
        clear = clear and not self.calibration.windows[-1].surprise and not self.calibration.doubtful
        self.miss = self._misses.last if clear else 0.0

    def ask(self) -> Config | None:
        """Return the config in force, unless another is worth a change."""
        self.brief = self._windows < SOON
        if self._running is None or not self._pace.due(changed=self._news):
            return self._running
        self._news = False
        self.brief = True
        if self.calibration.doubtful and self._left is not None:
            self._expected_s[:] = math.nan  # of the job that was
            return self._left
        mean, value = self._valued()
        self._expected_s = np.exp(mean)
        ran = self.calibration.ran if self._early else ()  # no trial for what may be as good
        chosen = choice(self._candidates, self._running, value, self._settings.gain, mean=mean, ran=ran)
        self.brief = self._windows < SOON or chosen not in self._known
        return chosen

    def _expects_s(self, config: Config) -> float:
        """Step time under a config as the last decision had it (s); nan if it has nothing to say."""
        number = self._number.get(config)
        return math.nan if number is None else float(self._expected_s[number])

    @property
    def _known(self) -> set[Config]:
        """What ran in the job as it is."""
        return self.calibration.ran or {config for config, _, _ in self._unseen}

    @property
    def _early(self) -> bool:
        return self._windows <= SOON

    def _valued(self) -> tuple[Floats, Floats]:
        """Logarithm of each candidate's step time, infinite where it cannot win; what it is worth to run it."""
        if not self.calibration.windows:
            mean, deviation = measured_alone(self._model, self._unseen, self._candidates)
            return mean, worth(mean, deviation, windows=blindly(len(self._unseen)))
        belief = self._expectations.believed(error=self._misses.error, early=self._early)
        if self._early and self._settings.alone:
            windows = ahead(self.calibration.number)
            return belief.mean, worth(belief.mean, belief.deviation, windows=windows)
        windows = ahead(self.calibration.number, least=1.0 if self._early else self._ahead)
        return belief.mean, worth_together(belief, windows=windows)
