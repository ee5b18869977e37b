"""What windows tell of a job's links: rates, what a block costs, what config changes that, and when all is new."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autobyte.config import Config
from autobyte.job import Floats
from autobyte.trace import Measurement
from autobyte.tuners.base import WINDOW
from autobyte.tuners.twin.noise import Noise
from autobyte.tuners.twin.process import Posterior, Process, Processes, misfit
from autobyte.tuners.twin.torn import ENOUGH, StepS, end_of, explained, rest_of
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
RESTING = np.array([process.drift <= RESTS for process in LINKS])
SAME_LINK = 0.12  # of log(seconds per byte), under the same config
SAME_COMPUTE = 0.2  # of log(compute time): jitter over ten iterations, but no straggler
DOUBT = 0.15  # of log(seconds per byte), from what was foretold: links that fade do less in a window
SURPRISE = 3.0  # standard deviations beyond which a link is not what it was
JOINS = 0.5  # of log(seconds per byte), under two configs


class JobCalibration:
    """Rates of links, costs of blocks and regimes, from windows under whatever configs.

    A link's time is blocks × their cost + bytes × seconds per byte. One window cannot tell the two apart: the cost is
    nominal at first, and then weighed by how well it makes windows under different configs agree. What still differs
    between configs (large windows that overflow buffers, small blocks that waste headers) is a smooth function of
    block and window size, learned over all regimes; what does not fit even so is a new regime, or an old one again.

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
        self._unlikely = unlikely
        self._step_s = step_s
        self.windows: list[JobWindow] = []
        self.overhead = 1.0
        self._kinds = USUAL
        self._links = np.full(len(LINKS), 1 / len(LINKS))  # how likely links are like each
        self.noise = Noise()
        self._steps = 0  # so far, of all windows
        self.number = 0  # windows so far, but for those that were left out
        self._left_out = False  # the window before
        self._asked: tuple[Any, float, float] | None = None  # what `_beyond` was asked last, and what it said
        self._regimes = 1
        self._first: dict[tuple[float, Config], JobWindow] = {}  # window of a regime under a config
        self._doubt: tuple[JobWindow, float] | None = None  # the latest window, if doubtful, and the regime before it

    def note(self, measurement: Measurement, *, expected_s: float = math.nan) -> bool:
        """Take in a window that has statistics; whether something has changed but the config.

        A window in which the job changed shows the mean of two states. Of the first it is known what it looked like,
        so what the second does is told from the rest; where too little of the window is left for that, the window is
        left out. The step in which it changed belongs to both, and is left out where more than two are left. Steps of
        the warm-up may still be those of the config before, unless they are as expected.

        Args:
            measurement: the window.
            expected_s: of its steps, in the state that the window before showed (s).
        """
        window = self._window(measurement)
        at = self._break(measurement, expected_s)
        if at:
            part = 1 - at / len(measurement.step_s)
            if part < ENOUGH:
                self._left_out = True
                return True
            window = self._end_of(window, rest_of(measurement.step_s, at), part)
        elif self.windows:
            off = apart(measurement.step_s[: measurement.warmup], measurement.mean_s)
            if off > BREAK:  # statistics have the warm-up, too
                window = self._explained(window, off * measurement.warmup / len(measurement.step_s))
        before, regimes, left_out = self.regime, self._regimes, self._left_out
        window.row[0] = self._regime_of(window, changed=at > 0 or left_out)
        self._left_out = False
        if self._doubt is not None and window.row[0] == self._doubt[1]:
            self._blame(*self._doubt)
        others = [other for other in self.windows if other.row[0] == before]
        new = self._regimes > regimes and not left_out and self._workers_alike(window, others)
        new = new and not self._joined(others[-1], window)
        self.number += 1
        self._weigh(window)
        switched = bool(self.windows) and window.config != self.windows[-1].config
        strange = switched and (new or window.surprise != 0)
        strange = strange and abs(self._beyond(window, before, self.windows)[0]) > DOUBT
        self._doubt = (window, before) if strange else None
        self._first.setdefault((float(window.row[0]), window.config), window)
        self._remember(window)
        self._fit()
        return bool(self.windows[-1].row[0] != before)

    @property
    def doubtful(self) -> bool:
        """Whether the latest window fits nothing and came with a switch: links, or its config; one more will tell."""
        return self._doubt is not None

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
        """Logarithm of how much longer bytes take than in the latest window.

        Until the next, links may wander a little; by how much is no reason to stay with a config, nor to leave it.
        What surprised says little of other configs, but of its own all that is known.
        """
        paces = self._paces(rows)
        mean = paces.mean - self.windows[-1].pace(self.overhead)
        for place_of, surprise in {tuple(window.row[2:]): window.surprise for window in self.windows}.items():
            if surprise > 0:
                mean[(rows[:, 2:] == place_of).all(axis=1)] += surprise
        return replace(paces, mean=mean, variance=paces.variance + (1 - math.exp(-1 / 2)) * RESTS**2)

    def _likely(self, *, rest: bool = False) -> tuple[Processes, Floats]:
        """What links may be like, and how likely that is; those that rest alone, if so wanted."""
        likely = self._links
        if rest:
            likely = RESTING * (likely + 1e-12)
            likely /= likely.sum()
        if not self._unlikely:
            return self._kinds, likely
        some = np.flatnonzero(likely >= min(self._unlikely, likely.max()))
        return self._kinds.some(some), likely[some] / likely[some].sum()

    def _paces(self, rows: Floats, windows: Sequence[JobWindow] = (), *, rest: bool = False) -> Posterior:
        """Logarithm of seconds per byte at rows, told from windows, by default all."""
        links, likely = self._likely(rest=rest)
        known, values, noise = evidence(windows or self.windows, self.overhead)
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

    def _break(self, measurement: Measurement, expected_s: float) -> int:
        """The step of a window from which the job is another; 0 where it is not."""
        at = self.noise.broken(measurement.step_s)
        switched = not self.windows or measurement.config != self.windows[-1].config
        if at and switched and at <= measurement.warmup:
            return at if self.windows and abs(min(measurement.step_s[:at]) / expected_s - 1) < BREAK / 2 else 0
        return at if self.windows else 0

    def _end_of(self, window: JobWindow, rest: Sequence[float], part: float) -> JobWindow:
        """A window as it would be if all of it had been like its last part."""
        before, error = self.windows[-1], self.noise.error_of(rest, otherwise=window.error)
        beyond = self._paces(window.row[None] + [before.row[0], 0, 0, 0]).mean[0] - before.pace(self.overhead)
        old, stretch = self.of(before), math.exp(float(beyond))
        return self._explained(*end_of(window, rest, part, error, before=before, old=old, stretch=stretch))

    def _explained(self, window: JobWindow, uncertain: float) -> JobWindow:
        """With rates that its steps make likely, too."""
        return explained(window, uncertain, self.of(window), self._step_s)

    def _regime_of(self, window: JobWindow, *, changed: bool) -> float:
        """The regime that explains a window, the current one first; a new one where none does.

        Args:
            window: the latest.
            changed: in the middle of it or of the one before, and so not by its config.
        """
        if not self.windows:
            return 0.0
        current = self.regime
        likely = current if self._doubt is None else self._doubt[1]
        known = sorted(
            {float(other.row[0]) for other in self.windows}, key=lambda regime: (regime != likely, -regime)
        )
        for regime in known:
            others = [other for other in self.windows if other.row[0] == regime]
            if not self._alike(window, others):
                continue
            if self._first.get((regime, window.config), window).surprise:
                return regime  # it surprises as it did before
            beyond, surprises = self._beyond(window, regime, self.windows, rest=regime != likely)
            if not surprises:
                return regime
            larger = window.config != self.windows[-1].config and window.row[3] >= self.windows[-1].row[3]
            if regime == current and beyond > 0 and larger and not changed:
                return regime  # slower with more bytes in flight: that may well be the config
        self._regimes += 1
        return float(self._regimes - 1)

    def _blame(self, window: JobWindow, regime: float) -> None:
        """Put a window down to its config: links are what they were before it."""
        self._first.pop((float(window.row[0]), window.config), None)
        window.row[0] = regime
        self._weigh(window)
        self._first[regime, window.config] = window

    def _joined(self, last: JobWindow, window: JobWindow) -> bool:
        """Whether the window before, which surprised, was the first of this regime, and not slow by its config."""
        alike = abs(last.pace(self.overhead) - window.pace(self.overhead)) <= JOINS
        if not last.surprise or last is not self.windows[-1] or not alike:
            return False
        self._first.pop((float(last.row[0]), last.config), None)
        last.row[0], last.surprise = window.row[0], 0.0
        self._first[float(last.row[0]), last.config] = last
        return True

    def _weigh(self, window: JobWindow) -> None:
        """The farther a window is from what those before it say, the less it says; but not where another agrees."""
        others = [other for other in self.windows if other is not window]
        within = [other for other in others if other.row[0] == window.row[0]]
        if not within:
            return
        pace = window.pace(self.overhead)
        came_back = window.config != others[-1].config  # else both may be slow by what else happened then
        agree = [other for other in within if came_back and other.config == window.config]
        agree = [other for other in agree if abs(other.pace(self.overhead) - pace) <= SAME_LINK]
        for other in agree:
            other.surprise = 0.0
        beyond, surprises = self._beyond(window, float(window.row[0]), others)
        if surprises and not agree:
            window.surprise = beyond

    def _beyond(
        self, window: JobWindow, regime: float, others: Sequence[JobWindow], *, rest: bool = False
    ) -> tuple[float, bool]:
        """By how much a window's pace is not what others say of it in a regime; whether that is a surprise.

        Links that wander are not expected back where they were: `rest` is what those that do not wander would do.
        """
        key = window, regime, rest, self.overhead, tuple((other, other.row[0], other.surprise) for other in others)
        if self._asked is None or self._asked[0] != key:  # windows are asked for it twice
            row = np.array([[regime, *window.row[1:]]])
            paces = self._paces(row, others, rest=rest)
            self._asked = key, float(window.pace(self.overhead) - paces.mean[0]), float(paces.variance[0])
        _, beyond, variance_of = self._asked
        return beyond, abs(beyond) >= SURPRISE * (math.sqrt(variance_of) + 0.03)

    def _alike(self, window: JobWindow, others: list[JobWindow]) -> bool:
        """Whether workers are the same as in other windows, and links too where the config was; or they fade on."""
        if not self._workers_alike(window, others):
            return False
        regime = float(others[-1].row[0])
        first = self._first.get((regime, window.config))  # not the latest: links may fade slowly
        if first is None or abs(first.pace(self.overhead) - window.pace(self.overhead)) <= SAME_LINK:
            return True
        fades = regime == self.regime and float(self._links @ RESTING) < 0.5
        return fades and abs(self._beyond(window, regime, self.windows)[0]) <= SAME_LINK

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
        regimes = {float(other.row[0]) for other in self.windows}
        self._first = {key: first for key, first in self._first.items() if key[0] in regimes}
