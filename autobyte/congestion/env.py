"""The link as a Gymnasium environment with a vector reward, for other libraries; ours learns from `batch.py`."""

from typing import Any

import numpy as np

from autobyte.congestion.batch import LinkBatch
from autobyte.congestion.objectives import Objective
from autobyte.congestion.ranges import range_of
from autobyte.congestion.senses import INPUTS, MOST_ACTION, Values
from autobyte.errors import needs
from autobyte.job import Floats

with needs("congestion", what="the environment"):
    import gymnasium
    from gymnasium import spaces

STEPS = 400  # of an episode, as in the release


class CongestionEnv(gymnasium.Env[Values, Floats]):
    """One flow on a link that is drawn anew for every episode.

    The observation has the weights of the objective and thirty features, the action is one number, and the reward has
    three: throughput, latency, loss. It follows MO-Gymnasium: `reward_space` describes the reward, and its
    `LinearReward` makes a scalar of it.

    >>> env = CongestionEnv(Objective(0.8, 0.1, 0.1))
    >>> seen, _ = env.reset(seed=0)
    >>> seen, reward, terminated, truncated, info = env.step(np.zeros(1))

    Args:
        objective: what the flow wishes.
        links: name of a range of links.
        steps: monitor intervals in an episode.

    Raises:
        InputError: no such range.
        MissingExtra: Gymnasium is not installed.
    """

    def __init__(self, objective: Objective, *, links: str = "paper", steps: int = STEPS) -> None:
        self._draw, self._steps, self._done = range_of(links).draw, steps, 0
        self._weights = np.array(objective.weights, dtype=np.float32)
        self._batch: LinkBatch | None = None
        self.observation_space = spaces.Box(-np.inf, np.inf, (INPUTS,), np.float32)
        self.action_space = spaces.Box(-MOST_ACTION, MOST_ACTION, (1,), np.float64)
        self.reward_space = spaces.Box(0.0, 1.0, (3,), np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Values, dict[str, Any]]:
        """Draw a link, and begin."""
        super().reset(seed=seed)
        self._batch = LinkBatch(self._draw, 1, seed=int(self.np_random.integers(1 << 32)))
        self._done = 0
        return self._seen(self._batch), {}

    def step(self, action: Floats) -> tuple[Values, Any, bool, bool, dict[str, Any]]:
        """Let one interval pass; an episode is never terminated, only truncated."""
        assert self._batch is not None, "reset comes first"
        parts = self._batch.step(np.asarray(action, dtype=np.float64).reshape(1))[0]
        self._done += 1
        about = {"packets_per_s": float(self._batch.pace[0]), "round_trip_s": float(self._batch.round_trip_s[0])}
        return self._seen(self._batch), parts, False, self._done >= self._steps, about

    def _seen(self, batch: LinkBatch) -> Values:
        return np.concatenate([self._weights, batch.seen[0]])
