"""A Gaussian process over windows and configs: what a model of the job leaves unexplained, and how sure that is.

Reference: Rasmussen and Williams (2006), sec. 2.2 and 2.7; the regimes are ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

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
        """Of each part in `Apart`, shape [parts]."""
        parts = self.common, self.regime, self.drift, self.trend, self.block, self.flight, self.crowding[1]
        return np.array(parts) ** 2

    def scale(self, rows: Floats, values: Floats, noise: Floats) -> float:
        """What to multiply its doubt about configs by, 0.2 to 5, as values with independent noise have it."""
        beyond = values - self.crowding[0] * _crowd(rows)
        common, as_it_is = Processes.of(self.wider(0.0), self).covariance(among(rows, self.octaves))
        covariance = common + np.diag(noise**2) + np.exp(2 * SCALES)[:, None, None] * (as_it_is - common)
        likely = -0.5 * (misfit(covariance, beyond[:, None])[:, 0] + (SCALES / SPREAD) ** 2)
        share = np.exp(likely - likely.max())
        return math.exp(share @ SCALES / share.sum())

    def covariance(self, one: Floats, other: Floats) -> Floats:
        """Between rows, shape [len(one), len(other)]."""
        covariance: Floats = Processes.of(self).covariance(Apart(one, other, self.octaves))[0]
        return covariance

    def posterior(self, rows: Floats, values: Floats, noise: Floats, *, at: Floats) -> tuple[Floats, Floats]:
        """Mean and variance at other rows, after values with noise were seen; shape [len(at)] each.

        Args:
            rows, values: seen.
            noise: deviations, independent, shape [rows].
            at: the other rows.
        """
        apart = Apart(at, rows, self.octaves), among(rows, self.octaves)
        mean, variance = Processes.of(self).posterior(rows, values, np.diag(noise**2), at=at, apart=apart)
        return mean[0], variance[0]

    def together(self, rows: Floats, values: Floats, noise: Floats, *, at: Floats) -> tuple[Floats, Floats]:
        """Mean at other rows, and the covariance between them, shape [len(at), len(at)]; see `posterior`."""
        apart = Apart(at, rows, self.octaves), among(rows, self.octaves), Apart(at, at, self.octaves)
        mean, covariance = Processes.of(self).together(rows, values, np.diag(noise**2), at=at, apart=apart)
        return mean[0], covariance[0]


class Apart:
    """What covariances between rows are made of, whatever the deviations.

    Args:
        one, other: rows.
        octaves: as in `Process`.

    Attributes:
        parts: as `Process` has them in turn, for a deviation of 1; shape [7, len(one), len(other)].
    """

    def __init__(self, one: Floats, other: Floats, octaves: float) -> None:
        self.parts = np.empty((7, len(one), len(other)))
        common, same, lately, fading, block, flight, crowd = self.parts
        common[:] = 1.0
        when = one[:1] if (one[:, :2] == one[:1, :2]).all() else one  # candidates are all of the next window
        together = when[:, None, 0] == other[None, :, 0]
        windows = np.abs(when[:, None, 1] - other[None, :, 1])
        same[:], lately[:], fading[:] = together, together * np.exp(windows / -4), together * _near(windows / TREND)
        block[:] = _near((one[:, None, 2] - other[None, :, 2]) / octaves)
        flight[:] = _near((one[:, None, 3] - other[None, :, 3]) / octaves)
        np.multiply.outer(_crowd(one), _crowd(other), out=crowd)


def among(rows: Floats, octaves: float) -> Apart:
    """Rows and themselves: several ask for the same windows."""
    return _among(rows.tobytes(), octaves)


@lru_cache(maxsize=8)
def _among(rows: bytes, octaves: float) -> Apart:
    same = np.frombuffer(rows).reshape(-1, 4)
    return Apart(same, same, octaves)


@dataclass(frozen=True, eq=False)
class Processes:
    """Several over the same rows, worked out at once; shapes begin with [processes].

    Args:
        variances: of each part in `Apart`, shape [processes, parts].
        crowding: means, shape [processes].
    """

    variances: Floats
    crowding: Floats

    @classmethod
    def of(cls, *processes: Process) -> "Processes":
        """These."""
        means = np.array([process.crowding[0] for process in processes])
        return cls(np.array([process.variances for process in processes]), means)

    def some(self, which: Ints) -> "Processes":
        """Those of these indices."""
        return Processes(self.variances[which], self.crowding[which])

    def covariance(self, apart: Apart) -> Floats:
        """Between rows, shape [processes, len(one), len(other)]."""
        covariance: Floats = np.tensordot(self.variances, apart.parts, axes=1)
        return covariance

    def expected(self, rows: Floats) -> Floats:
        """Mean at rows before anything was seen, shape [processes, len(rows)]."""
        return np.outer(self.crowding, _crowd(rows))

    def posterior(
        self, rows: Floats, values: Floats, noise: Floats, *, at: Floats, apart: Sequence[Apart]
    ) -> tuple[Floats, Floats]:
        """Mean and variance at other rows, after values with noise were seen; shape [processes, len(at)] each.

        Args:
            rows, values: seen.
            noise: its covariance, shape [rows, rows].
            at: the other rows.
            apart: of them and those seen, and of those seen.
        """
        mean, across, solved = self._solve(rows, values, noise, at=at, apart=apart)
        alone = self.variances @ np.vstack([np.ones((6, len(at))), _crowd(at) ** 2])
        return mean, np.maximum(alone - np.einsum("pan,pna->pa", across, solved), 0.0)

    def together(
        self, rows: Floats, values: Floats, noise: Floats, *, at: Floats, apart: Sequence[Apart]
    ) -> tuple[Floats, Floats]:
        """Mean at other rows, and the covariance between them, shape [processes, len(at), len(at)].

        Args:
            rows, values, noise, at: as of `posterior`.
            apart: as there, and of the other rows.
        """
        mean, across, solved = self._solve(rows, values, noise, at=at, apart=apart)
        return mean, self.covariance(apart[2]) - across @ solved

    def _solve(
        self, rows: Floats, values: Floats, noise: Floats, *, at: Floats, apart: Sequence[Apart]
    ) -> tuple[Floats, Floats, Floats]:
        """Mean at other rows, what they have in common with those seen, and that solved for."""
        across, seen = self.covariance(apart[0]), self.covariance(apart[1]) + noise
        beyond = values - self.expected(rows)
        solved = np.linalg.solve(seen, np.concatenate([beyond[..., None], across.swapaxes(1, 2)], axis=2))
        return self.expected(at) + (across @ solved[..., :1])[..., 0], across, solved[..., 1:]


def misfit(covariance: Floats, beyond: Floats) -> Floats:
    """-2 times the logarithm of how likely values are, but for a constant.

    Args:
        covariance: of the values, shape [..., values, values].
        beyond: by how much they are not what is expected; some of it in each column, shape [..., values, columns].

    Returns:
        shape [..., columns].
    """
    squares = (beyond * np.linalg.solve(covariance, beyond)).sum(axis=-2)
    return np.asarray(squares + np.linalg.slogdet(covariance)[1][..., None], float)


def _near(apart: Floats) -> Floats:
    near: Floats = np.exp(np.square(apart) / -2)
    return near


def _crowd(rows: Floats) -> Floats:
    """What crowding grows with: nothing while little is in flight, then every octave; shape [len(rows)]."""
    crowd: Floats = np.log1p(np.exp2(rows[:, 3] - KNEE))
    return crowd
