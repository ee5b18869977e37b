"""The improved network: the twin's calibration and choice, with the network as predictor, and lessons from the job.

Reference: AutoByte, sec. III; the calibration and the choice are ours.
"""

from dataclasses import replace
from pathlib import Path

from autobyte.config import Config, Space
from autobyte.job import Model
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner
from autobyte.tuners.metanet.predictor import Learned
from autobyte.tuners.metanet.trained import ADAPT, warn_of_unseen
from autobyte.tuners.twin import Settings, Twin
from autobyte.tuners.twin.predictor import Scope
from autobyte.tuners.twin.process import Process
from autobyte.tuners.twin.windows import complete

NETWORK = Settings(
    name="the network",
    lacks=Process(common=0.3, regime=0.1, block=0.05, flight=0.05, octaves=3.0),
    gain=0.0125,
    unlikely=0.02,
    scope=Scope.POSSIBLE,
    alone=True,  # at first the network may be wrong anywhere
)


class Metanet(Tuner):
    """The twin with the network as its predictor.

    What was measured stands: the difference between measured and predicted steps is a Gaussian process over the
    configs. Where a prediction in the same regime was off by more than 10 %, the heads learn from the job. Without
    statistics it measures.

    Args:
        space, model, seed, budget: as for every tuner.
        weights: the file that `autobyte fit` wrote; by default those that come with the package.

    Raises:
        FileError: the network's weights are missing, damaged, or for other features.
    """

    def __init__(
        self,
        space: Space,
        *,
        model: Model,
        seed: int = 0,
        budget: int | None = None,
        weights: Path | str | None = None,
    ) -> None:
        self._model = model
        self._learned = Learned(model, seed=seed, weights=weights)
        self._twin = Twin(space, model=model, predictor=self._learned, settings=NETWORK)
        self._wrong = False
        self.brief = self._twin.brief
        warn_of_unseen(space)

    def tell(self, measurement: Measurement) -> None:
        """Calibrate on a window, and see whether it is a lesson."""
        stats = measurement.stats
        if stats is not None and stats.servers > len(stats.forward_s):  # the network knows none of these
            measurement = replace(measurement, stats=None)
        if complete(measurement, self._model):
            torn = bool(self._twin.calibration.noise.broken(measurement.step_s))
            self._learned.note(measurement, torn=torn)  # what travels in a step must be known before
        self._twin.tell(measurement)
        self._wrong = abs(self._twin.miss) > ADAPT

    def ask(self) -> Config | None:
        """Return the config in force, unless another is worth a change."""
        asked = self._twin.ask()
        self.brief = self._twin.brief
        return asked

    def work(self) -> None:
        """Learn from a prediction that was wrong."""
        if self._wrong:
            self._learned.learn(self._twin.calibration)
        self._wrong = False
