"""The network of AutoByte on one running job: what state windows show, what it predicts there, and lessons."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.features.runtime import State, Watch
from autobyte.features.vector import Vector, candidates, describe
from autobyte.job import Floats, Model
from autobyte.nets import stored
from autobyte.nets.adaptation import Adaptation, Lesson
from autobyte.nets.metanet import Array
from autobyte.trace import Measurement

log = logging.getLogger(__name__)

REGIMES = 16  # that are remembered
LEAVE = 2.0  # what a regime must explain better than the one before


class OnlineNetwork:
    """The network on one job: the state that windows show, what it predicts there, and lessons.

    Args:
        variant: of the network.
        model: what is trained.
        seed: of what is replayed.
        weights: the file of them; by default those that come with the package.
    """

    def __init__(self, variant: str, model: Model, *, seed: int, weights: Path | str | None = None) -> None:
        self._net, replay = stored.network(variant, weights)
        self._adaptation = Adaptation(self._net, replay, seed=seed)
        self._watches = {0: Watch(model)}  # of the latest regimes, by number; the one that saw the latest window last
        self._number = 1  # of the next
        self._warned = False
        self._known: tuple[State, Vector, Array] | None = None

    @property
    def ready(self) -> bool:
        """Whether a window has shown a state yet."""
        return self._known is not None

    def note(self, measurement: Measurement) -> None:
        """Take in a window, if its statistics are of use."""
        try:
            state = self._watch_of(measurement).add(measurement)
        except InputError as error:
            if not self._warned:
                log.warning("the network has no statistics to predict from: %s", error)
            self._warned = True
            return
        vector = describe(state)
        self._known = state, vector, self._net.encode(vector)

    def _watch_of(self, measurement: Measurement) -> Watch:
        """That of the most likely regime: the one before, an old one that has come back, or a new one."""
        before = next(reversed(self._watches))
        cost = {
            number: watch.surprise(measurement) + LEAVE * (number != before)
            for number, watch in self._watches.items()
        }
        likely = min(sorted(cost), key=lambda number: cost[number])
        if math.isfinite(cost[likely]):
            watch = self._watches.pop(likely)
        else:
            likely, watch = self._number, self._watches[before].anew()
            self._number += 1
        self._watches[likely] = watch
        if len(self._watches) > REGIMES:
            del self._watches[next(iter(self._watches))]
        return watch

    def step_s(self, configs: Sequence[Config]) -> Floats:
        """Predicted step times in the latest state (s), shape [configs]."""
        assert self._known is not None
        state, _, code = self._known
        asked = candidates(state, configs)
        return self._net.seconds(self._net.rate(code, asked), asked.floor_s, state.samples)

    def learn(self) -> None:
        """Learn what configs took in this regime."""
        if self._known is None:
            return
        state, vector, _ = self._known
        asked = candidates(state, list(state.seen))
        took_s = np.array(list(state.seen.values()))
        self._adaptation.learn(Lesson(vector, asked, took_s, state.samples))
