"""A Gaussian process over windows and configs: what a model of the job leaves unexplained, and how sure that is.

Reference: Rasmussen and Williams (2006), sec. 2.2 and 2.7; the regimes are ours.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autobyte.compiling import njit
from autobyte.job import Floats, Ints

TREND = 12.0  # windows for which what fades, fades on as it did
SCALES = np.linspace(math.log(0.2), math.log(5), 9)  # logarithms of how many times the doubt about configs may be
SPREAD = 0.5  # of them, before anything was seen
KNEE = 26.0  # log2 of the bytes in flight at which links that crowd begin to, about


@dataclass(frozen=True)
class Process:
    """Standard deviations of independent parts that add up, and what is expected before anything was seen.

    A row is (regime, time in windows of 10 iterations, log2 of the block, log2 of the window of bytes in flight): a
    *regime* is a time in which nothing but the config changes.

    Args:
        common: an offset that all rows share.
        regime: an offset that rows of one regime share.
        drift: what wanders within a regime, forgotten after a few windows.
        trend: a smooth function of time within a regime: what fades, fades on.
        block: a smooth function of the block, whatever the regime.
        flight: a smooth function of the window in flight, whatever the regime.
        octaves: how far apart configs must be for these to differ.
        crowding: mean and deviation of the factor before log(1 + window in flight / 64 MiB): what links that crowd
            need longer.
    """

    common: float = 0.0
    regime: float = 0.0
    drift: float = 0.0
    trend: float = 0.0
    block: float = 0.0
    flight: float = 0.0
    octaves: float = 4.0
    crowding: tuple[float, float] = (0.0, 0.0)

    @property
    def local(self) -> float:
        """Standard deviation of all that depends on the config."""
        return math.hypot(self.block, self.flight)

    def wider(self, factor: float) -> "Process":
        """The same, with so many times the doubt about configs."""
        return replace(self, block=factor * self.block, flight=factor * self.flight)

    @property
    def variances(self) -> Floats:
        """Of each part, shape [parts]."""
        parts = self.common, self.regime, self.drift, self.trend, self.block, self.flight, self.crowding[1]
        return np.array(parts) ** 2

    def scale(self, rows: Floats, values: Floats, noise: Floats) -> float:
        """What to multiply its doubt about configs by, 0.2 to 5, as values with independent noise have it."""
        beyond = values - self.crowding[0] * _crowd(rows)
        common, as_it_is = Processes.of([self.wider(0.0), self]).covariance(rows, rows)
        covariance = common + np.diag(noise**2) + np.exp(2 * SCALES)[:, None, None] * (as_it_is - common)
        miss = misfit(covariance, np.tile(beyond[:, None], (len(SCALES), 1, 1)))[:, 0]
        likely = -0.5 * (miss + (SCALES / SPREAD) ** 2)
        share = np.exp(likely - likely.max())
        return math.exp(share @ SCALES / share.sum())

    def posterior(self, rows: Floats, values: Floats, noise: Floats, *, at: Floats) -> "Posterior":
        """What is believed of other rows, after values with noise were seen.

        Args:
            rows, values: seen.
            noise: deviations, independent, shape [rows].
            at: the other rows.
        """
        return Processes.of([self]).posterior(rows, values, np.diag(noise**2), at=at, likely=np.ones(1))


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is believed of rows.

    Args:
        mean, variance: of each, shape [rows].
        together: covariance between some of them, given by their indices.
    """

    mean: Floats
    variance: Floats
    together: Callable[[Ints], Floats]

    def of(self, which: Ints, rows: int) -> "Posterior":
        """The same of so many rows, of which these are some; what it says of the others means nothing."""
        mean, variance = np.zeros((2, rows))
        mean[which], variance[which] = self.mean, self.variance
        place = np.zeros(rows, dtype=np.int64)
        place[which] = np.arange(len(which))
        return Posterior(mean, variance, lambda some: self.together(place[some]))


