"""What stands beside trained weights: how they were made, and how good they are."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobyte.congestion.evaluate import Acting, Served, serve
from autobyte.congestion.objectives import Objective, landmarks, sample_objectives
from autobyte.congestion.ranges import range_of

SHOWN = (Objective(0.8, 0.1, 0.1), Objective(0.4, 0.5, 0.1), Objective(0.1, 0.8, 0.1), Objective(0.1, 0.1, 0.8))
UNSEEN = 100  # objectives that are no landmarks


def scores(policy: Acting, ranges: Sequence[str] = ("paper", "paper-test"), *, links: int = 8) -> dict[str, Any]:
    """Rewards and their parts on links that were never trained on, by range.

    Args:
        policy: decides.
        ranges: names of ranges.
        links: for each objective.
    """
    found: dict[str, Any] = {}
    for name in ranges:
        draw = range_of(name).draw
        groups = {
            "landmarks": serve(policy, landmarks(), draw, links=links),
            "unseen": serve(policy, sample_objectives(UNSEEN), draw, links=links),
        }
        shown = serve(policy, SHOWN, draw, links=4 * links)
        found[name] = {group: _of_all(served) for group, served in groups.items()}
        found[name]["objectives"] = [row(served) for served in shown]
    return found


def row(served: Served) -> dict[str, Any]:
    """One objective's numbers, as JSON has them."""
    numbers = ("reward", "utilisation", "latency_ratio", "loss")
    return {"objective": list(served.objective.weights)} | {name: round(getattr(served, name), 4) for name in numbers}


def _of_all(served: Sequence[Served]) -> dict[str, float]:
    rewards = [one.reward for one in served]
    return {
        "reward": round(float(np.mean(rewards)), 4),
        "reward_p5": round(float(np.percentile(rewards, 5)), 4),
        "loss": round(float(np.mean([one.loss for one in served])), 4),
    }
