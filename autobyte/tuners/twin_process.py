"""A Gaussian process over windows and configs: what a model of the job leaves unexplained, and how sure that is.

Reference: Rasmussen and Williams (2006), sec. 2.2 and 2.7; the regimes are ours.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from autobyte.job import Floats

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

    def scale(self, rows: Floats, values: Floats, noise: Floats) -> float:
        """What to multiply its doubt about configs by, 0.2 to 5, as values with independent noise have it."""
        apart, beyond = Apart(rows, rows, self.octaves), values - self.expected(rows)
        common, as_it_is = self.wider(0.0).covariance(rows, rows, apart), self.covariance(rows, rows, apart)
        covariance = common + np.diag(noise**2) + np.exp(2 * SCALES)[:, None, None] * (as_it_is - common)
        misfit = np.linalg.solve(covariance, beyond[:, None])[..., 0] @ beyond
        likely = -0.5 * (misfit + np.linalg.slogdet(covariance)[1] + (SCALES / SPREAD) ** 2)
        share = np.exp(likely - likely.max())
        return math.exp(share @ SCALES / share.sum())

    def covariance(self, one: Floats, other: Floats, apart: "Apart | None" = None) -> Floats:
        """Between rows, shape [len(one), len(other)]; `apart` spares what other processes have worked out."""
        apart = apart or Apart(one, other, self.octaves)
        covariance: Floats = self.common**2 + apart.same * (self.regime**2 + self.drift**2 * apart.lately)
        if self.trend:
            covariance += apart.same * self.trend**2 * apart.fading
        covariance += apart.near @ np.array([self.block**2, self.flight**2])
        if self.crowding[1]:
            covariance += self.crowding[1] ** 2 * apart.crowd
        return covariance

    def expected(self, rows: Floats) -> Floats:
        """Mean at rows before anything was seen, shape [len(rows)]."""
        mean: Floats = self.crowding[0] * _crowd(rows)
        return mean

    def posterior(
        self, rows: Floats, values: Floats, noise: Floats, *, at: Floats, apart: "Pair | None" = None
    ) -> tuple[Floats, Floats]:
        """Mean and variance at other rows, after values with noise were seen; shape [len(at)] each.

        Args:
            rows, values: seen.
            noise: deviations where it is independent, shape [rows], or its covariance, shape [rows, rows].
            at: the other rows.
            apart: of them and those seen, and of those seen.
        """
        mean, across, solved = self._solve(rows, values, noise, at=at, apart=apart)
        alone = self.common**2 + self.regime**2 + self.drift**2 + self.trend**2 + self.local**2
        return mean, np.maximum(alone + (self.crowding[1] * _crowd(at)) ** 2 - (across * solved.T).sum(axis=1), 0.0)

    def together(
        self, rows: Floats, values: Floats, noise: Floats, *, at: Floats, apart: "Triple | None" = None
    ) -> tuple[Floats, Floats]:
        """Mean at other rows, shape [len(at)], and the covariance between them, shape [len(at), len(at)]."""
        mean, across, solved = self._solve(rows, values, noise, at=at, apart=apart and apart[:2])
        return mean, self.covariance(at, at, apart and apart[2]) - across @ solved

    def _solve(
        self, rows: Floats, values: Floats, noise: Floats, *, at: Floats, apart: "Pair | None"
    ) -> tuple[Floats, Floats, Floats]:
        """Mean at other rows, what they have in common with those seen, and that solved for."""
        across = self.covariance(at, rows, apart and apart[0])
        seen = self.covariance(rows, rows, apart and apart[1]) + (np.diag(noise**2) if noise.ndim == 1 else noise)
        solved = np.asarray(np.linalg.solve(seen, np.column_stack([values - self.expected(rows), across.T])), float)
        return self.expected(at) + across @ solved[:, 0], across, solved[:, 1:]


class Apart:
    """What covariances between rows are made of, whatever the deviations; shape [len(one), len(other)] each.

    Args:
        one, other: rows.
        octaves: as in `Process`.
    """

    def __init__(self, one: Floats, other: Floats, octaves: float) -> None:
        self.same = one[:, None, 0] == other[None, :, 0]
        windows = np.abs(one[:, None, 1] - other[None, :, 1])
        self.lately, self.fading = np.exp(-windows / 4), np.exp(-((windows / TREND) ** 2) / 2)
        self.near: Floats = np.exp(-(((one[:, None, 2:] - other[None, :, 2:]) / octaves) ** 2) / 2)
        self.crowd = np.outer(_crowd(one), _crowd(other))


Pair = tuple[Apart, Apart]  # of rows asked about and seen, and of those seen
Triple = tuple[Apart, Apart, Apart]  # and of those asked about


def _crowd(rows: Floats) -> Floats:
    """What crowding grows with: nothing while little is in flight, then every octave; shape [len(rows)]."""
    crowd: Floats = np.log1p(np.exp2(rows[:, 3] - KNEE))
    return crowd
