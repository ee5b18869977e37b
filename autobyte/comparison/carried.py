"""Whether tuning at run time matters: what configs that were tied before a change lose after it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autobyte.bound import wire_s
from autobyte.comparison.contest import Contest
from autobyte.comparison.truth import SteadyTruth, Truth
from autobyte.config import Config
from autobyte.job import Floats, Job
from autobyte.tuning import WINDOW

TIES = 0.02  # steps that differ by less can hardly be told apart in a window of 10 iterations
MATTERS = 0.05  # a mean loss of ties from which on it matters which of them a search keeps


@dataclass(frozen=True, eq=False)
class CarriedTies:
    """Configs that are tied on one job, and what they lose on another.

    Args:
        before: communication / compute of the first job, without what blocks cost.
        after: the same of the second.
        configs: those within TIES of the first's fastest, the fastest first.
        loss: what each lacks of the best speed on the second, shape [configs].
    """

    before: float
    after: float
    configs: tuple[Config, ...]
    loss: Floats

    @property
    def mean(self) -> float:
        """Their mean loss: what to expect of a search that cannot tell them apart."""
        return float(self.loss.mean())


def ratio(job: Job) -> float:
    """Time for the bytes of a step on the slowest link, by the compute of a step on the slowest worker."""
    compute_s = job.accumulation * job.model.compute_s * max(job.cluster.slowdown)
    return wire_s(job) / compute_s if compute_s else float("inf")


def carry(before: SteadyTruth, after: SteadyTruth) -> CarriedTies:
    """Say what configs that are tied before a change lose after it.

    >>> carry(*(SteadyTruth(job, Space().grid(), PLAIN) for job in (fast, slow))).mean
    """
    tied = tuple(before.within(TIES))
    loss = 1 - after.best_s / np.array([after.step_s[config] for config in tied])
    return CarriedTies(ratio(before.job), ratio(after.job), tied, np.maximum(loss, 0.0))


def largest(contest: Contest, truth: Truth) -> dict[str, Any] | None:
    """The change of a contest's scenario after which tied configs lose most, as plain JSON; None if nothing changes.

    A job that computes nothing has none either: communication is all there is.
    """
    changes = contest.scenario.changes_between(1, contest.budget * WINDOW)
    pairs = {(truth.at(at - 1), truth.at(at)): at for at in reversed(changes)}  # the first time of each
    carried = [(at, carry(*states)) for states, at in pairs.items() if states[0] is not states[1]]
    if not carried or not contest.job.model.compute_s:
        return None
    at, most = max(carried, key=lambda item: item[1].mean)
    ends = {"ratio_before": most.before, "ratio_after": most.after}
    return {"iteration": at} | ends | {"configs": len(most.configs), "loss": most.mean}


def say(largest: Mapping[str, Any]) -> str:
    """Say in a line where a job lies.

    >>> say({"iteration": 20, "ratio_before": 0.68, "ratio_after": 2.27, "configs": 31, "loss": 0.121}).split("; ")
    ['iteration 20: communication / compute 0.68 → 2.3',
     'tied configs (31) then lose 12.1 % on average: it matters which of them a search keeps']
    """
    ends = f"{largest['ratio_before']:.2g} → {largest['ratio_after']:.2g}"
    lost = f"tied configs ({largest['configs']}) then lose {100 * largest['loss']:.1f} % on average"
    little = "" if largest["loss"] >= MATTERS else "little "
    meaning = f"it matters {little}which of them a search keeps"
    return f"iteration {largest['iteration']}: communication / compute {ends}; {lost}: {meaning}"
