"""What a trial is worth, beside closed forms and drawn outcomes; and which one is taken."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from autobyte.config import Config
from autobyte.job import Floats
from autobyte.tuners.twin.choosing import Belief, choice, worth, worth_together

NORMAL = NormalDist()


def believed(mean: Floats, covariance: Floats, noise: float) -> Belief:
    return Belief(mean, np.sqrt(np.diag(covariance)), lambda some: covariance[np.ix_(some, some)], noise)


def test_one_that_nobody_knows_beside_one_that_is_known() -> None:
    """The expected improvement, with the deviation that a window of so much noise leaves to be learned."""
    gap, deviation, noise, windows = 0.01, 0.04, 0.03, 5.0
    belief = believed(np.array([0.0, gap]), np.diag([0.0, deviation**2]), noise)
    learned = deviation**2 / math.hypot(deviation, noise)
    improvement = learned * NORMAL.pdf(gap / learned) - gap * NORMAL.cdf(-gap / learned)
    known, unknown = worth_together(belief, windows=windows)
    assert known == 0.0
    assert unknown == pytest.approx(windows * improvement - gap, rel=0.03)


def test_without_noise_it_is_the_expected_improvement() -> None:
    mean, deviation = np.array([0.0, 0.01, 0.03]), np.array([1e-9, 0.03, 0.05])
    belief = believed(mean, np.diag(deviation**2), 1e-6)
    assert worth_together(belief, windows=3.0) == pytest.approx(worth(mean, deviation, windows=3.0), abs=1e-3)


def test_what_goes_for_all_alike_is_not_worth_a_trial() -> None:
    mean = np.array([0.0, 0.01, 0.02])
    alike = believed(mean, np.full((3, 3), 0.05**2), 0.001)
    assert worth_together(alike, windows=9.0) == pytest.approx(-mean)


def test_beliefs_that_hang_together_beside_drawn_outcomes() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5)) * 0.03
    covariance, mean, noise, windows = root @ root.T, rng.normal(size=5) * 0.02, 0.02, 4.0
    true = mean + rng.multivariate_normal(np.zeros(5), covariance, size=200_000)
    for index, value in enumerate(worth_together(believed(mean, covariance, noise), windows=windows)):
        shown = true[:, index] + noise * rng.normal(size=len(true))
        gain = covariance[:, index] / (covariance[index, index] + noise**2)
        after = mean + np.outer(shown - mean[index], gain)
        drawn = windows * (mean.min() - after.min(axis=1).mean()) + mean.min() - mean[index]
        assert value == pytest.approx(drawn, rel=0.03, abs=2e-3)  # 21 outcomes leave out tails


def test_who_cannot_win_is_worth_nothing() -> None:
    belief = believed(np.array([0.0, np.inf, 0.5]), np.diag([1e-4, 1e-4, 1e-4]), 0.01)
    value = worth_together(belief, windows=9.0)
    assert value[1] == -np.inf
    assert value[2] == pytest.approx(-0.5)


def test_where_nobody_can_win_what_runs_goes_on() -> None:
    """As a job whose windows have all become too large: every mean is infinite."""
    candidates = [Config(1 << 20, ratio << 20) for ratio in (1, 2, 3)]
    value = worth_together(believed(np.full(3, np.inf), np.eye(3), 0.1), windows=8.0)
    assert value.tolist() == [0.0, 0.0, 0.0]
    assert choice(candidates, candidates[1], value, 0.0025) == candidates[1]


def test_of_what_is_worth_about_as_much_the_one_that_is_expected_fastest() -> None:
    candidates = [Config(1 << k, 1 << k) for k in (20, 21, 22)]
    value, mean = np.array([0.0, 0.031, 0.035]), np.array([0.02, 0.0, 0.05])
    at_all = {"value": value, "bar": 0.01}
    assert choice(candidates, candidates[0], **at_all) == candidates[2]
    assert choice(candidates, candidates[0], mean=mean, **at_all) == candidates[1]
    assert choice(candidates, candidates[0], mean=mean, value=value, bar=0.05) == candidates[0]
    assert choice(candidates, candidates[0], mean=mean, ran={candidates[2]}, **at_all) == candidates[2]
    assert choice(candidates, candidates[0], mean=mean, ran={candidates[0]}, **at_all) == candidates[1]


def test_however_many_there_are_the_best_is_among_those_compared() -> None:
    """Well known, it is not among the many that could be better still; what does not beat it is no gain."""
    mean = np.append(0.0, np.full(100, 0.01))
    few, many = (
        believed(mean[:count], np.diag(np.append(1e-6, np.full(count - 1, 9e-4))), 0.01) for count in (3, 101)
    )
    assert worth_together(many, windows=9.0).max() == pytest.approx(worth_together(few, windows=9.0).max())
