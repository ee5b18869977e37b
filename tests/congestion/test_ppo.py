"""Advantages against their definition; an update moves actions to where the reward was."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from autobyte.congestion import batch
from autobyte.congestion.model import ActorCritic
from autobyte.congestion.objectives import Objective
from autobyte.congestion.policy import RatePolicy
from autobyte.congestion.ppo import (
    GAMMA,
    LAMBDA,
    PRICE,
    REMEMBERED,
    BoundedLoss,
    Experience,
    advantages_of,
    gather,
    promised,
    update,
)
from autobyte.congestion.ranges import range_of

WISH = Objective(0.8, 0.1, 0.1)


def test_advantages_are_the_discounted_sum_of_surprises() -> None:
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(5, 2)), rng.normal(size=(6, 2)).astype(np.float32)
    surprise = rewards + GAMMA * values[1:] - values[:-1]
    expected = [sum((GAMMA * LAMBDA) ** (t - s) * surprise[t] for t in range(s, 5)) for s in range(5)]
    np.testing.assert_allclose(advantages_of(rewards, values), expected, rtol=1e-5)


def test_an_update_moves_the_mean_action_towards_what_was_better() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(512, 33)).astype(np.float32)
    model = ActorCritic(seed=1)
    before = model.policy().action(inputs)
    noise = rng.standard_normal(512).astype(np.float32)
    log_probabilities = (-0.5 * noise**2 - 0.5 * np.log(2 * np.pi)).astype(np.float32)
    returns = np.zeros(512, dtype=np.float32)
    seen = Experience(inputs, before + noise, log_probabilities, noise, returns, 0.0)  # more is better
    update(model, torch.optim.Adam(model.parameters(), lr=1e-3), seen, seed=0)
    assert (model.policy().action(inputs) - before).mean() > 0.01


def test_what_is_gathered_is_of_the_policys_own_actions() -> None:
    policy = ActorCritic(seed=2).policy()
    seen = gather(policy, range_of("paper").draw, [WISH] * 6, steps=10, seed=7)
    again = gather(policy, range_of("paper").draw, [WISH] * 6, steps=10, seed=7)
    assert seen.inputs.shape == (60, 33)
    assert np.array_equal(seen.actions, again.actions)
    noise = (seen.actions - policy.action(seen.inputs)) / np.exp(policy.log_std)
    expected = -0.5 * noise**2 - policy.log_std - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(seen.log_probabilities, expected, atol=1e-4)
    np.testing.assert_allclose(seen.inputs[:, :3], np.tile(WISH.weights, (60, 1)), rtol=1e-6)
    assert 0 < seen.reward < 1


def test_every_objective_has_the_same_say() -> None:
    wishes = [WISH, Objective(0.05, 0.05, 0.9)] * 3
    seen = gather(ActorCritic(seed=2).policy(), range_of("paper").draw, wishes, steps=20, seed=7)
    for own in (seen.advantages.reshape(20, 6)[:, place::2] for place in range(2)):
        np.testing.assert_allclose((own.mean(), own.std()), (0, 1), atol=1e-5)


def test_promises_depend_on_where_a_rate_begins_and_ends_alone() -> None:
    """So they leave the best policy as it is: their discounted sum has nothing of what comes between."""
    rng = np.random.default_rng(0)
    shares = rng.uniform(0.02, 0.9, size=(2, 6, 3))
    shares[1, [0, -1]] = shares[0, [0, -1]]
    one, other = (GAMMA ** np.arange(5) @ promised(way, np.array([0.1, 0.5, 0.8])) for way in shares)
    np.testing.assert_allclose(one, other)
    assert not np.allclose(promised(shares[0], np.ones(3)), promised(shares[1], np.ones(3)))


def test_a_promise_is_for_coming_closer_to_the_links_rate() -> None:
    shares = np.array([[0.1, 0.8, 2.0, 0.001], [0.2, 0.9, 3.0, 0.002]])
    promises = (promised(shares, np.full(4, 0.1)) - promised(shares[[0, 0]], np.full(4, 0.1)))[0]
    assert promises[0] > promises[1] > 0  # most where the link is empty
    assert tuple(promises[2:]) == (0, 0)  # nothing beyond the link's rate, and none without end on an empty one


def test_promises_tell_what_a_higher_rate_is_worth_on_an_empty_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far the actions explain the advantages, where latency weighs most."""
    monkeypatch.setattr(batch, "FIRST_PACE", (0.05, 0.2))
    arrays = ActorCritic(seed=2).policy().arrays
    blind = {name: np.zeros_like(values) for name, values in arrays.items() if name.startswith("critic")}
    policy, wish = RatePolicy(arrays | blind), Objective(0.07, 0.87, 0.06)
    explained, rewards = [], []
    for promise in (True, False):
        seen = gather(policy, range_of("paper").draw, [wish] * 96, steps=16, seed=7, promise=promise)
        explained.append(np.corrcoef(seen.actions - policy.action(seen.inputs), seen.advantages)[0, 1])
        rewards.append(seen.reward)
    assert explained[0] > 1.2 * explained[1], explained
    assert rewards[0] == rewards[1]  # promises are not counted


def test_another_reward_can_be_asked_for() -> None:
    policy = ActorCritic(seed=2).policy()
    seen = gather(
        policy, range_of("paper").draw, [WISH] * 6, steps=4, seed=7, score=lambda parts, batch: batch.pace * 0 - 3
    )
    assert seen.reward == -3


def test_loss_above_the_bound_has_a_price_whatever_the_weights() -> None:
    links = SimpleNamespace(acked=np.array([9.0, 6.0]), lost=np.array([1.0, 4.0]))
    parts = np.array([[1.0, 1.0, 0.9], [1.0, 1.0, 0.6]])
    wishes = [WISH, Objective(0.1, 0.1, 0.8)]
    reward = BoundedLoss(0.1, wishes)(parts, links)  # type: ignore[arg-type]
    np.testing.assert_allclose(reward, [0.99, 0.2 + 0.8 * 0.6 - PRICE * 0.3])


def test_the_loss_that_counts_is_that_of_many_intervals() -> None:
    score = BoundedLoss(0.1, [WISH])
    good, bad = (SimpleNamespace(acked=np.array([4.0 - lost]), lost=np.array([lost])) for lost in (0.0, 1.0))
    ones = np.ones((1, 3))
    for _ in range(40):
        assert score(ones, good) == 1.0  # type: ignore[arg-type]
    assert score(ones, bad) == 1.0  # type: ignore[arg-type]
    for _ in range(20):
        last = score(ones, bad)  # type: ignore[arg-type]
    lost, sent = (sum(packets * REMEMBERED**ago for ago in range(number)) for packets, number in ((1, 21), (4, 61)))
    assert last == pytest.approx(1 - PRICE * (lost / sent - 0.1))
