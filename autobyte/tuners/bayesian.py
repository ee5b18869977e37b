"""Bayesian optimisation with a Gaussian process: as ByteScheduler's released code sets it, and repaired."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from autobyte.config import Config, Space
from autobyte.errors import needs
from autobyte.job import Floats, Model
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner

with needs("tune", what="the Bayesian search"):
    import skopt
    from skopt.space import Real
    from skopt.space import Space as SearchSpace

TRIALS = 15  # ByteScheduler's search.py stops for good after so many


class Bayesian(Tuner):
    """Repaired: both knobs together on the log scale, the logarithm of the step time, the default as trial 0.

    Expected improvement is in log units, so the same search follows whatever the unit of time, or the speed of the
    job. Rests after 15 trials, as the published one does; where it must search again is for others to say.

    Reference: ByteScheduler (SOSP'19), sec. 5; Snoek et al. (NIPS'12).
    """

    one_shot = True

    def __init__(self, space: Space, *, model: Model, seed: int = 0, budget: int | None = None) -> None:
        self._space = space
        self._search = _optimizer([(0.0, 1.0)] * len(space.names), initial=5, margin=0.005, seed=seed)
        self._left = TRIALS

    def ask(self) -> Config | None:
        """Where the expected improvement is largest; at first, at random."""
        if self._left <= 0:
            return None
        with _quiet():
            return self._space.at([min(max(u, 0.0), 1.0) for u in self._search.ask()])

    def tell(self, measurement: Measurement) -> None:
        """Fit the process to it; after the last trial nobody will ask."""
        self._left -= 1
        if self._left >= 0:
            place, value = self._space.locate(measurement.config), math.log(_positive(measurement.mean_s))
            with _quiet():
                self._search.tell(list(place), value, fit=self._left > 0)


class BayesianPublished(Tuner):
    """As released: 15 trials, 10 of them random; expected improvement with a margin of 0.1 s; a linear scale.

    The first measurement is dropped. A margin of 0.1 s is half of a step of 0.2 s, so that the 5 trials that are not
    random hardly ever search where it is fast. The ranges are the released ones for all-reduce, the only case in
    which the partition is tuned at all: 2 to 32 and 4 to 64 million fp32 parameters. One defect is not reproduced:
    the released tuner assigns the partition to a field that nobody reads, and so never changes it.

    Reference: ByteScheduler's released code (bytescheduler/common/tuner.py, search.py, bytecore.py).
    """

    one_shot = True
    tunes_knobs = False

    PARTITION_BYTES = (8_000_000, 128_000_000)
    CREDIT_BYTES = (16_000_000, 256_000_000)

    def __init__(self, space: Space, *, model: Model, seed: int = 0, budget: int | None = None) -> None:
        self._space = space
        low, high = space.partition_bytes
        credits_of_space = (low * space.credit_ratio[0], high * space.credit_ratio[1])
        box = [_within(self.PARTITION_BYTES, (low, high)), _within(self.CREDIT_BYTES, credits_of_space)]
        self._search = _optimizer(box, initial=10, margin=0.1, seed=seed)
        self._windows = 0

    def ask(self) -> Config | None:
        """A point of the linear box; a window smaller than a partition, or too large for the space, is cut to it."""
        if self._windows > TRIALS:
            return None
        with _quiet():
            partition, credit = (max(1, round(value)) for value in self._search.ask())
        least, most = (round(partition * ratio) for ratio in self._space.credit_ratio)
        default = self._space.default
        return Config(partition, min(max(credit, least, 1), max(most, 1)), default.policy, default.knobs)

    def tell(self, measurement: Measurement) -> None:
        """Fit the process to it, in seconds; after the last trial nobody will ask."""
        self._windows += 1
        if 1 < self._windows <= TRIALS + 1:
            config = measurement.config
            place = [
                min(max(float(value), dimension.low), dimension.high)
                for value, dimension in zip(
                    (config.partition_bytes, config.credit_bytes), self._search.space.dimensions, strict=True
                )
            ]
            with _quiet():
                self._search.tell(place, measurement.mean_s, fit=self._windows <= TRIALS)


def _optimizer(box: list[tuple[float, float]], *, initial: int, margin: float, seed: int) -> skopt.Optimizer:
    """Set up scikit-optimize: a Matérn process with noise, improvement by a margin in the unit of the target."""
    search = skopt.Optimizer(
        [Real(low, high) for low, high in box],
        "GP",
        n_initial_points=initial,
        acq_func="EI",
        acq_func_kwargs={"xi": margin},
        acq_optimizer="sampling",
        acq_optimizer_kwargs={"n_jobs": 1},
        random_state=seed,
        n_jobs=1,
    )
    search.space = _Box(search.space.dimensions)
    return search


class _Box(SearchSpace):  # type: ignore[misc]  # scikit-optimize has no types
    """Real numbers, column by column: of ten thousand candidates a decision it would make lists, number by number."""

    def rvs(self, n_samples: int = 1, random_state: np.random.RandomState | None = None) -> Any:
        """Draw the same points; shape [points, dimensions]."""
        if n_samples == 1:  # a point to ask for, not candidates
            return super().rvs(n_samples, random_state)
        return np.column_stack([each.rvs(n_samples, random_state) for each in self.dimensions])

    def transform(self, points: npt.ArrayLike) -> Floats:
        """Points as the process sees them; shape [points, dimensions]."""
        columns = np.asarray(points, dtype=float).T
        return np.column_stack(
            [each.transform(column) for each, column in zip(self.dimensions, columns, strict=True)]
        )


def _within(wanted: tuple[float, float], allowed: tuple[float, float]) -> tuple[float, float]:
    """The part of a range that is allowed; all that is allowed where they do not meet. Never a single point."""
    low, high = max(wanted[0], allowed[0]), min(wanted[1], allowed[1])
    low, high = (low, high) if low < high else allowed
    return float(low), float(max(high, low * (1 + 1e-9)))


def _positive(seconds: float) -> float:
    return max(seconds, 1e-9)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of a search that is over: a point asked twice, a length scale at its bound."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
