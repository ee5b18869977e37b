"""Scores of policies whose behaviour is known."""

import numpy as np
import pytest

from autobyte.congestion.evaluate import best_steady, differences, serve
from autobyte.congestion.objectives import Objective
from autobyte.congestion.paths import Bottleneck, RateProfile, Route

WISHES = (Objective(0.8, 0.1, 0.1), Objective(0.1, 0.8, 0.1))


class Always:
    """One action, whatever it sees."""

    def __init__(self, action: float) -> None:
        self.value = action

    def action(self, inputs: np.ndarray) -> np.ndarray:
        return np.full(len(inputs), self.value, dtype=np.float32)


def test_always_more_fills_the_queue_and_always_less_leaves_the_link_empty() -> None:
    def draw(rng: np.random.Generator) -> tuple[Bottleneck, Route]:
        return Bottleneck(RateProfile.steady(400.0), 40), Route(0.05)

    for action, utilisation, latency in ((1.0, 1.0, 0.0525 / 0.1525), (-1.0, 0.0, 1.0)):
        for one in serve(Always(action), WISHES, draw, links=3, steps=200, settled=150):
            assert one.utilisation == pytest.approx(utilisation, abs=0.05)
            assert one.latency_ratio == pytest.approx(latency, abs=0.05)
            parts = np.array([one.utilisation, one.latency_ratio, 1 - one.loss])
            assert one.reward == pytest.approx(one.objective.reward(parts), abs=0.03)
            assert (one.loss > 0.5) == (action > 0)


def test_every_objective_meets_the_same_links() -> None:
    drawn = []

    def draw(rng: np.random.Generator) -> tuple[Bottleneck, Route]:
        drawn.append(rng.uniform(100, 400))
        return Bottleneck(RateProfile.steady(drawn[-1]), 40), Route(0.05)

    first, second = serve(Always(0.0), WISHES, draw, links=4, steps=20, settled=10)
    assert len(drawn) == 4
    assert first.objective == WISHES[0]
    again = serve(Always(0.0), WISHES, draw, links=4, steps=20, settled=10)
    assert [first, second] == again


def test_who_knows_the_link_sends_as_fast_as_it_serves() -> None:
    def draw(rng: np.random.Generator) -> tuple[Bottleneck, Route]:
        return Bottleneck(RateProfile.steady(400.0), 40, 0.02), Route(0.05)

    rewards = best_steady(WISHES, draw, links=2, steps=60, settled=30)
    for wish, reward in zip(WISHES, rewards, strict=True):
        assert reward == pytest.approx(wish.reward(np.array([1.0, 1.0, 0.98])), abs=0.03)
        assert reward > max(
            one.reward
            for action in (-1.0, 0.0, 1.0)
            for one in serve(Always(action), [wish], draw, links=2, steps=60, settled=30)
        )


class ByWeight:
    """The more throughput weighs, the more it sends."""

    def action(self, inputs: np.ndarray) -> np.ndarray:
        return np.where(inputs[:, 0] > 0.5, 1.0, -1.0).astype(np.float32)


def test_differences_are_those_of_the_same_links_one_by_one() -> None:
    def draw(rng: np.random.Generator) -> tuple[Bottleneck, Route]:
        return Bottleneck(RateProfile.steady(rng.uniform(100, 400)), 40, rng.uniform(0, 0.1)), Route(0.05)

    sizes = {"links": 6, "steps": 60, "settled": 40, "seed": 1}
    apart = differences(ByWeight(), *WISHES, draw, **sizes)  # type: ignore[arg-type]
    first, second = serve(ByWeight(), WISHES, draw, **sizes)  # type: ignore[arg-type]
    assert apart.shape == (6, 3)
    assert apart[:, 0].mean() == pytest.approx(first.utilisation - second.utilisation)
    assert apart[:, 1].mean() == pytest.approx(first.latency_ratio - second.latency_ratio)
    assert (apart[:, 0] > 0).all()
    assert (differences(Always(0.5), *WISHES, draw, **sizes) == 0).all()  # type: ignore[arg-type]
