"""Adaptation moves a policy to a new objective; its steps are reproducible."""

import pytest

from autobyte.congestion.adapt import adapt, adapted
from autobyte.congestion.model import ActorCritic
from autobyte.congestion.objectives import Objective, landmarks
from autobyte.congestion.ranges import range_of
from autobyte.congestion.stored import digest
from autobyte.errors import InputError

WISH, DRAW = Objective(0.75, 0.15, 0.1), range_of("paper").draw
START = ActorCritic(seed=1).policy()


def test_updates_follow_each_other_and_are_reproducible() -> None:
    steps = adapted(START, WISH, DRAW, pool=landmarks(), seed=4)
    next(steps)
    done: list[tuple[int, int]] = []
    policy = adapt(START, WISH, DRAW, pool=landmarks(), updates=2, seed=4, told=lambda *now: done.append(now))
    assert digest(policy) == digest(next(steps)) != digest(START)
    assert done == [(1, 2), (2, 2)]


def test_replay_takes_an_old_objective_in() -> None:
    with_replay, without = (
        adapt(START, WISH, DRAW, pool=landmarks(), updates=1, replay=replay) for replay in (True, False)
    )
    assert digest(with_replay) != digest(without)
    # without replay the pool has no say, and a pool of the new objective alone is no replay
    alone = adapt(START, WISH, DRAW, pool=[WISH], updates=1, replay=True)
    assert digest(without) == digest(alone)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="needs at least one old objective in its pool"):
        adapt(START, WISH, DRAW, pool=[], updates=1)
    with pytest.raises(InputError, match="updates must be at least 1, got 0"):
        adapt(START, WISH, DRAW, pool=landmarks(), updates=0)
