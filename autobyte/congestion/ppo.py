"""Proximal policy optimisation (Schulman et al., arXiv:1707.06347): what an update does with what links answered."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from autobyte.congestion.batch import LinkBatch, Steering
from autobyte.congestion.model import ActorCritic
from autobyte.congestion.objectives import Objective
from autobyte.congestion.policy import RatePolicy
from autobyte.congestion.ranges import Draw
from autobyte.congestion.senses import INPUTS, Values
from autobyte.job import Floats

GAMMA, LAMBDA = 0.99, 0.95
CLIP = 0.2
ENTROPY = 5e-4  # the paper's 1 to 0.1 makes the spread grow until nothing is learned
EPOCHS, PARTS = 4, 4  # passes over what was seen, each in so many parts
VALUE_FACTOR, MOST_NORM = 0.5, 0.5

PROMISE, LEAST_SHARE = 0.3, 0.01  # ours: weight of what a rate promises, and the share of a link below which it ends

REMEMBERED = 0.95  # of what was lost before: a bound on loss looks at the last twenty intervals or so
PRICE = 10.0  # of loss above the bound, where all of a reward is 1

Scoring = Callable[[Floats, LinkBatch], Floats]


class BoundedLoss:
    """The weighted sum, less a price for loss above a bound; ours, not MOCC's.

    The weighted sum tolerates loss where its weight is small. The loss that counts is that of the last intervals: of
    one alone it says little, for an interval may have four packets.

    >>> gather(policy, draw, objectives, steps=128, seed=0, score=BoundedLoss(0.05, objectives))

    Args:
        bound: share of packets that may be lost for nothing.
        objectives: one for each link.
    """

    def __init__(self, bound: float, objectives: Sequence[Objective]) -> None:
        self._bound, self._weights = bound, np.array([one.weights for one in objectives])
        self._acked, self._lost = np.zeros(len(objectives)), np.zeros(len(objectives))

    def __call__(self, parts: Floats, batch: LinkBatch) -> Floats:
        """Rewards of an interval, shape [links]."""
        self._acked = REMEMBERED * self._acked + batch.acked
        self._lost = REMEMBERED * self._lost + batch.lost
        loss = self._lost / np.maximum(self._acked + self._lost, 1.0)
        reward: Floats = (parts * self._weights).sum(axis=1) - PRICE * np.maximum(loss - self._bound, 0.0)
        return reward


@dataclass(frozen=True, eq=False)
class Experience:
    """What was seen and done: arrays of shape [steps × links], inputs of [steps × links, 33].

    Advantages have mean 0 and deviation 1 for each objective.
    `reward` is the mean of the objectives' rewards in the second half of the steps.
    """

    inputs: Values
    actions: Values
    log_probabilities: Values
    advantages: Values
    returns: Values
    reward: float


def gather(
    policy: RatePolicy,
    draw: Draw,
    objectives: Sequence[Objective],
    *,
    steps: int,
    seed: int,
    score: Scoring | None = None,
    steering: Steering | None = None,
    promise: bool = True,
) -> Experience:
    """Let a policy act, at random around its mean, on new links.

    Args:
        policy: acts.
        draw: makes links.
        objectives: one for each link.
        steps: monitor intervals of each link.
        seed: of links and actions.
        score: makes one reward of three; the weighted sum by default.
        steering: what actions do; they change the pace by default.
        promise: advantages take in what rates promise.
    """
    links, rng = len(objectives), np.random.default_rng([seed, 1])
    batch = LinkBatch(draw, links, seed=seed, steering=steering)
    weights = np.array([one.weights for one in objectives])
    std = math.exp(policy.log_std)
    inputs = np.empty((steps + 1, links, INPUTS), dtype=np.float32)
    inputs[:, :, :3] = weights
    noise = rng.standard_normal((steps, links), dtype=np.float32)
    actions, rewards, shares = np.empty_like(noise), np.empty((steps, links)), np.empty((steps + 1, links))
    for step in range(steps):
        shares[step] = batch.pace / batch.capacity_per_s
        inputs[step, :, 3:] = batch.seen
        actions[step] = policy.action(inputs[step]) + std * noise[step]
        parts = batch.step(actions[step].astype(np.float64))
        rewards[step] = (parts * weights).sum(axis=1) if score is None else score(parts, batch)
    inputs[steps, :, 3:], shares[steps] = batch.seen, batch.pace / batch.capacity_per_s
    promises = promised(shares, weights[:, 0]) if promise else 0.0
    values = policy.value(inputs.reshape(-1, INPUTS)).reshape(steps + 1, links)
    advantages = advantages_of((1 - GAMMA) * (rewards + promises), values)
    returns = advantages + values[:-1]
    log_probabilities = -0.5 * noise**2 - policy.log_std - 0.5 * math.log(2 * math.pi)
    return Experience(
        inputs[:-1].reshape(-1, INPUTS),
        actions.ravel(),
        log_probabilities.ravel(),
        _evened(advantages, objectives).ravel(),
        returns.ravel(),
        float(rewards[steps // 2 :].mean()),
    )


def promised(shares: Floats, throughput: Floats) -> Floats:
    """What rates promise: a reward for coming closer to the link's rate, paid back for going away.

    Below the link's rate, intervals look the same at every rate, so that the critic cannot tell what a rate is worth.
    A higher one then brings only what it brings within the horizon of the advantages, which drowns where throughput
    has little weight, and most of all on an empty link. This is shaping by a potential, which leaves the best policy
    as it is (Ng, Harada, Russell, ICML 1999).

    Args:
        shares: rates over the link's, shape [steps + 1, links].
        throughput: its weight, shape [links].

    Returns:
        Shape [steps, links].
    """
    potential = throughput * (PROMISE * np.log(np.clip(shares, LEAST_SHARE, 1.0)))
    promises: Floats = (GAMMA * potential[1:] - potential[:-1]) / (1 - GAMMA)
    return promises


def advantages_of(rewards: Floats, values: Values) -> Values:
    """Generalised advantage estimates; rewards have shape [steps, links], values one step more."""
    advantages = np.zeros(values.shape)
    for step in reversed(range(len(rewards))):
        surprise = rewards[step] + GAMMA * values[step + 1] - values[step]
        advantages[step] = surprise + GAMMA * LAMBDA * advantages[step + 1]
    return advantages[:-1].astype(np.float32)


def _evened(advantages: Values, objectives: Sequence[Objective]) -> Values:
    """Advantages with mean 0 and deviation 1 for each objective: else those with great rewards drown the others."""
    evened = np.empty_like(advantages)
    for objective in set(objectives):
        own = [place for place, one in enumerate(objectives) if one == objective]
        evened[:, own] = (advantages[:, own] - advantages[:, own].mean()) / (advantages[:, own].std() + 1e-8)
    return evened


@contextmanager
def _one_thread() -> Iterator[None]:
    """The arrays are small: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_one_thread()
