"""Weights, landmarks, neighbours, and the order of learning."""

import math
import re

import numpy as np
import pytest

from autobyte.congestion.objectives import (
    BOOTSTRAPS,
    Objective,
    are_neighbours,
    distance,
    landmarks,
    parse_objective,
    sample_objectives,
    traversal,
)
from autobyte.errors import InputError


def test_the_landmarks_are_the_grid_inside_the_simplex() -> None:
    for steps in (3, 4, 5, 10, 20):
        points = landmarks(steps)
        assert len(points) == len(set(points)) == math.comb(steps - 1, 2)
        assert all(min(point.weights) > 0 for point in points)
    assert len(landmarks()) == 36
    with pytest.raises(InputError, match="a grid of 2 steps has no point"):
        landmarks(2)


def test_neighbours_differ_in_two_weights_by_a_step() -> None:
    middle = Objective(0.4, 0.3, 0.3)
    around = {str(one) for one in landmarks() if are_neighbours(middle, one)}
    assert around == {
        "⟨0.5, 0.2, 0.3⟩", "⟨0.5, 0.3, 0.2⟩", "⟨0.3, 0.4, 0.3⟩",
        "⟨0.3, 0.3, 0.4⟩", "⟨0.4, 0.4, 0.2⟩", "⟨0.4, 0.2, 0.4⟩",
    }  # fmt: skip
    assert not are_neighbours(middle, middle)
    assert distance(middle, Objective(0.5, 0.2, 0.3)) == pytest.approx(0.1)


@pytest.mark.parametrize("steps", [5, 10, 20])
def test_the_traversal_reaches_every_landmark_once(steps: int) -> None:
    starts = BOOTSTRAPS if steps > 5 else (Objective(0.6, 0.2, 0.2), Objective(0.2, 0.6, 0.2))
    order = traversal(starts, steps=steps)
    assert sorted(order) == sorted(landmarks(steps))
    places = [order.index(start) for start in starts]
    assert places == sorted(places)
    assert places[0] == 0
    for index, one in enumerate(order):
        if one not in starts:
            assert any(are_neighbours(one, earlier, steps=steps) for earlier in order[:index]), one


def test_each_bootstrap_has_a_third_of_the_landmarks() -> None:
    order = traversal()
    assert [order.index(start) for start in BOOTSTRAPS] == [0, 12, 24]
    for first in (0, 12, 24):
        region = order[first : first + 12]
        for index, one in enumerate(region[1:], 1):
            assert any(are_neighbours(one, earlier) for earlier in region[:index]), (first, one)


def test_a_bootstrap_that_is_no_landmark_is_refused() -> None:
    with pytest.raises(
        InputError, match=re.escape("bootstrap ⟨0.65, 0.25, 0.1⟩ is no landmark of a grid of 10 steps")
    ):
        traversal([Objective(0.65, 0.25, 0.1)])


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ((0.8, 0.1, 0.2), "weights must sum to 1, got ⟨0.8, 0.1, 0.2⟩ with sum 1.1; write 0.727, 0.0909, 0.182"),
        ((0.0, 0.0, 0.0), "weights must sum to 1, got ⟨0, 0, 0⟩ with sum 0; write 0.8, 0.1, 0.1"),
        ((1.2, -0.1, -0.1), "weight of latency must be a number from 0 to 1, got -0.1"),
        ((math.nan, 0.5, 0.5), "weight of throughput must be a number from 0 to 1, got nan"),
        ((0.5, 0.5, math.inf), "weight of loss must be a number from 0 to 1, got inf"),
    ],
)
def test_bad_weights_are_one_clear_line(weights: tuple[float, float, float], complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        Objective(*weights)


@pytest.mark.parametrize(
    "text",
    ["", "0.8", "0.8,0.2", "throughput=0.8,latency=0.2", "a=1,b=0,c=0", "x,y,z", "throughput=1,throughput=0,loss=0"],
)
def test_text_that_is_no_objective_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"cannot read objective '{text}'; write it like throughput=0.8,")):
        parse_objective(text)


def test_the_reward_is_the_weighted_sum() -> None:
    assert Objective(0.8, 0.1, 0.1).reward(np.array([0.9, 0.5, 1.0])) == pytest.approx(0.87)


def test_samples_lie_on_the_simplex_and_off_the_grid() -> None:
    drawn = sample_objectives(200, seed=3)
    assert drawn == sample_objectives(200, seed=3)
    assert min(min(one.weights) for one in drawn) >= 0.05 - 1e-12
    assert not set(drawn) & set(landmarks())
    mean = np.mean([one.weights for one in drawn], axis=0)
    np.testing.assert_allclose(mean, 1 / 3, atol=0.05)
    with pytest.raises(InputError, match=r"least weight must be from 0 to below 1/3, got 0\.4"):
        sample_objectives(3, least=0.4)
