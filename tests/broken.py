"""Worlds whose statistics tuners cannot use."""

import math
from dataclasses import replace

from autobyte.config import Config
from autobyte.job import Job
from autobyte.simulator.world import World
from autobyte.trace import Measurement


class Broken:
    """Measurements whose statistics are of no use."""

    def __init__(self, job: Job, how: str) -> None:
        self._world, self._how = World(job), how

    def measure(self, config: Config, *, iterations: int, warmup: int) -> Measurement:
        seen = self._world.measure(config, iterations=iterations, warmup=warmup)
        stats = seen.stats
        assert stats is not None
        if self._how == "missing":
            return replace(seen, stats=None)
        if self._how == "other layers":
            return replace(
                seen, stats=replace(stats, forward_s=stats.forward_s[:, :-1], backward_s=stats.backward_s[:, :-1])
            )
        return replace(seen, stats=replace(stats, up_bytes_per_s=stats.up_bytes_per_s * math.nan))
