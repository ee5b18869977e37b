"""A recorded grid as a world: windows are what was measured once, at the recorded config nearest to the chosen."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.job import Job
from autobyte.scheduler.policies import make_plan
from autobyte.simulator import kernel
from autobyte.simulator.calibrate import EngineCosts
from autobyte.simulator.world import SWITCH_S
from autobyte.trace import Measurement, RuntimeStats


@dataclass(frozen=True)
class Recorded:
    """Step times of a config, as they were measured (s): the median, the least and the largest."""

    step_s: float
    low_s: float
    high_s: float


class GridReplay:
    """Trains in virtual time at recorded speeds.

    A step time is drawn between the least and the largest that were recorded, half of them below the median. A
    recording holds no statistics of links and layers: those of a window come from the simulator, calibrated on the
    testbed that recorded it, under the nearest config.

    >>> replay = GridReplay(job, recording, costs=calibration.of(job))
    >>> replay.measure(Config(1 << 20, 1 << 22), iterations=10).mean_s

    Args:
        job: what was recorded, on links of payload rates.
        recording: of a grid.
        costs: of the engine.
        seed: of the steps that are drawn.
        switch_s: what a change of config costs (s), added to the first step under the new one.

    Raises:
        InputError: nothing was recorded.
    """

    def __init__(
        self,
        job: Job,
        recording: Mapping[Config, Recorded],
        *,
        costs: EngineCosts,
        seed: int = 0,
        switch_s: float = SWITCH_S,
    ) -> None:
        if not recording:
            raise InputError("a replay needs a recording with at least one config")
        self.iteration = 0
        self._job = costs.price(job)
        self._effects = costs.effects
        self._recording = dict(recording)
        self._random = np.random.default_rng([13, seed])
        self._switch_s = switch_s
        self._config: Config | None = None
        self._stats: dict[Config, RuntimeStats] = {}

    def measure(self, config: Config, *, iterations: int, warmup: int = 0) -> Measurement:
        """Train for a window; the measurement names the config that was chosen."""
        point = nearest(config, self._recording)
        seen = self._recording[point]
        steps = np.interp(
            self._random.random(iterations), [0.0, 0.5, 1.0], [seen.low_s, seen.step_s, seen.high_s]
        ).tolist()
        if self._config not in (None, config):
            steps[0] += self._switch_s
        self._config = config
        first, self.iteration = self.iteration, self.iteration + iterations
        return Measurement(config, first, tuple(steps), warmup, self._statistics(point))

    def _statistics(self, point: Config) -> RuntimeStats:
        if point not in self._stats:
            self._stats[point] = kernel.simulate(make_plan(self._job, point), effects=self._effects).stats
        return self._stats[point]


def nearest(config: Config, recording: Mapping[Config, Recorded]) -> Config:
    """The recorded config with the closest knobs, in octaves of partition and of credit / partition; ties: the first.

    Knobs of the policy's own must be as recorded, as far as any are.
    """
    alike = [point for point in recording if point.knobs == config.knobs] or list(recording)

    def apart(point: Config) -> float:
        ratio = math.log2(point.credit_bytes / point.partition_bytes) - math.log2(
            config.credit_bytes / config.partition_bytes
        )
        return math.hypot(math.log2(point.partition_bytes / config.partition_bytes), ratio)

    return min(alike, key=apart)


def space_of(recording: Mapping[Config, Recorded], default: Config) -> Space:
    """The box that the recorded configs span, with a default of its own policy and knobs."""
    partitions = [config.partition_bytes for config in recording]
    ratios = [config.credit_bytes / config.partition_bytes for config in recording]
    return Space((min(partitions), max(partitions)), (min(ratios), max(ratios)), default)
