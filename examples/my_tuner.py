"""A tuner of one's own: doubles or halves the partition for as long as that helps.

autobyte compare --model alexnet --plugin examples/my_tuner.py --tuners default,random,doubling
"""

from dataclasses import replace

from autobyte import Config, Measurement, Model, Space, Tuner


@Tuner.register("doubling")
class Doubling(Tuner):
    """Walks along the partition axis, and turns round where it gets slower."""

    def __init__(self, space: Space, *, model: Model, seed: int = 0, budget: int | None = None) -> None:
        self._space, self._here = space, space.default
        self._factor, self._turns, self._last_s = 2.0, 0, float("inf")

    def tell(self, measurement: Measurement) -> None:
        self._here = measurement.config
        if measurement.mean_s > self._last_s:
            self._factor, self._turns = 1 / self._factor, self._turns + 1
        self._last_s = measurement.mean_s

    def ask(self) -> Config | None:
        size = round(self._here.partition_bytes * self._factor)
        config = replace(self._here, partition_bytes=size, credit_bytes=4 * size)
        return config if self._turns < 2 and config in self._space else None
