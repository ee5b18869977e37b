"""Offline training, in the two phases of MOCC (sec. 4.2), all objectives mixed, or one alone.

An iteration plays a few hundred monitor intervals on new links, and makes one update of what was seen. What is random
in it depends on seed and iteration alone, so that a training that was killed goes on as if it never was.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from autobyte.congestion.algos import aurora, orca
from autobyte.congestion.halfway import HalfTraining, load_half, save_half
from autobyte.congestion.model import ActorCritic
from autobyte.congestion.objectives import BOOTSTRAPS, Objective, landmarks, traversal
from autobyte.congestion.policy import RatePolicy
from autobyte.congestion.ppo import PARTS, BoundedLoss, Scoring, gather, update
from autobyte.congestion.ranges import range_of
from autobyte.errors import InputError, unknown

MODES = ("two-phase", "mixed", "individual", "aurora", "orca-style")
OWN_REWARD = ("aurora", "orca-style")  # these serve no objective of MOCC
BOOTSTRAP_SHARE = 0.25  # of the iterations
FIRST_RATE, LAST_RATE = 1e-3, 1e-4  # of learning
WINDOW = 12  # neighbours that an update takes in: as many as a bootstrap reaches
EVERY = 20  # iterations between two states that a killed training goes on from

Told = Callable[[int, int, float], None]
Look = Callable[[int, RatePolicy], None]


@dataclass(frozen=True)
class Recipe:
    """All that a training is made of.

    Args:
        mode: two-phase, mixed (all landmarks at once), individual (one objective), aurora or
            orca-style (rewards of their own).
        iterations: updates.
        links: played at the same time.
        steps: monitor intervals of each link in an iteration.
        seed: of everything random.
        ranges: names of the ranges that links come from, in turn.
        objective: the only one, for mode individual.
        grid: steps of the grid of landmarks.
        preference: the network has a layer for the objective.
        loss_bound: share of lost packets above which reward is taken away; ours, see `BoundedLoss`.

    Raises:
        InputError: an unknown mode or range, no range, numbers that are too small, or a grid that does not have the
            bootstraps.
    """

    mode: str = "two-phase"
    iterations: int = 600
    links: int = 72
    steps: int = 128
    seed: int = 0
    ranges: tuple[str, ...] = ("paper",)
    objective: Objective | None = None
    grid: int = 10
    preference: bool = True
    loss_bound: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown("mode", self.mode, MODES)
        for name in ("iterations", "links", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if (self.objective is None) == (self.mode == "individual"):
            raise InputError("mode individual learns one objective, and the others learn the landmarks")
        if self.links * self.steps < PARTS:
            raise InputError(
                f"{self.links} links of {self.steps} steps are too few for the {PARTS} parts of an update; play more"
            )
        if self.loss_bound is not None and not 0 <= self.loss_bound < 1:
            raise InputError(f"loss_bound must be a share from 0 to below 1, got {self.loss_bound}")
        if self.loss_bound is not None and self.mode in OWN_REWARD:
            raise InputError(f"mode {self.mode} has a reward of its own, to which loss_bound does not apply")
        if not self.ranges:
            raise InputError("links must come from a range, got none; write ranges=('paper',)")
        for name in self.ranges:
            range_of(name)
        if self.mode == "two-phase":
            traversal(steps=self.grid)
        landmarks(self.grid)

    @property
    def environment_steps(self) -> int:
        """Monitor intervals in all."""
        return self.iterations * self.links * self.steps

    def objectives(self, iteration: int) -> tuple[Objective, ...]:
        """The objective of each link in an iteration."""
        match self.mode:
            case "individual":
                assert self.objective is not None
                return (self.objective,) * self.links
            case "aurora" | "orca-style":
                return (aurora.INPUT,) * self.links
            case "mixed":
                order = landmarks(self.grid)
                return tuple(order[(iteration + link) % len(order)] for link in range(self.links))
        first = round(BOOTSTRAP_SHARE * self.iterations)
        if iteration < first:  # phase 1: a model for all bootstraps
            return tuple(BOOTSTRAPS[link % len(BOOTSTRAPS)] for link in range(self.links))
        order = traversal(steps=self.grid)  # phase 2: neighbour by neighbour, a few steps each, in a cycle
        here = iteration - first
        around = [order[(here + ahead) % len(order)] for ahead in range(WINDOW)]
        return tuple(around[link % WINDOW] for link in range(self.links))

    def to_json(self) -> dict[str, object]:
        """What the file beside the weights says."""
        return asdict(self) | {"environment_steps": self.environment_steps}


def train(
    recipe: Recipe,
    *,
    start: RatePolicy | None = None,
    keep: Path | None = None,
    told: Told | None = None,
    look: Look | None = None,
) -> RatePolicy:
    """Train a policy.

    Args:
        recipe: what is learned, on what, how long.
        start: weights to begin with, in place of random ones.
        keep: file for states to go on from; the last one stays, and the caller removes it once the policy is safe.
        told: is called after each iteration with the number done, all, and the mean reward.
        look: is called after each iteration with the number done and the policy as it is then.

    Raises:
        FileError: the file to keep cannot be written, or is of another recipe.
    """
    model = ActorCritic(preference=recipe.preference, seed=recipe.seed) if start is None else ActorCritic.of(start)
    optimizer = torch.optim.Adam(model.parameters(), lr=FIRST_RATE)
    half = HalfTraining(0, {})
    if keep is not None and keep.exists():
        half = load_half(keep, recipe=repr(recipe))
        half.put(model, optimizer)
    began_s, began_cpu_s = time.perf_counter() - half.seconds, time.process_time() - half.cpu_s
    for done in range(half.iteration + 1, recipe.iterations + 1):
        reward = _learn(model, optimizer, recipe, done - 1)
        if told is not None:
            told(done, recipe.iterations, reward)
        if look is not None:
            look(done, model.policy())
        if keep is not None and (done % EVERY == 0 or done == recipe.iterations):
            seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
            now = HalfTraining.of(model, optimizer, done, reward=reward, cpu_s=cpu_s, seconds=seconds)
            save_half(keep, now, recipe=repr(recipe))
    return model.policy()


def _learn(model: ActorCritic, optimizer: torch.optim.Optimizer, recipe: Recipe, iteration: int) -> float:
    """Make one iteration, and give its mean reward."""
    for group in optimizer.param_groups:
        group["lr"] = FIRST_RATE + (LAST_RATE - FIRST_RATE) * iteration / recipe.iterations
    draw = range_of(recipe.ranges[iteration % len(recipe.ranges)]).draw
    seed, objectives = recipe.seed * 1_000_003 + iteration, recipe.objectives(iteration)
    seen = gather(
        model.policy(),
        draw,
        objectives,
        steps=recipe.steps,
        seed=seed,
        score=_score(recipe, objectives),
        steering=orca.WindowSteering(recipe.links) if recipe.mode == "orca-style" else None,
        promise=recipe.mode not in OWN_REWARD,
    )
    update(model, optimizer, seen, seed=seed)
    return float(seen.reward)


def _score(recipe: Recipe, objectives: Sequence[Objective]) -> Scoring | None:
    """What makes one reward of three; None: the weighted sum."""
    if recipe.loss_bound is not None:
        return BoundedLoss(recipe.loss_bound, objectives)
    own: dict[str, Scoring] = {"aurora": aurora.reward, "orca-style": orca.reward}
    return own.get(recipe.mode)


def specialist(objective: Objective, recipe: Recipe) -> Recipe:
    """The recipe for one objective alone, all else being equal."""
    return replace(recipe, mode="individual", objective=objective)
