"""How well a policy serves objectives: its mean action on links that it has not seen, after it found its rate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autobyte.congestion.batch import LinkBatch, Steering
from autobyte.congestion.objectives import Objective
from autobyte.congestion.ranges import Draw
from autobyte.congestion.senses import INPUTS, Values
from autobyte.job import Floats

STEPS, SETTLED = 400, 200  # monitor intervals of a link, and those before the ones that count
UNSEEN = 1 << 33  # seeds of links from here on are never trained on


#: Rates that never change, over the link's: `best_steady` takes the best of them.
STEADY = (*np.arange(0.1, 0.9, 0.1), *np.arange(0.9, 1.0601, 0.005))


class Acting(Protocol):
    """Gives the mean action for inputs of shape [n, 33]."""

    def action(self, inputs: Values) -> Values:
        """Shape [n]."""
        ...


@dataclass(frozen=True)
class Served:
    """What an objective got, as means over links.

    Args:
        objective: that was wished for.
        reward: weighted.
        utilisation: acknowledged packets over what the link could serve.
        latency_ratio: least round trip there can be over the mean; 1 is no queue.
        loss: share of the packets.
    """

    objective: Objective
    reward: float
    utilisation: float
    latency_ratio: float
    loss: float


def serve(
    policy: Acting,
    objectives: Sequence[Objective],
    draw: Draw,
    *,
    links: int = 32,
    steps: int = STEPS,
    settled: int = SETTLED,
    seed: int = 0,
) -> list[Served]:
    """Let a policy serve every objective on the same links, with the same random losses and first rates.

    Args:
        policy: decides.
        objectives: each of them.
        draw: makes links.
        links: for each objective.
        steps: monitor intervals.
        settled: of them, before those that count.
        seed: of the links.
    """
    rewards, means = _by_link(policy, objectives, draw, links=links, steps=steps, settled=settled, seed=seed)
    return [
        Served(one, float(reward), *(float(value) for value in mean))
        for one, reward, mean in zip(objectives, rewards.mean(axis=1), means.mean(axis=1), strict=True)
    ]


def differences(
    policy: Acting,
    one: Objective,
    other: Objective,
    draw: Draw,
    *,
    links: int = 32,
    steps: int = STEPS,
    settled: int = SETTLED,
    seed: int = 0,
) -> Floats:
    """What one objective gets more of every link than another.

    Both meet the same links, losses and first rates. So what one of them gets depends on what the other gets, and the
    standard error of the two means' difference is that of these differences: the error of two independent means would
    count how links differ, which is the same for both. Other arguments are those of `serve`.

    Returns:
        Utilisation, latency ratio and loss of one, less the other's, shape [links, 3].
    """
    _, means = _by_link(policy, [one, other], draw, links=links, steps=steps, settled=settled, seed=seed)
    apart: Floats = means[0] - means[1]
    return apart


def _by_link(
    policy: Acting, objectives: Sequence[Objective], draw: Draw, *, links: int, steps: int, settled: int, seed: int
) -> tuple[Floats, Floats]:
    """Rewards, shape [objectives, links]; utilisation, latency ratio and loss, shape [objectives, links, 3]."""
    wished = [one for one in objectives for _ in range(links)]
    batch = _unseen(draw, links, copies=len(objectives), seed=seed)
    inputs = np.empty((len(wished), INPUTS), dtype=np.float32)
    inputs[:, :3] = [one.weights for one in wished]
    parts = np.zeros((len(wished), 3))
    for step in range(steps):
        if step == settled:
            batch.summary()
        inputs[:, 3:] = batch.seen
        now: Floats = batch.step(policy.action(inputs).astype(np.float64))
        parts += now * (step >= settled)
    rewards = (parts * inputs[:, :3]).sum(axis=1) / (steps - settled)
    return rewards.reshape(len(objectives), links), batch.summary().reshape(len(objectives), links, 3)


class _SteadySteering:
    """The rate is the link's times a factor, whatever the action."""

    def __init__(self, factors: Floats) -> None:
        self._factors = factors

    def steer(self, batch: LinkBatch, action: Floats) -> tuple[Floats, Floats | None]:
        return self._factors * batch.capacity_per_s, None


def best_steady(
    objectives: Sequence[Objective],
    draw: Draw,
    *,
    links: int = 32,
    steps: int = STEPS,
    settled: int = SETTLED,
    seed: int = 0,
) -> Floats:
    """What the best rate that never changes gets. It is no proven bound: a rate that changes may get more.

    It is chosen for each objective and link among `STEADY`, with knowledge of the link. Arguments are those of
    `serve`; links, losses and what counts are the same.

    Returns:
        The reward of each objective, shape [objectives].
    """
    factors = np.repeat(STEADY, links)
    batch = _unseen(draw, links, copies=len(STEADY), seed=seed, steering=_SteadySteering(factors))
    parts = np.zeros((len(factors), 3))
    for step in range(steps):
        parts += batch.step(np.zeros(len(factors))) * (step >= settled)
    means = parts.reshape(len(STEADY), links, 3) / (steps - settled)
    best: Floats = (means @ np.array([one.weights for one in objectives]).T).max(axis=0).mean(axis=0)
    return best


def _unseen(draw: Draw, links: int, *, copies: int, seed: int, steering: Steering | None = None) -> LinkBatch:
    """Links that were never trained on, each as many times as there are copies."""
    drawn = iter([draw(np.random.default_rng([UNSEEN + seed, link])) for link in range(links)])
    return LinkBatch(lambda rng: next(drawn), copies * links, seed=seed, copies=copies, steering=steering)
