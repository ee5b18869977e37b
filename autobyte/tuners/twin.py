"""A simulator of the running job, calibrated on its own statistics, that tries the candidates instead of the job."""

import logging
import math
import statistics
from collections.abc import Sequence
from typing import ClassVar, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from autobyte.config import Config, Space
from autobyte.job import Floats, Ints, Model
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner
from autobyte.tuners.choosing import (
    AHEAD,
    NOISE,
    OCTAVES,
    Belief,
    ahead,
    beyond,
    blindly,
    choice,
    every,
    measured_alone,
    worth,
    worth_together,
)
from autobyte.tuners.trigger import Backoff, Misses, Trigger
from autobyte.tuners.twin_calibration import Calibration
from autobyte.tuners.twin_process import Posterior, Process
from autobyte.tuners.twin_windows import JobState, Load, Window

log = logging.getLogger(__name__)

STEPS = Process(common=0.3, regime=0.05, block=0.03, flight=0.03, octaves=3.0)  # of log(measured / simulated)
TRIGGER = Trigger(floor=0.0025, errors=0.0)  # its errors are in what it expects of a change already
HIDDEN = 0.3  # of these doubts, what is left where compute hides all communication
SOON = 3  # windows in which it knows too little for trials that would not pay off at once
BATCH, MARGIN = 16, 1.05  # candidates are simulated in batches until none that is left can be within 5 % of the best
CLOSE = 1.02  # partitions within 2 % of the best are tried with every window


class Predictor(Protocol):
    """Predicts steps of the running job: `autobyte.prediction` by simulation, `metanet_predictor` by a network."""

    def load(self, config: Config, *, workers: int, servers: int) -> Load:
        """What a step puts on the links."""
        ...

    def step_s(self, state: JobState, configs: Sequence[Config], stretch: Floats) -> Floats:
        """Time of a steady step under each config (s), shape [configs]; bytes take `stretch` times as long."""
        ...


