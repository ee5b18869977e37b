"""What the policy sees is a ratio, and what it says changes the rate as in the paper."""

import numpy as np
import pytest

from autobyte.congestion.senses import LEAST_PER_S, length_s, look, next_pace


def test_the_features_are_those_of_the_paper() -> None:
    one = np.ones(1)
    np.testing.assert_allclose(
        look(12 * one, 10 * one, 0.06 * one, 0.05 * one, 0.1 * one), [[0.2, 0.2, 0.2]], rtol=1e-6
    )
    np.testing.assert_allclose(look(10 * one, 10 * one, 0.05 * one, 0.05 * one, 0 * one), [[0, 0, 0]], atol=1e-9)
    wild = look(1000 * one, 0 * one, 9 * one, 0.05 * one, 50 * one)
    assert np.abs(wild).max() <= 5


def test_a_slow_link_and_a_fast_one_look_the_same() -> None:
    slow = look(np.array([12.0]), np.array([10.0]), np.array([0.6]), np.array([0.5]), np.array([0.1]))
    fast = look(np.array([1200.0]), np.array([1000.0]), np.array([0.006]), np.array([0.005]), np.array([0.1]))
    np.testing.assert_allclose(slow, fast, rtol=1e-6)


def test_actions_multiply_and_divide() -> None:
    pace = next_pace(np.full(4, 100.0), np.array([1.0, -1.0, 0.0, 100.0]))
    np.testing.assert_allclose(pace, [102.5, 100 / 1.025, 100.0, 120.0])
    assert next_pace(np.array([LEAST_PER_S]), np.array([-5.0]))[0] == LEAST_PER_S


def test_an_interval_is_a_round_trip_or_time_for_some_packets() -> None:
    assert length_s(np.array([0.1]), np.array([1000.0]))[0] == 0.1
    assert length_s(np.array([0.001]), np.array([100.0]))[0] == pytest.approx(0.04)
