"""The network of AutoByte on one running job: what state windows show, what it predicts there, and lessons."""

import logging
import math
from collections.abc import Sequence

import numpy as np

from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.features.runtime import State, Watch
from autobyte.features.vector import Candidates, Vector, candidates, describe
from autobyte.job import Floats, Model
from autobyte.nets import stored
from autobyte.nets.adaptation import Adaptation, Lesson
from autobyte.nets.metanet import Array
from autobyte.trace import Measurement

log = logging.getLogger(__name__)

REGIMES = 16  # that are remembered
LEAVE, NEW = 2.0, 8.0  # what a regime must explain better than the one before; what none explains after a change


class Network:
    """The network on one job: the state that windows show, what it predicts there, and lessons.

    Args:
        variant: of the weights that come with the package.
        model: what is trained.
        seed: of what is replayed.
    """

    def __init__(self, variant: str, model: Model, *, seed: int) -> None:
        self._net, replay = stored.shipped(variant)
        self._adaptation = Adaptation(self._net, replay, seed=seed)
        self._watches = {0: Watch(model)}  # of the latest regimes, by number; the one that saw the latest window last
        self._number = 1  # of the next
        self._regimes: dict[tuple[int, int], int] = {}  # a watch has several where links drift, and come to rest
        self._warned = False
        self._known: tuple[State, Vector, Array] | None = None

    @property
    def ready(self) -> bool:
        """Whether a window has shown a state yet."""
        return self._known is not None

    @property
    def regime(self) -> int:
        """Number of the regime of the latest window."""
        return self._regimes.setdefault((next(reversed(self._watches)), self.state.regime), len(self._regimes))

    @property
    def state(self) -> State:
        """Of the job, as the latest window with statistics showed it."""
        assert self._known is not None
        return self._known[0]

    @property
    def code(self) -> Array:
        """The state as the head takes it."""
        assert self._known is not None
        return self._known[2]

    def note(self, measurement: Measurement, *, changed: bool = False) -> bool:
        """Take in a window, before which the job changed or did not; whether its statistics are of use."""
        try:
            state = self._watch_of(measurement, changed=changed).add(measurement)
        except InputError as error:
            if not self._warned:
                log.warning("the network has no statistics to predict from: %s", error)
            self._warned = True
            return False
        vector = describe(state)
        self._known = state, vector, self._net.encode(vector)
        return True

    def _watch_of(self, measurement: Measurement, *, changed: bool) -> Watch:
        """That of the most likely regime: the one before, an old one that has come back, or a new one."""
        before = next(reversed(self._watches))
        cost = {
            number: watch.surprise(measurement) + LEAVE * (number != before)
            for number, watch in self._watches.items()
        }
        if changed:
            cost[before] += 2 * LEAVE
        likely = min(sorted(cost), key=lambda number: cost[number])
        if cost[likely] <= (NEW if changed else math.inf) and math.isfinite(cost[likely]):
            watch = self._watches.pop(likely)
        else:
            likely, watch = self._number, self._watches[before].anew()
            self._number += 1
        self._watches[likely] = watch
        if len(self._watches) > REGIMES:
            del self._watches[next(iter(self._watches))]
        return watch

    def asked(self, configs: Sequence[Config]) -> Candidates:
        """Configs as numbers, in the latest state."""
        return candidates(self.state, configs)

    def log_s(self, asked: Candidates, *, codes: Array | None = None, samples: Floats | None = None) -> Floats:
        """Logarithm of predicted step times, shape [configs]; in the latest state, or each in one of its own."""
        rated = self._net.rate(self.code if codes is None else codes, asked)
        predicted_s = self._net.seconds(rated, asked.floor_s, self.state.samples if samples is None else samples)
        return np.log(np.maximum(predicted_s, 1e-12))

    def learn(self) -> None:
        """Learn what configs took in this regime."""
        if self._known is None:
            return
        state, vector, _ = self._known
        asked = self.asked(list(state.seen))
        took_s = np.array(list(state.seen.values()))
        self._adaptation.learn(Lesson(vector, asked, took_s, state.samples))
