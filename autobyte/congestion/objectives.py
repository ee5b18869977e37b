"""What an application wishes of its traffic: weights of throughput, latency and loss, and the order to learn them in.

Terms and numbers are those of MOCC (arXiv:2107.01427): the landmarks are the points of a grid inside the simplex, two
landmarks are neighbours if one weight is the same and the other two differ by one step of the grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autobyte.errors import InputError
from autobyte.job import Floats
from autobyte.weights import check_weights, parse_weights, show_weights

NAMES = ("throughput", "latency", "loss")
STEPS = 10  # of the grid: 36 points inside the simplex
EXAMPLE = (0.8, 0.1, 0.1)


@dataclass(frozen=True, order=True)
class Objective:
    """Weights of throughput, latency and loss; they sum to 1.

    >>> Objective(0.8, 0.1, 0.1).reward(np.array([0.9, 0.5, 1.0]))
    0.87

    Raises:
        InputError: a weight is negative or no number, or they do not sum to 1.
    """

    throughput: float
    latency: float
    loss: float

    def __post_init__(self) -> None:
        check_weights(self.weights, NAMES, example=EXAMPLE)

    @property
    def weights(self) -> tuple[float, float, float]:
        """The three, in the order of `NAMES`."""
        return self.throughput, self.latency, self.loss

    def reward(self, parts: Floats) -> float:
        """The weighted sum of the three rewards (MOCC, sec. 4.1), each from 0 to 1."""
        return float(np.dot(self.weights, parts))

    def __str__(self) -> str:
        return show_weights(self.weights)


def parse_objective(text: str) -> Objective:
    """Read weights as people write them, in any order or without names.

    >>> str(parse_objective("loss=0.1,throughput=0.8,latency=0.1")), str(parse_objective("0.8,0.1,0.1"))
    ('⟨0.8, 0.1, 0.1⟩', '⟨0.8, 0.1, 0.1⟩')

    Raises:
        InputError: a name that is missing, unknown or there twice, or weights that are none.
    """
    return Objective(*parse_weights(text, NAMES, example=EXAMPLE))


def landmarks(steps: int = STEPS) -> tuple[Objective, ...]:
    """The grid points inside the simplex: (steps-1)(steps-2)/2 of them, 36 by default, in ascending order.

    Raises:
        InputError: fewer than three steps, which leave no point inside.
    """
    if steps < len(NAMES):
        raise InputError(f"a grid of {steps} steps has no point inside the simplex; at least {len(NAMES)}")
    pairs = ((first, second) for first in range(1, steps) for second in range(1, steps - first))
    return tuple(_at(first, second, steps) for first, second in pairs)


def _at(first: int, second: int, steps: int) -> Objective:
    return Objective(first / steps, second / steps, (steps - first - second) / steps)


BOOTSTRAPS = (Objective(0.6, 0.3, 0.1), Objective(0.1, 0.6, 0.3), Objective(0.3, 0.1, 0.6))  # MOCC, sec. 4.2


def distance(one: Objective, other: Objective) -> float:
    """How far two objectives are apart: half the sum of the differences of their weights."""
    return sum(abs(a - b) for a, b in zip(one.weights, other.weights, strict=True)) / 2


def are_neighbours(one: Objective, other: Objective, *, steps: int = STEPS) -> bool:
    """Whether one weight is the same, and the other two differ by a step of the grid."""
    apart = sorted(round(abs(a - b) * steps, 6) for a, b in zip(one.weights, other.weights, strict=True))
    return apart == [0.0, 1.0, 1.0]


def traversal(bootstraps: Sequence[Objective] = BOOTSTRAPS, *, steps: int = STEPS) -> tuple[Objective, ...]:
    """The order in which the landmarks are learned: each once, every bootstrap before what is reached from it.

    From each bootstrap in turn, its share of the landmarks that are left, the nearest first; each is a neighbour of
    one that came before it from the same bootstrap, as far as there is one left.

    Raises:
        InputError: a bootstrap that is no landmark, or is there twice.
    """
    left = list(landmarks(steps))
    for start in bootstraps:
        if start not in left:
            raise InputError(f"bootstrap {start} is no landmark of a grid of {steps} steps, or is there twice")
        left.remove(start)
    share = -(-(len(left) + len(bootstraps)) // len(bootstraps))
    order: list[Objective] = []
    for start in bootstraps:
        region = [start]
        while left and len(region) < share:
            reached = [one for one in left if any(are_neighbours(one, each, steps=steps) for each in region)]
            nearest = min(reached or left, key=lambda one: (round(distance(start, one), 6), one))
            region.append(nearest)
            left.remove(nearest)
        order += region
    return tuple(order)


def sample_objectives(number: int, *, seed: int = 0, least: float = 0.05) -> tuple[Objective, ...]:
    """Objectives drawn uniformly from the simplex, every weight at least `least`; none is a landmark.

    Raises:
        InputError: a least weight that three of them cannot have.
    """
    if not 0 <= least < 1 / len(NAMES):
        raise InputError(f"the least weight must be from 0 to below 1/3, got {least}")
    drawn = least + (1 - len(NAMES) * least) * np.random.default_rng(seed).dirichlet(np.ones(len(NAMES)), number)
    return tuple(Objective(float(first), float(second), float(1 - first - second)) for first, second, _ in drawn)
