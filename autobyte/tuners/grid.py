"""Every config of the grid, one window each: AutoByte's ground truth, and its most expensive baseline."""

import math
from collections.abc import Sequence
from typing import TypeVar

from autobyte.config import Config, Space
from autobyte.job import Model
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner

T = TypeVar("T")


class Grid(Tuner):
    """Tries all 304 configs in order; under a budget an evenly spread part of them, then rests.

    Reference: AutoByte, sec. II-E (2) and III-B.
    """

    one_shot = True
    tunes_knobs = False

    def __init__(self, space: Space, *, model: Model, seed: int = 0, budget: int | None = None) -> None:
        grid = space.grid()
        partitions = list(dict.fromkeys(config.partition_bytes for config in grid))
        rows = [[config for config in grid if config.partition_bytes == size] for size in partitions]
        trials = len(grid) if budget is None else max(1, budget - 1)  # the first window goes to the default
        height, width = _fit(len(rows), len(rows[0]), trials)
        self._left = [config for row in _spread(rows, height) for config in _spread(row, width)]

    def ask(self) -> Config | None:
        """The next one."""
        return self._left.pop(0) if self._left else None

    def tell(self, measurement: Measurement) -> None:
        """Nothing to learn: the loop keeps the best."""


def _fit(height: int, width: int, trials: int) -> tuple[int, int]:
    """The shape of the part of a grid that has at most so many points and nearly the grid's own shape."""
    if trials >= height * width:
        return height, width
    rows = min(height, trials, max(1, round(math.sqrt(trials * height / width))))
    return rows, min(width, max(1, trials // rows))


def _spread(items: Sequence[T], count: int) -> list[T]:
    """So many of the items, evenly spread, both ends included; a single one is the middle."""
    if count == 1:
        return [items[len(items) // 2]]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]
