"""AutoByte: a network that was trained before the job began predicts every candidate, and goes on learning.

The statistics of Table II become a state; the network encodes it, and says what a step takes under each candidate.
The job changes to the best where that is worth it, and where prediction and observation differ by more than 10 % the
network learns from the job, in the background.

Reference: AutoByte, sec. III.
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from autobyte.config import Config, Space
from autobyte.features.vector import Candidates
from autobyte.job import Floats, Model
from autobyte.nets.metanet import Array
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner
from autobyte.tuners.choosing import OCTAVES, Belief, ahead, every, worth
from autobyte.tuners.metanet_network import Network
from autobyte.tuners.metanet_predictor import Learned
from autobyte.tuners.trigger import PAPER, Misses, Trigger
from autobyte.tuners.twin import Twin
from autobyte.tuners.twin_process import Posterior, Process
from autobyte.tuners.twin_windows import JobState, Window
from autobyte.units import format_bytes

log = logging.getLogger(__name__)

ADAPT = 0.10  # of the observed step time: a prediction that is off by more is a lesson (AutoByte, sec. III-B)
LACKS = Process(common=0.3, regime=0.1, block=0.05, flight=0.05, octaves=3.0)  # of log(measured / predicted)
TRIGGER = Trigger(floor=0.0125, errors=0.0)
SAME = 0.01  # relative, of what a block costs: windows are as they were
FEW = 3  # configs that ran, from which on more of them are no news to the network
HOPELESS = 1.5  # times the latest step
SEEN = Space()  # what the network was trained in


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
        self._net = Network("paper", model, seed=seed, weights=weights)
        self._misses = Misses()
        self._running: Config | None = None
        self._expected: dict[Config, float] = {}
        _tell_of(space)

    def tell(self, measurement: Measurement) -> None:
        """Note by how much the prediction was off, and what the state is now."""
        self._running = measurement.config
        self._misses.note(predicted_s=self._expects_s(measurement.config), observed_s=measurement.mean_s)
        self._net.note(measurement)

    def ask(self) -> Config | None:
        """The config of the least predicted step time, where that is 5 % better; nothing without statistics."""
        if self._running is None or not self._net.ready:
            return None
        here_s, *predicted_s = self._net.step_s([self._running, *self._candidates]).tolist()
        best = int(np.argmin(predicted_s))
        chosen = self._candidates[best] if PAPER.fires(here_s, predicted_s[best]) else self._running
        self._expected = {self._running: here_s, **dict(zip(self._candidates, predicted_s, strict=True))}
        return chosen

    def work(self) -> None:
        """Learn from a prediction that was wrong."""
        if abs(self._misses.last) > ADAPT:
            self._net.learn()

    def _expects_s(self, config: Config) -> float:
        """Of steps under a config, as the last decision had it (s); nan if it has nothing to say."""
        return self._expected.get(config, math.nan)


class Metanet(Twin):
    """The network in the place of the twin's simulator, and all that the twin knows of windows.

    What was measured stands: the difference between measured and predicted steps is a Gaussian process over the
    configs. What blocks and bytes cost, what configs change about that, regimes that come back, links that fade and
    windows that are torn are told as the twin tells them (`twin_calibration.py`, `twin_torn.py`). Where a prediction
    in the same regime was off by more than 10 %, the heads learn from the job. Without statistics it measures.

    Args:
        space, model, seed, budget: as for every tuner.
        weights: the file that `autobyte fit` wrote; by default those that come with the package.

    Raises:
        FileError: the network's weights are missing, damaged, or for other features.
    """

    needs = ()
    lacks = LACKS
    least = 0.02
    trigger = TRIGGER
    who = "the network"

    def __init__(
        self,
        space: Space,
        *,
        model: Model,
        seed: int = 0,
        budget: int | None = None,
        weights: Path | str | None = None,
    ) -> None:
        self._learned = Learned(model, seed=seed, weights=weights)
        super().__init__(space, model=model, seed=seed, budget=budget, predictor=self._learned)
        self._codes: WeakKeyDictionary[Window, tuple[tuple[float, int, float], Array, Candidates]] = (
            WeakKeyDictionary()
        )
        self._offs: WeakKeyDictionary[Window, tuple[float, float]] = WeakKeyDictionary()  # under an overhead
        self._now: JobState | None = None  # that candidates were predicted in
        self._possible = np.ones(len(self._candidates), dtype=bool)
        self._wrong = False
        _tell_of(space)

    def tell(self, measurement: Measurement) -> None:
        """Calibrate on it, and see whether it is a lesson."""
        calibration = self._calibration
        number, compared = calibration.number, self._misses.compared
        super().tell(measurement)
        clear = calibration.number > number and self._misses.compared > compared
        clear = clear and not calibration.windows[-1].surprise and not calibration.doubtful
        self._wrong = clear and abs(self._misses.last) > ADAPT

    def _calibrate(self, measurement: Measurement, expected_s: float) -> bool:
        """As the twin does; but what travels in a step must be known before."""
        self._learned.note(measurement, torn=bool(self._calibration.noise.broken(measurement.step_s)))
        return super()._calibrate(measurement, expected_s)

    def _stretched(self, state: JobState, config: Config, stretch: Floats) -> Floats:
        """As the twin has it, in a state that is told with what ran."""
        self._learned.off = self._off_in(self._calibration.regime)
        return super()._stretched(state, config, stretch)

    def work(self) -> None:
        """Learn from a prediction that was wrong."""
        calibration = self._calibration
        if self._wrong:
            self._learned.off = self._off_in(calibration.regime)
            stretch = np.exp(calibration.stretch(calibration.rows(list(self._learned.off))).mean)
            self._learned.learn(calibration.now(), stretch)
        self._wrong = False

    def _complete(self, measurement: Measurement) -> bool:
        """As the twin has it; and of no more servers than workers."""
        stats = measurement.stats
        return stats is not None and stats.servers <= len(stats.forward_s) and super()._complete(measurement)

    def _valued(self) -> tuple[Floats, Floats]:
        """As the twin has it; but at first each candidate is looked at alone: the network may be wrong anywhere."""
        if not self._early or not self._calibration.windows:
            return super()._valued()
        belief = self._believed()
        return belief.mean, worth(belief.mean, belief.deviation, windows=ahead(self._calibration.number))

    def _believed(self) -> Belief:
        self._learned.off = self._off_in(self._calibration.regime)
        return super()._believed()

    def _stretch(self, rows: Floats) -> Posterior:
        """As the twin has it, of all that do not let too much more into flight, nor take long for blocks alone."""
        windows = self._calibration.windows
        blocks_s = self._blocks_s(windows[-1].state.workers, windows[-1].state.servers) * self._calibration.overhead
        asked = blocks_s <= HOPELESS * windows[-1].step_s
        asked &= rows[:, 3] <= max(window.row[3] for window in windows) + OCTAVES
        asked |= not asked.any()
        self._possible = asked
        return self._calibration.stretch(rows[asked]).of(np.flatnonzero(asked), len(rows))

    def _simulate(self, state: JobState, stretch: Floats, least_s: Floats) -> Floats:
        """Predicted step times of candidates that may be asked for (s), in one batch; infinite for the rest."""
        self._now, some = state, np.flatnonzero(self._possible)
        seconds = np.full(len(least_s), np.inf)
        seconds[some] = self._learned.step_s(state, [self._candidates[index] for index in some], stretch[some])
        return seconds

    def _missed(self) -> Floats:
        """Logarithm of measured by predicted, shape [windows]: each in its own state, all in one batch."""
        windows = self._calibration.windows
        before = {float(window.row[0]) for window in windows} - {self._calibration.regime}
        off = {self._calibration.regime: self._learned.off} | {regime: self._off_in(regime) for regime in before}
        codes, asked = zip(*(self._asked(window, off[float(window.row[0])]) for window in windows), strict=True)
        table, floor_s = (np.concatenate([getattr(each, name) for each in asked]) for name in ("table", "floor_s"))
        took_s = np.array([max(window.step_s, 1e-12) for window in windows])
        return np.log(took_s / self._learned.seconds(np.stack(codes), Candidates(table, floor_s)))

    def _asked(self, window: Window, off: Mapping[Config, float]) -> tuple[Array, Candidates]:
        """A window as the network takes it, encoded anew when what blocks cost, or how much ran, is not as it was."""
        calibration, now, latest = self._calibration, self._learned.off, window is self._calibration.windows[-1]
        key, known = (calibration.overhead, min(len(off), FEW), float(window.row[0])), self._codes.get(window)
        if known is None or known[0][1:] != key[1:] or abs(known[0][0] / key[0] - 1) > SAME:
            state = self._now if latest and self._now is not None else calibration.of(window)
            self._learned.off = now if latest else off
            known = self._codes[window] = key, *self._learned.asked(state, window.config)
            self._learned.off = now
        return known[1:]

    def _off_in(self, regime: float) -> dict[Config, float]:
        """Logarithm of measured by closed form, the mean of each config that ran in a regime."""
        off: dict[Config, list[float]] = {}
        for window in self._calibration.windows:
            if window.row[0] == regime:
                off.setdefault(window.config, []).append(self._off(window))
        return {config: math.fsum(values) / len(values) for config, values in off.items()}

    def _off(self, window: Window) -> float:
        overhead, known = self._calibration.overhead, self._offs.get(window)
        if known is None or abs(known[0] / overhead - 1) > SAME:
            floor_s = self._learned.floor_s(self._calibration.of(window), window.config)
            known = self._offs[window] = overhead, math.log(max(window.step_s, 1e-12) / floor_s)
        return known[1]


def _tell_of(space: Space) -> None:
    """Say where the network will predict what it never saw."""
    (least, most), (low, high) = space.partition_bytes, space.credit_ratio
    fixed = [knob for knob, value in space.default.knobs.items() if SEEN.default.knobs.get(knob) != value]
    seen = {
        f"partitions of {format_bytes(least)} to {format_bytes(most)}": _within(
            space.partition_bytes, SEEN.partition_bytes
        ),
        f"credits of {low:g}x to {high:g}x": _within(space.credit_ratio, SEEN.credit_ratio),
        f"the policy '{space.default.policy}'": space.default.policy == SEEN.default.policy,
        **{f"the knob '{name}'": False for name in (*space.knobs, *fixed)},
    }
    strange = ", ".join(name for name, known in seen.items() if not known)
    if strange:
        log.warning("the network was not trained on %s: it predicts there all the same, and measures", strange)


def _within(some: tuple[float, float], all_: tuple[float, float]) -> bool:
    return all_[0] <= some[0] and some[1] <= all_[1]
