"""A Gaussian process over windows and configs: what a model of the job leaves unexplained, and how sure that is.

Reference: Rasmussen and Williams (2006), sec. 2.2 and 2.7; the regimes are ours.
"""

import math
from dataclasses import dataclass

import numpy as np

from autobyte.job import Floats


@dataclass(frozen=True)
class Process:
    """Standard deviations of independent parts that add up.

    A row is (regime, window, log2 of the block, log2 of the window of bytes in flight): a *regime* is a time in which
    nothing but the config changes.

    Args:
        common: an offset that all rows share.
        regime: an offset that rows of one regime share.
        drift: what wanders within a regime, forgotten after a few windows.
        block: a smooth function of the block, whatever the regime.
        flight: a smooth function of the window in flight, whatever the regime.
        octaves: how far apart configs must be for these to differ.
    """

    common: float = 0.0
    regime: float = 0.0
    drift: float = 0.0
    block: float = 0.0
    flight: float = 0.0
    octaves: float = 4.0

    @property
    def local(self) -> float:
        """Standard deviation of all that depends on the config."""
        return math.hypot(self.block, self.flight)

    def covariance(self, one: Floats, other: Floats) -> Floats:
        """Between rows, shape [len(one), len(other)]."""
        same = one[:, None, 0] == other[None, :, 0]
        apart = np.abs(one[:, None, 1] - other[None, :, 1])
        square = ((one[:, None, 2:] - other[None, :, 2:]) / self.octaves) ** 2
        covariance: Floats = (
            self.common**2
            + same * (self.regime**2 + self.drift**2 * np.exp(-apart / 4))
            + np.exp(-square / 2) @ np.array([self.block**2, self.flight**2])
        )
        return covariance

    def posterior(self, rows: Floats, values: Floats, noise: Floats, *, at: Floats) -> tuple[Floats, Floats]:
        """Mean and variance at other rows, after values with independent noise were seen; shape [len(at)] each."""
        seen = self.covariance(rows, rows) + np.diag(noise**2)
        across = self.covariance(at, rows)
        solved = np.linalg.solve(seen, np.column_stack([values, across.T]))
        alone = self.common**2 + self.regime**2 + self.drift**2 + self.local**2
        return across @ solved[:, 0], np.maximum(alone - (across * solved[:, 1:].T).sum(axis=1), 0.0)
