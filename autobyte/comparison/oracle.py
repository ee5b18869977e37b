"""Who knows the truth, and who never changes: the two that every tuner is measured between."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autobyte.comparison.contest import Contest
from autobyte.config import Config
from autobyte.tuning import WARMUP, WINDOW

if TYPE_CHECKING:
    from autobyte.comparison.verdict import Truth

COUNTS = 0.05  # the least gap, of the oracle's speed, between it and the best constant for a job to count


@dataclass(frozen=True)
class Ends:
    """Speeds of one seed's world (samples/s).

    Args:
        constant: of the best constant in hindsight.
        oracle: chooses at every decision point what is best in the state that the last window ended in.
        all_knowing: chooses what is best for the window to come.
    """

    constant: float
    oracle: float
    all_knowing: float

    @property
    def gap(self) -> float:
        """What the best constant lacks, as a part of the oracle's speed."""
        return 1 - self.constant / self.oracle

    def closed(self, samples_per_s: float) -> float | None:
        """The share of the gap that a speed closes; None where the gap is too small to count."""
        if self.gap < COUNTS:
            return None
        return (samples_per_s - self.constant) / (self.oracle - self.constant)


def ends(contest: Contest, truth: "Truth", constant: Config, seed: int) -> Ends:
    """Work out both ends for a seed: by the truth where nothing changes, else by running the same world."""
    start = truth.at(0)
    if not contest.scenario.changes:
        best = start.job.samples / start.best_s
        return Ends(start.job.samples / start.step_s[constant], best, best)
    windows = range(contest.budget)
    seen = [truth.at(max(0, window * WINDOW - 1)).best for window in windows]
    if contest.before != "all":
        seen[0] = contest.space.default  # like the first of a tuner that was not there before
    to_come = [_best_for(contest, truth, window) for window in windows]
    speeds = [_run(contest, truth, plan, seed) for plan in ([constant] * contest.budget, seen, to_come)]
    return Ends(*speeds)


def _best_for(contest: Contest, truth: "Truth", window: int) -> Config:
    states = [truth.at(window * WINDOW + k) for k in range(WINDOW)]
    if all(state is states[0] for state in states):
        return states[0].best
    configs = [config for config in states[0].step_s if all(config in state.step_s for state in states)]
    totals = np.sum([[state.step_s[config] for config in configs] for state in states], axis=0)
    return configs[int(totals.argmin())]


def _run(contest: Contest, truth: "Truth", plan: list[Config], seed: int) -> float:
    """The speed of a whole run under configs that stand in advance, switches included."""
    world, seconds, samples = contest.world(seed), 0.0, 0
    for window, config in enumerate(plan):
        steps = world.measure(config, iterations=WINDOW, warmup=WARMUP).step_s
        seconds += sum(steps)
        samples += sum(truth.at(window * WINDOW + k).job.samples for k in range(len(steps)))
    return samples / seconds