def update(model: ActorCritic, optimizer: torch.optim.Optimizer, seen: Experience, *, seed: int) -> None:
    """Improve a model by what was seen.

    Objectives that have as many links each weigh the same: with a new and an old one this is the loss of requirement
    replay, ½ (L(new) + L(old)) (MOCC, sec. 4.3).
    """
    rng = np.random.default_rng([seed, 2])
    columns = [
        torch.from_numpy(part)
        for part in (seen.inputs, seen.actions, seen.log_probabilities, seen.advantages, seen.returns)
    ]
    for _ in range(EPOCHS):
        for part in np.array_split(rng.permutation(len(seen.actions)), PARTS):
            chosen = torch.from_numpy(part)
            optimizer.zero_grad()
            _loss(model, *(column[chosen] for column in columns)).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), MOST_NORM)
            optimizer.step()
            model.clamp()


def _loss(
    model: ActorCritic, inputs: Tensor, actions: Tensor, log_before: Tensor, advantages: Tensor, returns: Tensor
) -> Tensor:
    """Clipped surrogate, error of the value, and a bonus for entropy."""
    distance = (actions - model.actor(inputs)) / model.log_std.exp()
    log_now = -0.5 * distance**2 - model.log_std - 0.5 * math.log(2 * math.pi)
    ratio = (log_now - log_before).exp()
    gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
    error = ((model.critic(inputs) - returns) ** 2).mean()
    loss: Tensor = -gain + VALUE_FACTOR * error - ENTROPY * model.log_std.sum()
    return loss
