"""Bad links and routes, one clear line each; random numbers that are uniform."""

import math
import re

import numpy as np
import pytest

from autobyte.congestion.paths import Bottleneck, Interval, RateProfile, Route, gradient_of, uniform
from autobyte.errors import InputError

STEADY = RateProfile.steady(10.0)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: RateProfile.steady(0.0), "a link's rate must be positive and finite, got 0 packets/s"),
        (lambda: RateProfile.steady(math.nan), "a link's rate must be positive and finite, got nan packets/s"),
        (lambda: RateProfile((0.0, 1.0), (1.0,)), "a profile needs a rate for each time, got 2 times"),
        (lambda: RateProfile((0.0, 2.0, 1.0), (1.0, 1.0, 1.0)), "times must ascend from 0, got (0.0, 2.0, 1.0)"),
        (lambda: RateProfile((1.0,), (1.0,)), "times must ascend from 0, got (1.0,)"),
        (lambda: Bottleneck(STEADY, -1), "a queue must hold at least 0 packets, got -1"),
        (lambda: Bottleneck(STEADY, 1, 1.0), "loss must be a share from 0 to below 1, got 1.0"),
        (lambda: Bottleneck(STEADY, 1, math.nan), "loss must be a share from 0 to below 1, got nan"),
        (lambda: Route(0.0), "a round trip must be a positive time, got 0.0 s"),
        (lambda: Route(0.1, 3.0, 2.0), "a flow cannot run from 3.0 s to 2.0 s"),
    ],
)
def test_what_cannot_be_is_refused(make, complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        make()


def test_capacity_is_the_integral_of_the_rate() -> None:
    profile = RateProfile((0.0, 1.0, 3.0), (10.0, 20.0, 5.0))
    assert profile.capacity(0.5, 4.0) == pytest.approx(5 + 40 + 5)
    assert profile.capacity(3.5, 3.5) == 0


def test_the_gradient_is_that_of_a_least_squares_line() -> None:
    rng = np.random.default_rng(0)
    t, r = np.sort(rng.uniform(0, 1, 20)), rng.uniform(0, 1, 20)
    sums = (t.sum(), (t * t).sum(), r.sum(), (t * r).sum())
    assert gradient_of(20, sums) == pytest.approx(np.polyfit(t, r, 1)[0])
    assert gradient_of(1, (0.5, 0.25, 1.0, 0.5)) == 0.0
    assert gradient_of(0, (0.0, 0.0, 0.0, 0.0)) == 0.0


def test_random_numbers_are_uniform_and_independent() -> None:
    drawn = np.array([[uniform(7, flow, number, 0) for number in range(4000)] for flow in range(4)])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    np.testing.assert_allclose(np.histogram(drawn, 10, (0, 1))[0] / drawn.size, 0.1, atol=0.01)
    assert np.abs(np.corrcoef(drawn) - np.eye(4)).max() < 0.06
    assert abs(np.corrcoef(drawn[0, :-1], drawn[0, 1:])[0, 1]) < 0.06


def test_an_interval_without_packets_has_no_loss() -> None:
    quiet = Interval(0.0, 0.5, 0, 0, 0, math.nan, 0.0, math.inf)
    assert (quiet.loss, quiet.acked_per_s, quiet.seconds) == (0.0, 0.0, 0.5)