@dataclass(frozen=True, eq=False)
class Processes:
    """Several over the same rows, worked out at once.

    Args:
        variances: of each part, as `_covariance` has them; shape [processes, parts].
        crowding: means, shape [processes].
        octaves: as in `Process`, of all.
    """

    variances: Floats
    crowding: Floats
    octaves: float

    @classmethod
    def of(cls, processes: Sequence[Process]) -> "Processes":
        """These; all of the same octaves."""
        assert len({process.octaves for process in processes}) == 1
        means = np.array([process.crowding[0] for process in processes])
        return cls(np.array([process.variances for process in processes]), means, processes[0].octaves)

    def some(self, which: Ints) -> "Processes":
        """Those of these indices."""
        return Processes(self.variances[which], self.crowding[which], self.octaves)

    def covariance(self, one: Floats, other: Floats) -> Floats:
        """Between rows, shape [processes, len(one), len(other)]."""
        return _covariance(self.variances, self.octaves, one, other)

    def expected(self, rows: Floats) -> Floats:
        """Mean at rows before anything was seen, shape [processes, len(rows)]."""
        return np.outer(self.crowding, _crowd(rows))

    def posterior(self, rows: Floats, values: Floats, noise: Floats, *, at: Floats, likely: Floats) -> Posterior:
        """What is believed of other rows, after values with noise were seen, if one of the processes made them.

        Args:
            rows, values: seen.
            noise: its covariance, shape [rows, rows].
            at: the other rows.
            likely: how likely it was each of the processes, shape [processes].
        """
        across = self.covariance(at, rows).swapaxes(1, 2)
        beyond = values - self.expected(rows)
        columns = np.ascontiguousarray(np.concatenate([beyond[..., None], across], axis=2))
        white, _ = _whitened(self.covariance(rows, rows) + noise, columns)
        values_white, known = white[..., :1], white[..., 1:]
        means = self.expected(at) + (values_white * known).sum(axis=1)
        mean: Floats = likely @ means
        off = means - mean
        alone = self.variances @ np.vstack([np.ones((6, len(at))), _crowd(at) ** 2])
        variance: Floats = likely @ (np.maximum(alone - (known**2).sum(axis=1), 0.0) + off**2)

        def together(some: Ints) -> Floats:
            within = self.covariance(at[some], at[some]) - known[..., some].swapaxes(1, 2) @ known[..., some]
            between: Floats = (likely[:, None] * off[:, some]).T @ off[:, some]
            return between + np.tensordot(likely, within, axes=1)

        return Posterior(mean, variance, together)


def misfit(covariance: Floats, beyond: Floats) -> Floats:
    """-2 times the logarithm of how likely values are, but for a constant.

    Args:
        covariance: of the values, positive definite, shape [processes, values, values].
        beyond: by how much they are not what is expected; some of it in each column, shape [processes, values,
            columns].

    Returns:
        shape [processes, columns].
    """
    white, volume = _whitened(covariance, np.ascontiguousarray(beyond))
    squares: Floats = (white**2).sum(axis=1)
    return squares + volume[:, None]


@njit(cache=True, nogil=True, error_model="numpy")
def _covariance(variances: Floats, octaves: float, one: Floats, other: Floats) -> Floats:
    """Between rows, shape [processes, len(one), len(other)]; rows in turn that are alike in part share that part."""
    processes, ones, others = len(variances), len(one), len(other)
    covariance = np.empty((processes, ones, others))
    when, block, flight = np.empty((processes, others)), np.empty(others), np.empty(others)
    one_crowds, other_crowds = _crowd(one), _crowd(other)
    for i in range(ones):
        if i == 0 or one[i, 0] != one[i - 1, 0] or one[i, 1] != one[i - 1, 1]:
            for j in range(others):
                for k in range(processes):
                    when[k, j] = variances[k, 0]
                if one[i, 0] == other[j, 0]:
                    windows = abs(one[i, 1] - other[j, 1])
                    lately, fading = math.exp(windows / -4), _near(windows / TREND)
                    for k in range(processes):
                        when[k, j] += variances[k, 1] + variances[k, 2] * lately + variances[k, 3] * fading
        if i == 0 or one[i, 2] != one[i - 1, 2]:
            for j in range(others):
                block[j] = _near((one[i, 2] - other[j, 2]) / octaves)
        for j in range(others):
            flight[j] = _near((one[i, 3] - other[j, 3]) / octaves)
        for k in range(processes):
            of_block, of_flight, of_crowd = variances[k, 4], variances[k, 5], variances[k, 6] * one_crowds[i]
            for j in range(others):
                config = of_block * block[j] + of_flight * flight[j] + of_crowd * other_crowds[j]
                covariance[k, i, j] = when[k, j] + config
    return covariance


@njit(cache=True, nogil=True, error_model="numpy")
def _whitened(covariance: Floats, columns: Floats) -> tuple[Floats, Floats]:
    """Columns divided by the Cholesky root of each covariance, and the logarithm of its determinant.

    In LAPACK a root of 32 rows costs more calls than arithmetic.

    Args:
        covariance: positive definite, shape [processes, rows, rows].
        columns: shape [processes, rows, columns].
    """
    processes, rows, count = columns.shape
    white, volume, root = columns.copy(), np.zeros(processes), np.empty((rows, rows))
    for k in range(processes):
        for i in range(rows):
            for j in range(i + 1):
                left = covariance[k, i, j]
                for m in range(j):
                    left -= root[i, m] * root[j, m]
                root[i, j] = math.sqrt(left) if i == j else left / root[j, j]
            for m in range(i):
                for c in range(count):
                    white[k, i, c] -= root[i, m] * white[k, m, c]
            for c in range(count):
                white[k, i, c] /= root[i, i]
            volume[k] += 2 * math.log(root[i, i])
    return white, volume


@njit(error_model="numpy")
def _near(apart: float) -> float:
    return math.exp(apart * apart / -2)


@njit(cache=True, nogil=True, error_model="numpy")
def _crowd(rows: Floats) -> Floats:
    """What crowding grows with: nothing while little is in flight, then every octave; shape [len(rows)]."""
    crowd = np.empty(len(rows))
    for i in range(len(rows)):
        crowd[i] = math.log1p(2.0 ** (rows[i, 3] - KNEE))
    return crowd
