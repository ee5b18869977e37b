"""What the windows of a job say of the network's errors: what was measured stands, and tells of its neighbours."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autobyte.config import Config
from autobyte.features.runtime import State
from autobyte.features.static import Static
from autobyte.features.vector import Candidates
from autobyte.job import Floats
from autobyte.nets.metanet import Array
from autobyte.trace import Measurement
from autobyte.tuners.choosing import NOISE
from autobyte.tuners.metanet_network import Network
from autobyte.tuners.noise import Noise
from autobyte.tuners.twin_process import Process

#: Of log(measured / predicted).
RESIDUAL = Process(common=0.3, regime=0.1, block=0.06, flight=0.06, octaves=3.0, rough=0.04)
MIXED = 0.03  # standard error of a window in which the job changed, at least: of two jobs, it says little of either
TRIALS, PRIOR = 12, 3.0  # that tell how wrong the network is; as many were as expected, before any was seen
KEEP, ALIKE = 32, 3  # windows that are remembered; of them under one config in one regime


@dataclass(eq=False)
class Window:
    """A window, and the state it ran in, as the network takes them."""

    config: Config
    row: Floats  # see `Process`
    step_s: float
    error: float  # of the mean, relative
    code: Array
    asked: Candidates
    samples: int


class Doubt:
    """How far from config to config the network may be wrong: as it was, beyond noise, and no further than usual.

    A job that never rests makes every prediction wrong; put down to the network, that led to trials at random.
    """

    def __init__(self) -> None:
        self._surprises: deque[float] = deque(maxlen=TRIALS)

    def note(self, miss: float, noise: float) -> None:
        """Take in a trial: logarithm of predicted by observed, and the standard error of what was observed."""
        self._surprises.append(max(0.0, miss**2 - noise**2) / RESIDUAL.local**2)

    @property
    def process(self) -> Process:
        """RESIDUAL, or a narrower one."""
        return RESIDUAL.wider(
            min(1.0, math.sqrt((PRIOR + math.fsum(self._surprises)) / (PRIOR + len(self._surprises))))
        )


class Memory:
    """Windows, and what they say of the network's errors."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self.noise = Noise()
        self._now = 0.0
        self.number = 0  # windows so far
        self._places: dict[Config, tuple[float, float]] = {}  # of configs, for a job of so many bytes
        self._total = 0.0

    @property
    def here(self) -> set[Config]:
        """What ran in the current regime."""
        return {window.config for window in self.windows if window.row[0] == self._now}

    @property
    def is_trial(self) -> bool:
        """Whether the latest window is the first of its config in this regime."""
        latest = self.windows[-1]
        return latest.config not in {w.config for w in self.windows[:-1] if w.row[0] == self._now}

    def is_mixed(self, measurement: Measurement) -> bool:
        """Whether steps of a window differ as if the job had changed within it."""
        usual = float(np.median([window.error for window in self.windows])) if self.windows else math.inf
        return measurement.error > max(MIXED, 4 * usual)

    def note(self, net: Network, measurement: Measurement) -> bool:
        """Remember a window; whether something has changed but the config."""
        state, config = net.state, measurement.config
        new = float(net.regime) != self._now
        if new:
            self._now = float(net.regime)
        self.number += 1
        row = self.rows(state, [config])[0]
        asked = net.asked([config])
        error = self.noise.error(measurement)
        window = Window(config, row, measurement.mean_s, error, net.code, asked, state.samples)
        like = [w for w in self.windows if w.config == config and w.row[0] == row[0]]
        drop = like[: max(0, len(like) - ALIKE + 1)]
        self.windows = [*[other for other in self.windows if other not in drop][-KEEP + 1 :], window]
        return new

    def residual(self, net: Network, *, at: Floats, process: Process) -> tuple[Floats, Floats]:
        """What to add to the logarithm of predicted times, and its variance; shape [configs].

        Args:
            net: what predicts.
            at: rows of the configs of which it is asked.
            process: of the logarithm of measured by predicted.
        """
        rests = not net.state.drift
        here = [w for w in self.windows if w.row[0] == self._now and (rests or w.row[1] == self.number)]
        there = [window for window in self.windows if window not in here]
        predicted = net.log_s(net.asked([window.config for window in here]))
        if there:
            asked = Candidates(
                np.concatenate([window.asked.table for window in there]),
                np.concatenate([window.asked.floor_s for window in there]),
            )
            codes, samples = np.stack([w.code for w in there]), np.array([float(w.samples) for w in there])
            predicted = np.concatenate([predicted, net.log_s(asked, codes=codes, samples=samples)])
        known = [*here, *there]
        took = np.log([max(window.step_s, 1e-12) for window in known])
        noise = np.array([max(window.error, NOISE) for window in known])
        rows = np.array([window.row for window in known])
        mean, variance = process.posterior(rows, took - predicted, noise, at=at)
        return mean, np.minimum(variance, process.local**2)

    @property
    def flight(self) -> float:
        """Log2 of the most bytes that any window let into flight."""
        return max(float(window.row[3]) for window in self.windows)

    def rows(self, state: State, configs: Sequence[Config]) -> Floats:
        """Configs as the process takes them, if they ran now; shape [configs, 4]."""
        static = state.static
        if static.total_bytes != self._total:
            self._places, self._total = {}, static.total_bytes
        head, rows = (self._now, float(self.number)), []
        for config in configs:
            place = self._places.get(config)
            if place is None:
                flight = min(config.credit_bytes, max(static.total_bytes, 1.0))
                place = self._places[config] = math.log2(_block(static, config)), math.log2(flight)
            rows.append((*head, *place))
        return np.array(rows)


def _block(static: Static, config: Config) -> float:
    """Size of the block that the mean byte travels in."""
    size, tensors, total = float(config.partition_bytes), static.tensor_bytes, max(static.total_bytes, 1.0)
    if config.knobs.get("fusion", 0.0) >= 0.5:
        return min(size, total)
    whole = np.floor(tensors / size)
    rest = tensors - whole * size
    return max(1.0, float((whole * size * size + rest * rest).sum() / total))
