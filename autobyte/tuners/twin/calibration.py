"""What windows tell of a job's links: rates, what a block costs, what config changes that, and when all is new."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from autobyte.config import Config
from autobyte.job import Floats
from autobyte.trace import Measurement
from autobyte.tuners.base import WINDOW
from autobyte.tuners.twin.explained import StepS, explained
from autobyte.tuners.twin.noise import Noise
from autobyte.tuners.twin.process import Posterior, Process, Processes, misfit
from autobyte.tuners.twin.windows import (
    BREAK,
    LEAST,
    JobState,
    JobWindow,
    Load,
    apart,
    evidence,
    light_of,
    parts_of,
    place,
)

KEEP, ALIKE = 32, 3  # windows that are remembered; of them under one config in one regime
OVERHEADS = np.exp(np.linspace(math.log(0.1), math.log(10), 41))  # what a block may cost, nominal being 1
OVERHEAD_SPREAD = 0.8  # of its logarithm, before anything is known
RESTS = 0.03  # by how much, relatively, links that rest may drift


def _links(crowding: tuple[float, float]) -> list[Process]:
    """Of log(seconds per byte): links that rest or fade; that mind the block, or bytes in flight; that crowd."""
    return [
        Process(regime=3.0, drift=drift, trend=trend, block=block, flight=flight, crowding=crowds)
        for drift, trend in ((RESTS, 0.0), (0.05, 1.2))
        for block in (0.02, 0.15)
        for flight, crowds in ((0.02, (0.0, 0.0)), (0.2, (0.0, 0.0)), (0.2, crowding))
    ]


LINKS = _links((0.4, 0.2))
USUAL = Processes.of(LINKS)
OPEN = Processes.of(_links((0.6, 0.6)))  # by how much they crowd is open where sends tell of it
SAME_COMPUTE = 0.2  # of log(compute time): jitter over ten iterations, but no straggler
SURPRISE = 3.0  # standard deviations beyond which a link is not what it was


class JobCalibration:
    """Rates of links, costs of blocks and regimes, from windows under whatever configs.

    A link's time is blocks × their cost + bytes × seconds per byte. One window cannot tell the two apart: the cost is
    nominal at first, and then weighed by how well it makes windows under different configs agree. What still differs
    between configs (large windows that overflow buffers, small blocks that waste headers) is a smooth function of
    block and window size, learned over all regimes. What does not fit even so begins a new regime.

    Args:
        load: of a config, for so many workers and servers.
        step_s: time of a step under a config whose bytes take so many times as long (s), shape [stretches].
        unlikely: kinds of links that are less likely than this are left out; 0 takes all.
    """

    def __init__(
        self,
        load: Callable[[Config, int, int], Load],
        step_s: StepS,
        *,
        unlikely: float = 0.0,
    ) -> None:
        self._load = load
        self._step_s = step_s
        self._unlikely = unlikely
        self.windows: list[JobWindow] = []
        self.overhead = 1.0
        self._kinds = USUAL
        self._links = np.full(len(LINKS), 1 / len(LINKS))  # how likely links are like each
        self.noise = Noise()
        self._steps = 0  # so far, of all windows
        self.number = 0  # windows so far, but for those that were left out
        self._left_out = False  # the window before
        self._regimes = 1

    def note(self, measurement: Measurement) -> bool:
        """Take in a window that has statistics, and say whether something has changed but the config.

        A window in which the job changed shows the mean of two states, and is left out; the next one tells. Two in a
        row are not.
        """
        window, before = self._window(measurement), self.regime
        self._left_out = bool(self.windows) and not self._left_out and self.noise.torn(measurement)
        if self._left_out:
            return True
        off = apart(measurement.step_s[: measurement.warmup], measurement.mean_s)
        if self.windows and off > BREAK:  # statistics have the warm-up, too
            uncertain = off * measurement.warmup / len(measurement.step_s)
            window = explained(window, uncertain, self.of(window), self._step_s)
        window.row[0] = self._regime_of(window)
        self.number += 1
        self._remember(window)
        self._fit()
        return self.regime != before

    @property
    def regime(self) -> float:
        """The one that the latest window belongs to."""
        return float(self.windows[-1].row[0]) if self.windows else 0.0

    @property
    def ran(self) -> set[Config]:
        """What ran in it."""
        return {window.config for window in self.windows if window.row[0] == self.regime}

    def now(self) -> JobState:
        """Workers as in the latest windows of the regime, links as in the latest, cost of blocks apart."""
        latest = [window for window in self.windows if window.row[0] == self.regime][-4:]
        forward_s = np.mean([window.state.forward_s for window in latest], axis=0)
        backward_s = np.mean([window.state.backward_s for window in latest], axis=0)
        return self.of(self.windows[-1], forward_s=forward_s, backward_s=backward_s)

    def of(self, window: JobWindow, *, forward_s: Floats | None = None, backward_s: Floats | None = None) -> JobState:
        """What a window showed, cost of blocks apart. Blocks keep uplinks and rings busy, but no downlinks."""
        state = window.state
        busy_s = window.load.nbytes / state.up_bytes_per_s
        blocks_s = window.load.blocks_s * self.overhead
        up = window.load.nbytes / np.maximum(busy_s - blocks_s, LEAST * busy_s)
        return JobState(
            state.forward_s if forward_s is None else forward_s,
            state.backward_s if backward_s is None else backward_s,
            up,
            state.down_bytes_per_s if state.servers else up,
            state.servers,
            self.overhead,
        )

    def rows(self, configs: Sequence[Config]) -> Floats:
        """Rows of configs as they would be in the latest window, shape [configs, 4]."""
        state = self.windows[-1].state
        loads = [self._load(config, state.workers, state.servers) for config in configs]
        head = self.windows[-1].row[:2]
        return np.array([[*head, *place(config, load)] for config, load in zip(configs, loads, strict=True)])

    def stretch(self, rows: Floats) -> Posterior:
        """Return the logarithm of how much longer bytes take than in the latest window."""
        paces = self._paces(rows)
        return replace(paces, mean=paces.mean - self.windows[-1].pace(self.overhead))

    def _likely(self) -> tuple[Processes, Floats]:
        """What links may be like, and how likely that is."""
        if not self._unlikely:
            return self._kinds, self._links
        some = np.flatnonzero(self._links >= min(self._unlikely, self._links.max()))
        return self._kinds.some(some), self._links[some] / self._links[some].sum()

    def _paces(self, rows: Floats) -> Posterior:
        """Logarithm of seconds per byte at rows."""
        links, likely = self._likely()
        known, values, noise = evidence(self.windows, self.overhead)
        paces = links.posterior(known, values - values[-1], noise, at=rows, likely=likely)
        return replace(paces, mean=paces.mean + values[-1])

    def _fit(self) -> None:
        """Weigh the costs that a block may have, and how much configs may matter, by how well windows then agree."""
        rows, paces, noise = evidence(self.windows, OVERHEADS)
        parts = parts_of(self.windows, OVERHEADS).T
        paces = paces.T - math.log(self.windows[-1].busy_s / self.windows[-1].most_bytes)
        covariance = self._kinds.covariance(rows, rows) + noise
        beyond = paces - self._kinds.expected(rows)[:, None]  # [links, overheads, rows]
        weights = -0.5 * misfit(covariance, beyond.swapaxes(1, 2))
        weights -= 0.5 * (np.log(OVERHEADS) / OVERHEAD_SPREAD) ** 2
        possible = (parts > LEAST).all(axis=1)
        weights[:, ~possible & possible.any()] = -np.inf
        share = np.exp(weights - weights.max())
        share /= share.sum()
        self.overhead = float(np.exp(share.sum(axis=0) @ np.log(OVERHEADS)))
        self._links = share.sum(axis=1)

    def _window(self, measurement: Measurement) -> JobWindow:
        """As it was measured; of no regime yet."""
        stats = measurement.stats
        assert stats is not None
        load = self._load(measurement.config, len(stats.forward_s), stats.servers)
        rates = stats.up_bytes_per_s, stats.down_bytes_per_s
        state = JobState(stats.forward_s, stats.backward_s, *rates, stats.servers, 0.0)
        row = np.array([0.0, self._steps / WINDOW, *place(measurement.config, load)])
        self._steps += len(measurement.step_s)
        window = JobWindow(measurement.config, row, load, state, measurement.mean_s, self.noise.error(measurement))
        if not row[1]:  # later, other configs tell it themselves
            window.light = light_of(stats.sends, window)
            self._kinds = OPEN if window.light else USUAL
        return window

    def _regime_of(self, window: JobWindow) -> float:
        """The current regime if that explains a window, or else a new one."""
        if not self.windows:
            return 0.0
        others = [other for other in self.windows if other.row[0] == self.regime]
        if not self._workers_alike(window, others) or self._surprises(window):
            self._regimes += 1
        return float(self._regimes - 1)

    def _surprises(self, window: JobWindow) -> bool:
        """Whether a window's pace is not what the windows before say of it in their regime."""
        paces = self._paces(np.array([[self.regime, *window.row[1:]]]))
        beyond = float(window.pace(self.overhead) - paces.mean[0])
        return abs(beyond) >= SURPRISE * (math.sqrt(float(paces.variance[0])) + 0.03)

    @staticmethod
    def _workers_alike(window: JobWindow, others: list[JobWindow]) -> bool:
        """Whether as many workers take about as long as in other windows."""
        if others[-1].state.workers != window.state.workers or others[-1].state.servers != window.state.servers:
            return False
        before_s = float(np.mean([other.compute_s for other in others[-3:]]))
        return abs(math.log(max(window.compute_s, 1e-12) / max(before_s, 1e-12))) <= SAME_COMPUTE

    def _remember(self, window: JobWindow) -> None:
        """Keep it, and of windows like it the latest: a long rest must not drive out what a search has found."""
        like = [w for w in self.windows if w.config == window.config and w.row[0] == window.row[0]]
        drop = like[: max(0, len(like) - ALIKE + 1)]
        self.windows = [*[other for other in self.windows if other not in drop][-KEEP + 1 :], window]