class Twin(Tuner):
    """Calibrate, simulate the candidates, choose; in every window anew, alive for the whole run.

    The simulation is the plain model of the job. What it lacks shows as a difference between simulated and measured
    steps, and between the pace of links under one config and another: both are Gaussian processes over the configs,
    so that the twin knows where it is wrong, and how sure it is of that. It chooses by the step time it expects, and
    by what a window would tell of all configs (the knowledge gradient); with more bytes in flight than it has seen
    yet, it expects the worse. Where its simulation keeps missing, the process widens, and it measures more; where it
    has been right, it narrows. Without statistics it only measures.

    Args:
        space, model, seed, budget: as for every tuner.
        predictor: simulates; None measures only.
        exhaustive: simulate every candidate, not only those that can win.
    """

    needs: ClassVar[tuple[str, ...]] = ("predictor",)
    lacks: ClassVar[Process] = STEPS  # of log(measured / predicted)
    least: ClassVar[float] = 0.0  # see `Calibration`
    trigger: ClassVar[Trigger] = TRIGGER
    who: ClassVar[str] = "the twin"

    def __init__(
        self,
        space: Space,
        *,
        model: Model,
        seed: int = 0,
        budget: int | None = None,
        predictor: Predictor | None = None,
        exhaustive: bool = False,
    ) -> None:
        self._model = model
        self._predictor = predictor
        self._exhaustive = exhaustive
        self._candidates = every(space)
        self._coarse = np.array([_is_coarse(config) for config in self._candidates])
        self._rows = [(config.partition_bytes, *config.knobs.values()) for config in self._candidates]
        self._calibration = Calibration(self._load, self._stretched, least=self.least)
        self._loads: dict[tuple[int, tuple[float, ...], int, int], Load] = {}
        self._places: dict[tuple[int, int], Floats] = {}  # rows of all candidates
        self._costs: dict[tuple[int, int], Floats] = {}  # of all candidates' blocks
        self._simulated: WeakKeyDictionary[Window, tuple[float, float]] = WeakKeyDictionary()  # under an overhead
        self._unseen: list[tuple[Config, float, float]] = []  # windows without statistics
        self._misses = Misses()
        self._pace = Backoff()
        self._running: Config | None = None
        self._left: Config | None = None  # in force before
        self._number = {config: index for index, config in enumerate(self._candidates)}
        self._expected_s = np.full(len(self._candidates), math.nan)
        self._news = True
        self._told = 0  # windows
        self.brief = True

    def tell(self, measurement: Measurement) -> None:
        """Calibrate on it, and see by how much it was expected otherwise."""
        self._told += 1
        if measurement.config != self._running:
            self._news, self._left = True, self._running
        self._running = measurement.config
        expected_s, changed = self._expects_s(measurement.config), False
        if self._predictor is not None and self._complete(measurement):
            changed = self._calibrate(measurement, expected_s)
            self._news |= changed
        else:
            if self._predictor is not None and not self._unseen:
                log.warning("%s has no statistics to calibrate on, and measures instead", self.who)
            self._unseen.append((measurement.config, measurement.mean_s, self._calibration.noise.error(measurement)))
            del self._unseen[:-64]
        if not changed and not self._calibration.noise.broken(measurement.step_s):  # it simulated the job that was
            self._misses.note(predicted_s=expected_s, observed_s=measurement.mean_s, noise=measurement.error)

    def ask(self) -> Config | None:
        """The config in force, unless another is worth it."""
        self.brief = self._told < SOON
        if self._running is None or not self._pace.due(changed=self._news):
            return self._running
        self._news = False
        self.brief = True
        if self._calibration.doubtful and self._left is not None:
            self._expected_s[:] = math.nan  # of the job that was
            return self._left
        mean, value = self._valued()
        self._expected_s = np.exp(mean)
        ran = self._calibration.here if self._early else ()  # no trial for what may be as good
        bar = self.trigger.bar(self._misses.error)
        chosen = choice(self._candidates, self._running, value, bar, mean=mean, ran=ran)
        self.brief = self._told < SOON or chosen not in self._known
        return chosen

    def _calibrate(self, measurement: Measurement, expected_s: float) -> bool:
        """Take in a window that has statistics; whether something has changed but the config."""
        return self._calibration.note(measurement, expected_s=expected_s)

    def _expects_s(self, config: Config) -> float:
        """Of steps under a config, as the last decision had it (s); nan if it has nothing to say."""
        number = self._number.get(config)
        return math.nan if number is None else float(self._expected_s[number])

    @property
    def _known(self) -> set[Config]:
        """What ran in the job as it is."""
        return self._calibration.here or {config for config, _, _ in self._unseen}

    @property
    def _early(self) -> bool:
        return self._told <= SOON

    def _valued(self) -> tuple[Floats, Floats]:
        """Logarithm of each candidate's step time, infinite for who cannot win; what it is worth to run it."""
        if not self._calibration.windows:
            mean, deviation = measured_alone(self._model, self._unseen, self._candidates)
            return mean, worth(mean, deviation, windows=blindly(len(self._unseen)))
        belief = self._believed()
        windows = ahead(self._calibration.number, least=1.0 if self._early else AHEAD)
        return belief.mean, worth_together(belief, windows=windows)

    def _believed(self) -> Belief:
        """Of all candidates, as windows with statistics have it."""
        calibration = self._calibration
        state, rows = calibration.now(), self._all_rows()
        stretch = self._stretch(rows)
        wire_s = self._wire_s(state, stretch.mean)
        simulated_s = self._simulate(state, np.exp(stretch.mean), np.maximum(wire_s, _compute_s(state)))
        likely = np.isfinite(simulated_s)
        simulated_s = np.where(likely, simulated_s, simulated_s.min())
        hope = np.maximum(np.log(simulated_s / _compute_s(state)), 0.0)  # no step is faster than its compute
        known, missed = np.array([window.row for window in calibration.windows]), self._missed()
        noise = np.array([max(window.error, NOISE) for window in calibration.windows])
        matters = float(np.clip(hope.min() / self.lacks.local, HIDDEN, 1.0))
        scale = self.lacks.scale(known, missed, noise)
        process = self.lacks.wider(min(scale, 1.0) * max(matters, self._misses.error / self.lacks.local))
        some = np.flatnonzero(likely)
        residual = process.posterior(known, missed, noise, at=rows[some]).of(some, len(rows))
        deviation = np.sqrt(stretch.variance)
        pace = np.where(likely, np.minimum(wire_s / simulated_s, 1.0) * np.minimum(deviation, 0.3), 0.0)
        exposed = np.minimum(pace, hope) / np.maximum(deviation, 1e-6)
        mean = np.where(likely, np.log(simulated_s) + residual.mean, np.inf)
        seen = max(row[3] for row in known if row[0] == calibration.regime)
        far = beyond(rows[:, 3], seen)
        mean += far * pace * (1.0 if self._early else 0.5)  # more in flight than ever: expect the worse
        if self._early:
            exposed *= 1 - far  # and hope for nothing
        mean[rows[:, 3] > known[:, 3].max() + OCTAVES] = np.inf

        def together(some: Ints) -> Floats:
            links: Floats = stretch.together(some) * np.outer(exposed[some], exposed[some])
            return links + residual.together(some)

        deviation = np.sqrt(exposed**2 * stretch.variance + np.minimum(residual.variance, process.local**2))
        return Belief(mean, deviation, together, statistics.median(noise.tolist()))

    def _stretch(self, rows: Floats) -> Posterior:
        """Logarithm of how much longer bytes take under each candidate."""
        return self._calibration.stretch(rows)

    def _wire_s(self, state: JobState, stretch: Floats) -> Floats:
        """Time that the busiest link needs in a step under each candidate (s): none is faster."""
        first = self._load(self._candidates[0], state.workers, state.servers)
        blocks_s = self._blocks_s(state.workers, state.servers) * state.overhead
        bytes_s = float((first.nbytes / np.minimum(state.up_bytes_per_s, state.down_bytes_per_s)).max())
        return blocks_s + bytes_s * np.exp(stretch)

    def _all_rows(self) -> Floats:
        """Rows of all candidates, as they would be in the latest window; shape [configs, 4]."""
        latest = self._calibration.windows[-1]
        shape = latest.state.workers, latest.state.servers
        if shape not in self._places:
            self._places[shape] = self._calibration.rows(self._candidates)
        rows = self._places[shape].copy()
        rows[:, :2] = latest.row[:2]
        return rows

    def _blocks_s(self, workers: int, servers: int) -> Floats:
        """What the blocks of a step nominally cost under each candidate (s), shape [configs]."""
        if (workers, servers) not in self._costs:
            loads = [self._load(config, workers, servers) for config in self._candidates]
            self._costs[workers, servers] = np.array([load.blocks_s for load in loads])
        return self._costs[workers, servers]

    def _simulate(self, state: JobState, stretch: Floats, least_s: Floats) -> Floats:
        """Step times (s), the most promising first, until no other can win; infinite for the rest.

        Windows of 1, 2, 4, 8 and 16 partitions first: only where one of them is close to the best are others tried.
        """
        assert self._predictor is not None
        seconds = np.full(len(least_s), np.inf)
        order = np.argsort(least_s, kind="stable")
        if self._exhaustive:
            return self._predictor.step_s(state, self._candidates, stretch)
        close = self._coarse
        for _ in range(2):
            rest = order[close[order] & np.isinf(seconds[order])]
            for first in range(0, len(rest), BATCH):
                batch = rest[first : first + BATCH]
                if least_s[batch[0]] > MARGIN * seconds.min():
                    break
                configs = [self._candidates[index] for index in batch]
                seconds[batch] = self._predictor.step_s(state, configs, stretch[batch])
            near = {self._rows[index] for index in np.flatnonzero(seconds <= CLOSE * seconds.min())}
            close = np.array([row in near for row in self._rows])
        return seconds

    def _missed(self) -> Floats:
        """Logarithm of measured by simulated, shape [windows]."""
        windows = self._calibration.windows
        return np.array([math.log(max(window.step_s, 1e-12) / self._simulated_s(window)) for window in windows])

    def _simulated_s(self, window: Window) -> float:
        """What the simulation says of a window that was measured (s)."""
        assert self._predictor is not None
        overhead = self._calibration.overhead
        known = self._simulated.get(window)
        if known is None or abs(known[0] / overhead - 1) > 0.01:
            state = self._calibration.of(window)
            known = overhead, float(self._predictor.step_s(state, [window.config], np.ones(1))[0])
            self._simulated[window] = known
        return max(known[1], 1e-12)

    def _stretched(self, state: JobState, config: Config, stretch: Floats) -> Floats:
        assert self._predictor is not None
        return self._predictor.step_s(state, [config] * len(stretch), stretch)

    def _load(self, config: Config, workers: int, servers: int) -> Load:
        assert self._predictor is not None
        key = (config.partition_bytes, tuple(config.knobs.values()), workers, servers)
        if key not in self._loads:
            self._loads[key] = self._predictor.load(config, workers=workers, servers=servers)
        return self._loads[key]

    def _complete(self, measurement: Measurement) -> bool:
        """Whether a window has statistics that can be, of workers that send something."""
        stats = measurement.stats
        if stats is None:
            return False
        times = np.array([stats.forward_s, stats.backward_s])
        rates = np.array([stats.up_bytes_per_s, stats.down_bytes_per_s])
        layers = times.shape[-1] == len(self._model.layers)
        sound = (
            times.size
            and times.min() >= 0
            and 0 < times.sum() < math.inf
            and rates.min() > 0
            and rates.max() < math.inf
        )
        sends = len(stats.forward_s) > 1 and any(tensor.numel for tensor in self._model.tensors)
        return bool(layers and sound and sends)


def _is_coarse(config: Config) -> bool:
    """Whether a window is a power of two of partitions, or no whole number of them."""
    ratio = config.credit_bytes / config.partition_bytes
    return math.log2(ratio).is_integer() or not ratio.is_integer()


def _compute_s(state: JobState) -> float:
    return float((state.forward_s + state.backward_s).sum(axis=1).max())
