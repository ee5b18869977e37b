"""The oracle, which knows the truth, and the best constant, which never changes: tuners are measured between them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autobyte.comparison.contest import Contest, Run
from autobyte.comparison.truth import Truth
from autobyte.config import Config
from autobyte.tuning import WARMUP, WINDOW

COUNTS = 0.05  # the least gap, of the oracle's speed, between it and the best constant for a job to count


@dataclass(frozen=True)
class Ends:
    """Speeds of one seed's world (samples/s).

    Args:
        constant: of the best constant in hindsight.
        oracle: chooses at every decision point, after 10 iterations each or where a run had its own, what is best in
            the state that the last window ended in.
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


def lack(gap: float) -> str:
    """Say what the best constant lacks of the oracle's speed, and what that means.

    >>> lack(0.123)
    'the best constant lacks 12.3 % of it: adapting can gain'
    >>> lack(-0.001)
    'the best constant lacks −0.1 % of it: with less than 5 %, adapting gains too little to compare tuners by'
    """
    little = f"with less than {100 * COUNTS:g} %, adapting gains too little to compare tuners by"
    meaning = "adapting can gain" if gap >= COUNTS else little
    return f"the best constant lacks {100 * gap:.1f} % of it: {meaning}".replace("-", "−")


def ends(contest: Contest, truth: Truth, constant: Config, seed: int) -> Ends:
    """Work out both ends for a seed: by the truth where nothing changes, else by running the same world."""
    start = truth.at(0)
    if not contest.scenario.changes:
        best = start.job.samples / start.best_s
        return Ends(start.job.samples / start.step_s[constant], best, best)
    lengths = [WINDOW] * contest.budget
    to_come = [_best_for(truth, window) for window in range(contest.budget)]
    plans = [constant] * contest.budget, _seen(contest, truth, lengths), to_come
    return Ends(*(_run(contest, truth, plan, lengths, seed) for plan in plans))


def where_decided(contest: Contest, truth: Truth, run: Run, between: Ends) -> Ends:
    """The same ends, but an oracle that decides where a run did."""
    lengths = [len(decision.measurement.step_s) for decision in run.decisions]
    if not contest.scenario.changes or set(lengths) == {WINDOW}:
        return between
    plan = _seen(contest, truth, lengths)
    return replace(between, oracle=_run(contest, truth, plan, lengths, run.seed))


def _seen(contest: Contest, truth: Truth, lengths: Sequence[int]) -> list[Config]:
    """What is best in the state that the window before each ended in."""
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    first = truth.at(0).best if contest.before == "all" else contest.space.default  # who was not there before
    return [first, *(truth.at(start - 1).best for start in starts[1:])]


def _best_for(truth: Truth, window: int) -> Config:
    states = [truth.at(window * WINDOW + k) for k in range(WINDOW)]
    if all(state is states[0] for state in states):
        return states[0].best
    configs = [config for config in states[0].step_s if all(config in state.step_s for state in states)]
    totals = np.sum([[state.step_s[config] for config in configs] for state in states], axis=0)
    return configs[int(totals.argmin())]


def _run(contest: Contest, truth: Truth, plan: Sequence[Config], lengths: Sequence[int], seed: int) -> float:
    """The speed of a whole run under configs that stand in advance, switches included."""
    world, seconds, samples = contest.world(seed), 0.0, 0
    for config, length in zip(plan, lengths, strict=True):
        window = world.measure(config, iterations=length, warmup=WARMUP)
        seconds += sum(window.step_s)
        samples += sum(truth.at(window.iteration + k).job.samples for k in range(length))
    return samples / seconds
