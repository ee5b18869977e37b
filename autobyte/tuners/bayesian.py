"""Bayesian optimisation with a Gaussian process: as ByteScheduler's released code sets it, and repaired."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky
from scipy.spatial.distance import pdist, squareform

from autobyte.config import Config, Space
from autobyte.errors import needs
from autobyte.job import Floats, Model
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner

with needs("tune", what="the Bayesian search"):
    import skopt
    from skopt.learning import GaussianProcessRegressor
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
    search.base_estimator_ = Process(**search.base_estimator_.get_params(deep=False))
    return search


class Process(GaussianProcessRegressor):  # type: ignore[misc]  # scikit-optimize has no types
    """Its likelihood written out: scikit-learn's, the same to the bit, mostly looks parameters up by their names.

    The kernel is amplitude² · Matérn 5/2 + noise, a length scale for each of several knobs.
    """

    def log_marginal_likelihood(
        self, theta: Floats | None = None, eval_gradient: bool = False, clone_kernel: bool = True
    ) -> Any:
        """Of the logarithms of the kernel's parameters, and its gradient."""
        if theta is None or not eval_gradient or len(theta) < 4:
            return super().log_marginal_likelihood(theta, eval_gradient, clone_kernel)
        points, values = self.X_train_, self.y_train_[:, None]
        amplitude, scale, noise = np.exp(theta[0]), np.exp(theta[1:-1]), np.exp(theta[-1])
        far, eye = pdist(points / scale) * math.sqrt(5), np.eye(len(points))
        matern = squareform((1.0 + far + far**2 / 3.0) * np.exp(-far)) + eye
        apart = (points[:, None] - points) ** 2 / scale**2
        root = np.sqrt(5 * apart.sum(-1))[..., None]
        slope = 5.0 / 3.0 * apart * (root + 1) * np.exp(-root)
        gradient = np.dstack((amplitude * matern, slope * amplitude, noise * eye))
        try:
            lower = cholesky(amplitude * matern + noise * eye + self.alpha * eye, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return -np.inf, np.zeros_like(theta)
        solved = cho_solve((lower, True), values, check_finite=False)
        inverse = cho_solve((lower, True), eye, check_finite=False)
        likelihood = -0.5 * np.einsum("ik,ik->k", values, solved) - np.log(np.diag(lower)).sum()
        likelihood -= len(points) / 2 * np.log(2 * np.pi)
        inner = np.einsum("ik,jk->ijk", solved, solved) - inverse[..., None]
        return likelihood.sum(), 0.5 * np.einsum("ijl,jik->kl", inner, gradient).sum(axis=-1)


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
