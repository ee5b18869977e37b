"""What the twin expects of every candidate: predicted step times, corrected by what was measured, and its doubts."""

import math
import statistics

import numpy as np

from autobyte.config import Config, Space
from autobyte.job import Floats, Ints
from autobyte.tuners.twin.calibration import JobCalibration
from autobyte.tuners.twin.choosing import NOISE, OCTAVES, Belief, beyond, every
from autobyte.tuners.twin.predictor import Predictor, Scope, Settings
from autobyte.tuners.twin.windows import JobState, Load

HIDDEN = 0.3  # of the doubts, what is left where compute hides all communication
BATCH, MARGIN = 16, 1.05  # candidates are predicted in batches until none that is left can be within 5 % of the best
CLOSE = 1.02  # partitions within 2 % of the best are tried with every window
HOPELESS = 1.5  # times the latest step: what blocks alone may take


class Expectations:
    """Predicts all candidates in the job as it is.

    What the predictor lacks shows as a difference between measured and predicted steps, and between the pace of links
    under one config and another. Both are Gaussian processes over the configs, so that it is known how sure a
    prediction is. With more bytes in flight than ran before, the worse is expected.

    Args:
        space: of the candidates.
        predictor: of steps.
        settings: what to make of it.
    """

    def __init__(self, space: Space, predictor: Predictor | None, settings: Settings) -> None:
        self.candidates = every(space)
        self.calibration = JobCalibration(self._load, self._stretched, unlikely=settings.unlikely)
        self._predictor = predictor
        self._settings = settings
        self._coarse = np.array([_is_coarse(config) for config in self.candidates])
        self._partitions = [(config.partition_bytes, *config.knobs.values()) for config in self.candidates]
        self._loads: dict[tuple[int, tuple[float, ...], int, int], Load] = {}
        self._places: dict[tuple[int, int], Floats] = {}  # rows of all candidates
        self._costs: dict[tuple[int, int], Floats] = {}  # of all candidates' blocks

    def believed(self, *, error: float, early: bool) -> Belief:
        """Return what is believed of all candidates, as windows with statistics have it.

        Args:
            error: relative, of predictions that were compared with what came.
            early: hardly anything ran yet.
        """
        assert self._predictor is not None
        calibration, lacks = self.calibration, self._settings.lacks
        state, rows = calibration.now(), self._rows()
        some = self._possible(rows)
        stretch = calibration.stretch(rows[some]).of(some, len(rows))
        wire_s = self._wire_s(state, stretch.mean)
        predicted_s = self._predict(state, np.exp(stretch.mean), np.maximum(wire_s, _compute_s(state)), some)
        likely = np.isfinite(predicted_s)
        predicted_s = np.where(likely, predicted_s, predicted_s.min())
        hope = np.maximum(np.log(predicted_s / _compute_s(state)), 0.0)  # no step is faster than its compute
        ran = np.array([window.row for window in calibration.windows])
        took_s = np.array([max(window.step_s, 1e-12) for window in calibration.windows])
        missed = np.log(took_s / self._predictor.ran_s(calibration, state))
        noise = np.array([max(window.error, NOISE) for window in calibration.windows])
        matters = float(np.clip(hope.min() / lacks.local, HIDDEN, 1.0))
        scale = lacks.scale(ran, missed, noise)
        process = lacks.wider(min(scale, 1.0) * max(matters, error / lacks.local))
        some = np.flatnonzero(likely)
        residual = process.posterior(ran, missed, noise, at=rows[some]).of(some, len(rows))
        deviation = np.sqrt(stretch.variance)
        pace = np.where(likely, np.minimum(wire_s / predicted_s, 1.0) * np.minimum(deviation, 0.3), 0.0)
        exposed = np.minimum(pace, hope) / np.maximum(deviation, 1e-6)
        mean = np.where(likely, np.log(predicted_s) + residual.mean, np.inf)
        seen = max(row[3] for row in ran if row[0] == calibration.regime)
        far = beyond(rows[:, 3], seen)
        mean += far * pace * (1.0 if early else 0.5)  # more in flight than ever: expect the worse
        if early:
            exposed *= 1 - far  # and hope for nothing
        mean[rows[:, 3] > ran[:, 3].max() + OCTAVES] = np.inf

        def together(some: Ints) -> Floats:
            links: Floats = stretch.together(some) * np.outer(exposed[some], exposed[some])
            return links + residual.together(some)

        deviation = np.sqrt(exposed**2 * stretch.variance + np.minimum(residual.variance, process.local**2))
        return Belief(mean, deviation, together, statistics.median(noise.tolist()))

    def _possible(self, rows: Floats) -> Ints:
        """Indices of candidates worth a prediction, whatever it says."""
        if self._settings.scope is not Scope.POSSIBLE:
            return np.arange(len(rows))
        windows = self.calibration.windows
        latest = windows[-1]
        blocks_s = self._blocks_s(latest.state.workers, latest.state.servers) * self.calibration.overhead
        possible = blocks_s <= HOPELESS * latest.step_s
        possible &= rows[:, 3] <= max(window.row[3] for window in windows) + OCTAVES
        possible |= not possible.any()
        return np.flatnonzero(possible)

    def _predict(self, state: JobState, stretch: Floats, least_s: Floats, possible: Ints) -> Floats:
        """Predicted step times (s), shape [configs]; infinite where a candidate is left out.

        Where only promising ones are predicted, windows of 1, 2, 4, 8 and 16 partitions come first: only where one of
        them is close to the best are others tried.
        """
        seconds = np.full(len(least_s), np.inf)
        if self._settings.scope is not Scope.PROMISING:
            seconds[possible] = self._step_s(state, possible, stretch)
            return seconds
        order, close = np.argsort(least_s, kind="stable"), self._coarse
        for _ in range(2):
            rest = order[close[order] & np.isinf(seconds[order])]
            for first in range(0, len(rest), BATCH):
                batch = rest[first : first + BATCH]
                if least_s[batch[0]] > MARGIN * seconds.min():
                    break
                seconds[batch] = self._step_s(state, batch, stretch)
            near = {self._partitions[index] for index in np.flatnonzero(seconds <= CLOSE * seconds.min())}
            close = np.array([partition in near for partition in self._partitions])
        return seconds

    def _step_s(self, state: JobState, some: Ints, stretch: Floats) -> Floats:
        assert self._predictor is not None
        configs = [self.candidates[index] for index in some]
        return self._predictor.step_s(state, configs, stretch[some], self.calibration)

    def _stretched(self, state: JobState, config: Config, stretch: Floats) -> Floats:
        assert self._predictor is not None
        return self._predictor.step_s(state, [config] * len(stretch), stretch, self.calibration)

    def _wire_s(self, state: JobState, stretch: Floats) -> Floats:
        """Time that the busiest link needs in a step under each candidate (s): none is faster."""
        first = self._load(self.candidates[0], state.workers, state.servers)
        blocks_s = self._blocks_s(state.workers, state.servers) * state.overhead
        bytes_s = float((first.nbytes / np.minimum(state.up_bytes_per_s, state.down_bytes_per_s)).max())
        return blocks_s + bytes_s * np.exp(stretch)

    def _rows(self) -> Floats:
        """Rows of all candidates, as they would be in the latest window; shape [configs, 4]."""
        latest = self.calibration.windows[-1]
        shape = latest.state.workers, latest.state.servers
        if shape not in self._places:
            self._places[shape] = self.calibration.rows(self.candidates)
        rows = self._places[shape].copy()
        rows[:, :2] = latest.row[:2]
        return rows

    def _blocks_s(self, workers: int, servers: int) -> Floats:
        """What the blocks of a step nominally cost under each candidate (s), shape [configs]."""
        if (workers, servers) not in self._costs:
            loads = [self._load(config, workers, servers) for config in self.candidates]
            self._costs[workers, servers] = np.array([load.blocks_s for load in loads])
        return self._costs[workers, servers]

    def _load(self, config: Config, workers: int, servers: int) -> Load:
        assert self._predictor is not None
        key = (config.partition_bytes, tuple(config.knobs.values()), workers, servers)
        if key not in self._loads:
            self._loads[key] = self._predictor.load(config, workers=workers, servers=servers)
        return self._loads[key]


def _is_coarse(config: Config) -> bool:
    """Whether a window is a power of two of partitions, or no whole number of them."""
    ratio = config.credit_bytes / config.partition_bytes
    return math.log2(ratio).is_integer() or not ratio.is_integer()


def _compute_s(state: JobState) -> float:
    return float((state.forward_s + state.backward_s).sum(axis=1).max())
