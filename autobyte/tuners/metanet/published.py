"""The network as published: a prediction after every window, and a change where it promises 5 %.

Reference: AutoByte, sec. III.
"""

import math
from pathlib import Path

import numpy as np

from autobyte.config import Config, Space
from autobyte.job import Model
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner
from autobyte.tuners.metanet.network import OnlineNetwork
from autobyte.tuners.metanet.trained import ADAPT, warn_of_unseen
from autobyte.tuners.trigger import PAPER, Misses
from autobyte.tuners.twin.choosing import every


class MetanetPublished(Tuner):
    """As published: Table II raw, a prediction after every window, 5 % to change, adaptation beyond 10 %.

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
        self._candidates = every(space)
        self._net = OnlineNetwork("paper", model, seed=seed, weights=weights)
        self._misses = Misses()
        self._running: Config | None = None
        self._expected: dict[Config, float] = {}
        warn_of_unseen(space)

    def tell(self, measurement: Measurement) -> None:
        """Note by how much the prediction was off, and what the state is now."""
        self._running = measurement.config
        self._misses.note(predicted_s=self._expects_s(measurement.config), observed_s=measurement.mean_s)
        self._net.note(measurement)

    def ask(self) -> Config | None:
        """Return the config of the least predicted step time where that is 5 % better; None without statistics."""
        if self._running is None or not self._net.ready:
            return None
        running_s, *predicted_s = self._net.step_s([self._running, *self._candidates]).tolist()
        best = int(np.argmin(predicted_s))
        chosen = self._candidates[best] if PAPER.fires(running_s, predicted_s[best]) else self._running
        self._expected = {self._running: running_s, **dict(zip(self._candidates, predicted_s, strict=True))}
        return chosen

    def work(self) -> None:
        """Learn from a prediction that was wrong."""
        if abs(self._misses.last) > ADAPT:
            self._net.learn()

    def _expects_s(self, config: Config) -> float:
        """Step time under a config as the last decision had it (s); nan if it has nothing to say."""
        return self._expected.get(config, math.nan)
