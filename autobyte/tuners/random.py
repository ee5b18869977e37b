"""Uniformly at random, on the log scale: the least that a search has to beat."""

import numpy as np

from autobyte.config import Config, Space
from autobyte.job import Model
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner


class Random(Tuner):
    """A new point of the unit cube in every window, for as long as there is a budget.

    Reference: Bergstra and Bengio (JMLR'12).
    """

    one_shot = True

    def __init__(self, space: Space, *, model: Model, seed: int = 0, budget: int | None = None) -> None:
        self._space = space
        self._random = np.random.default_rng(seed)

    def ask(self) -> Config:
        """Somewhere else."""
        return self._space.at(self._random.random(len(self._space.names)).tolist())

    def tell(self, measurement: Measurement) -> None:
        """Nothing to learn: the loop keeps the best."""
