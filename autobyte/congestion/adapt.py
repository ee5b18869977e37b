"""Online adaptation to a new objective, with requirement replay (MOCC, sec. 4.3).

Each update takes in the new objective and one that is drawn from the pool of old ones, in equal parts:
½ (L(new) + L(old)). Without replay the new one is alone, and old ones are forgotten.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from autobyte.congestion.model import ActorCritic
from autobyte.congestion.objectives import Objective
from autobyte.congestion.policy import RatePolicy
from autobyte.congestion.ppo import gather, update
from autobyte.congestion.ranges import Draw
from autobyte.errors import InputError

RATE = 3e-4  # of learning
LINKS, STEPS = 64, 128  # that an update takes in


def adapted(
    policy: RatePolicy,
    objective: Objective,
    draw: Draw,
    *,
    pool: Sequence[Objective],
    seed: int = 0,
    replay: bool = True,
    rate: float = RATE,
    links: int = LINKS,
) -> Iterator[RatePolicy]:
    """Adapt a policy, update after update, without end.

    >>> for number, policy in enumerate(adapted(shipped(), wish, draw, pool=landmarks())):
    ...     if number == 10:
    ...         break

    Args:
        policy: to begin with.
        objective: new.
        draw: makes links.
        pool: old objectives; after some adaptations, the objectives of these, too.
        seed: of everything random.
        replay: an old objective takes part in every update.
        rate: of learning.
        links: that an update takes in, half of them for the old objective.

    Raises:
        InputError: replay from an empty pool.
    """
    if replay and not pool:
        raise InputError("requirement replay needs at least one old objective in its pool")
    model, rng = ActorCritic.of(policy), np.random.default_rng([seed, 3])
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    number = 0
    while True:
        old = pool[int(rng.integers(len(pool)))] if replay else objective
        objectives = [objective, old] * (links // 2)
        key = seed * 1_000_003 + number
        update(model, optimizer, gather(model.policy(), draw, objectives, steps=STEPS, seed=key), seed=key)
        number += 1
        yield model.policy()


def adapt(
    policy: RatePolicy,
    objective: Objective,
    draw: Draw,
    *,
    pool: Sequence[Objective],
    updates: int,
    seed: int = 0,
    replay: bool = True,
    told: Callable[[int, int], None] | None = None,
) -> RatePolicy:
    """Adapt a policy by a number of updates.

    Raises:
        InputError: fewer than one update, or replay from an empty pool.
    """
    if updates < 1:
        raise InputError(f"updates must be at least 1, got {updates}")
    steps = adapted(policy, objective, draw, pool=pool, seed=seed, replay=replay)
    for done in range(1, updates + 1):
        policy = next(steps)
        if told is not None:
            told(done, updates)
    return policy
