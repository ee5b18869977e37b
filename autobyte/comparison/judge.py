"""The judge: what a search found and what it cost, by step times that no tuner sees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from autobyte.config import Config
from autobyte.tuning import Decision

TOLERANCE = 0.03  # the regret that counts as found


@dataclass(frozen=True)
class Judgement:
    """What a search found and what it cost, judged by the true step times.

    Args:
        regret: of the config in force after each decision, 1 − V / V(best), shape [decisions].
        iterations: until the regret stays at or below 3 %; as many as the budget has where it never does.
        cost_s: Σ (step − best step) over all iterations (s).
        switches: changes of config.
    """

    regret: tuple[float, ...]
    iterations: int
    cost_s: float
    switches: int


def judge(
    decisions: Sequence[Decision],
    *,
    true_step_s: Callable[[Config, int], float],
    best_step_s: Callable[[int], float],
    tolerance: float = TOLERANCE,
) -> Judgement:
    """Work out regret, iterations and search cost.

    Args:
        decisions: of one run.
        true_step_s: noise-free step time of a config at an iteration (s).
        best_step_s: of the best config at an iteration, of the grid and of everything that was tried (s).
        tolerance: the regret that counts as found.
    """

    def regret_of(config: Config, iteration: int) -> float:
        return max(0.0, 1.0 - best_step_s(iteration) / true_step_s(config, iteration))

    windows = [decision.measurement for decision in decisions]
    ends = np.cumsum([len(window.step_s) for window in windows]).tolist()
    last = ends[-1] - 1  # the world after the last window is not judged: nothing ran in it
    regret = [regret_of(decision.config, min(end, last)) for decision, end in zip(decisions, ends, strict=True)]
    late = [
        end
        for value, end in zip([regret_of(windows[0].config, 0), *regret], [*ends, ends[-1]], strict=True)
        if value > tolerance
    ]
    cost_s = sum(s - best_step_s(window.iteration + k) for window in windows for k, s in enumerate(window.step_s))
    ran = [window.config for window in windows] + [decisions[-1].config]
    return Judgement(
        regret=tuple(regret),
        iterations=late[-1] if late else 0,
        cost_s=cost_s,
        switches=sum(before != after for before, after in pairwise(ran)),
    )
