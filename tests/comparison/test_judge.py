"""The judge, against sums by hand."""

from itertools import pairwise

import pytest

from autobyte.comparison.judge import judge
from autobyte.config import Config
from autobyte.trace import Measurement
from autobyte.tuning import Decision

DEFAULT, A, B, C = (Config(size, size) for size in (100, 200, 300, 400))


def by_hand(*rows: tuple[Config, tuple[float, ...], Config]) -> list[Decision]:
    """Decisions from (config of the window, its steps, config after it)."""
    decisions, iteration = [], 0
    for config, steps, after in rows:
        decisions.append(Decision(Measurement(config, iteration, steps), after, 0.0))
        iteration += len(steps)
    return decisions


TRUE = {DEFAULT: 4.0, A: 2.5, B: 2.0, C: 2.02}
STEADY = {"true_step_s": lambda config, _: TRUE[config], "best_step_s": lambda _: 2.0}


def test_a_search_is_judged() -> None:
    decisions = by_hand((DEFAULT, (4.0, 5.0), A), (A, (3.0, 2.0), C), (C, (2.0, 2.0), C))
    search = judge(decisions, **STEADY)
    assert search.regret == (1 - 2.0 / 2.5, 1 - 2.0 / 2.02, 1 - 2.0 / 2.02)
    assert search.iterations == 4  # A was in force until then
    assert search.cost_s == 2 + 3 + 1 + 0 + 0 + 0
    assert search.switches == 2


@pytest.mark.parametrize(
    ("configs", "iterations"),
    [
        ([B, B, B, B], 0),
        ([C, B, C, C], 0),  # within 3 %
        ([DEFAULT, B, B, B], 2),
        ([DEFAULT, B, A, B], 6),  # lost again in between
        ([DEFAULT, A, A, B], 6),
        ([DEFAULT, A, A, A], 6),  # never: as many as there were
        ([B, B, B, A], 6),
    ],
)
def test_iterations_count_until_the_regret_stays_low(configs: list[Config], iterations: int) -> None:
    rows = [(config, (1.0, 1.0), after) for config, after in pairwise(configs)]
    assert judge(by_hand(*rows), **STEADY).iterations == iterations


def test_the_tolerance_can_be_set() -> None:
    decisions = by_hand((C, (2.0,), C))
    assert judge(decisions, **STEADY, tolerance=0.009).iterations == 1
    assert judge(decisions, **STEADY, tolerance=0.0).iterations == 1
    assert judge(decisions, **STEADY, tolerance=1 - TRUE[B] / TRUE[C]).iterations == 0  # at or below


def test_the_truth_is_that_of_the_iteration() -> None:
    """From iteration 3 on, A is the best and B twice as slow."""

    def true_step_s(config: Config, iteration: int) -> float:
        return {A: 4.0, B: 2.0}[config] if iteration < 3 else {A: 4.0, B: 8.0}[config]

    decisions = by_hand((A, (4.0, 4.0), B), (B, (2.0, 8.0), B), (B, (8.0, 8.0), A))
    search = judge(decisions, true_step_s=true_step_s, best_step_s=lambda i: 2.0 if i < 3 else 4.0)
    assert search.regret == (0.0, 0.5, 0.0)
    assert search.cost_s == (2 + 2) + (0 + 4) + (4 + 4)
    assert search.iterations == 6
    assert search.switches == 2


def test_a_run_that_beats_the_best_by_noise_has_no_regret() -> None:
    assert judge(by_hand((A, (2.5,), B)), true_step_s=lambda *_: 1.9, best_step_s=lambda _: 2.0).regret == (0.0,)
