"""A short real training, one that is killed and goes on, and the order of the objectives."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autobyte.congestion.evaluate import serve
from autobyte.congestion.halfway import load_half
from autobyte.congestion.model import ActorCritic
from autobyte.congestion.objectives import BOOTSTRAPS, Objective, landmarks, traversal
from autobyte.congestion.policy import RatePolicy
from autobyte.congestion.ranges import range_of
from autobyte.congestion.stored import digest
from autobyte.congestion.train import WINDOW, Recipe, specialist, train
from autobyte.errors import FileError, InputError

SHORT = Recipe(mode="mixed", iterations=14, links=36, steps=48, seed=1)
WISHES = (Objective(0.8, 0.1, 0.1), Objective(0.1, 0.8, 0.1))


def test_a_short_training_learns() -> None:
    recipe = replace(SHORT, iterations=60)  # what rates promise is learned first, and costs reward until then
    rewards: list[float] = []
    looks: list[RatePolicy] = []
    policy = train(
        recipe, told=lambda done, total, reward: rewards.append(reward), look=lambda done, now: looks.append(now)
    )
    assert [digest(looks[place]) == digest(policy) for place in (0, -1)] == [False, True]
    assert len(rewards) == 60
    before = serve(ActorCritic(seed=1).policy(), WISHES, range_of("paper").draw, links=12, steps=120, settled=60)
    after = serve(policy, WISHES, range_of("paper").draw, links=12, steps=120, settled=60)
    assert np.mean([one.reward for one in after]) > np.mean([one.reward for one in before]) + 0.05
    assert np.mean(rewards[-5:]) > np.mean(rewards[:5])


def test_a_training_that_was_killed_ends_where_it_would_have(tmp_path: Path) -> None:
    recipe, keep = replace(SHORT, iterations=24, links=12, steps=16), tmp_path / "half.npz"

    def kill(done: int, total: int, reward: float) -> None:
        if done == 22:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, keep=keep, told=kill)
    left: list[int] = []
    resumed = train(recipe, keep=keep, told=lambda done, total, reward: left.append(done))
    assert left == [21, 22, 23, 24]
    assert digest(resumed) == digest(train(recipe))
    half = load_half(keep, recipe=repr(recipe))
    assert half.iteration == 24
    assert 0 < half.reward < 1
    assert digest(train(recipe, keep=keep, told=kill)) == digest(resumed)  # a kill before the policy is saved
    assert load_half(keep, recipe=repr(recipe)).cpu_s == half.cpu_s > 0


def test_a_state_of_another_training_is_refused(tmp_path: Path) -> None:
    keep = tmp_path / "half.npz"
    recipe = replace(SHORT, iterations=22, links=2, steps=2)

    def kill(done: int, total: int, reward: float) -> None:
        if done == 21:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, keep=keep, told=kill)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, keep=keep, told=lambda done, total, reward: kill(21, total, reward))
    with pytest.raises(FileError, match=r"is of another training .* remove it to start this one"):
        train(replace(recipe, seed=9), keep=keep)
    keep.write_bytes(b"nothing")
    with pytest.raises(FileError, match="holds no weights of this project"):
        train(recipe, keep=keep)


def test_the_two_phases_go_from_the_bootstraps_to_all_landmarks() -> None:
    recipe = Recipe(iterations=100, links=24)
    first = [recipe.objectives(iteration) for iteration in range(25)]
    assert all(set(objectives) == set(BOOTSTRAPS) for objectives in first)
    order, second = traversal(), [recipe.objectives(iteration) for iteration in range(25, 100)]
    for place, objectives in enumerate(second):
        assert set(objectives) == {order[(place + ahead) % 36] for ahead in range(WINDOW)}
    assert set().union(*second) == set(landmarks())


def test_the_other_modes() -> None:
    mixed = Recipe(mode="mixed", links=72).objectives(5)
    assert all(mixed.count(one) == 2 for one in landmarks())
    assert set(specialist(WISHES[0], SHORT).objectives(3)) == {WISHES[0]}
    assert len(set(Recipe(mode="aurora", links=4).objectives(0))) == 1


def test_a_bound_on_loss_changes_what_is_learned() -> None:
    recipe = replace(SHORT, iterations=1, links=4, steps=8)
    bounded = replace(recipe, loss_bound=0.0)
    assert digest(train(recipe)) != digest(train(bounded))


def test_training_starts_from_given_weights() -> None:
    start = ActorCritic(seed=7).policy()
    recipe = replace(SHORT, iterations=1, links=2, steps=2)
    moved = train(recipe, start=start)
    assert np.abs(moved.arrays["actor.wish.weight"] - start.arrays["actor.wish.weight"]).max() < 0.1
    assert digest(moved) != digest(start)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"mode": "two-phases"}, "unknown mode 'two-phases'; did you mean 'two-phase'?"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"mode": "individual"}, "mode individual learns one objective"),
        ({"objective": WISHES[0]}, "mode individual learns one objective"),
        ({"loss_bound": 5.0}, "loss_bound must be a share from 0 to below 1, got 5.0"),
        ({"mode": "aurora", "loss_bound": 0.05}, "mode aurora has a reward of its own"),
        ({"ranges": ()}, "links must come from a range, got none"),
        ({"links": 1, "steps": 1}, "1 links of 1 steps are too few for the"),
        ({"mode": "two-phase", "grid": 4}, "is no landmark of a grid of 4 steps"),
        ({"grid": 2}, "a grid of 2 steps has no point inside the simplex"),
        ({"ranges": ("paper", "moon")}, "unknown range 'moon'"),
    ],
)
def test_bad_recipes_are_refused(change, complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        replace(SHORT, **change)
