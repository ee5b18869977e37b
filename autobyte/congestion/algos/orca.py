"""Orca-style (after Abbasloo et al., SIGCOMM 2020): CUBIC's window, times a power of two that a network chooses.

It is not the original: features, network and training are those of MOCC here, with constant weights. In training,
CUBIC moves once in an interval instead of with every acknowledgement. The reward is Orca's, with factor 1 for the
loss: (throughput − loss) / round trip, over greatest throughput / least round trip.
"""

import math

import numpy as np

from autobyte.congestion.algos.aurora import INPUT
from autobyte.congestion.algos.cubic import BETA, FIRST, LEAST, C, Cubic
from autobyte.congestion.batch import LinkBatch
from autobyte.congestion.paths import Interval
from autobyte.congestion.policy import RatePolicy
from autobyte.congestion.senses import FEATURES, INPUTS, look
from autobyte.job import Floats

POWER, MOST_POWER = 0.1, 0.5  # of two: for an action of 1, and at most
FIRST_S = 0.05
MOST_WINDOW = 2.0  # times what queue and link hold, in training


def reward(parts: Floats, batch: LinkBatch) -> Floats:
    """Orca's reward of an interval on every link, shape [links].

    Args:
        parts: rewards of throughput, latency and loss, shape [links, 3].
        batch: the links.
    """
    gained: Floats = (parts[:, 0] - (1.0 - parts[:, 2])) * parts[:, 1]
    return gained


class WindowSteering:
    """CUBIC on many links, a step for each interval, and what actions make of its windows.

    Args:
        links: how many.
    """

    def __init__(self, links: int) -> None:
        self._window, self._most = np.full(links, FIRST), np.zeros(links)
        self._epoch_s = np.full(links, -math.inf)
        self._slow_start = np.ones(links, dtype=np.bool_)

    def steer(self, batch: LinkBatch, action: Floats) -> tuple[Floats, Floats | None]:
        """Let CUBIC move, and multiply; no pace."""
        shrinks = (batch.lost > 0) & (batch.now_s - self._epoch_s > batch.round_trip_s)
        back_s = np.cbrt(self._most * (1 - BETA) / C)
        since_s = np.where(np.isfinite(self._epoch_s), batch.now_s - self._epoch_s, 0.0)
        curve = np.minimum(C * (since_s + batch.round_trip_s - back_s) ** 3 + self._most, 1.5 * self._window)
        grown = np.where(self._slow_start, self._window + batch.acked, np.maximum(self._window, curve))
        self._most = np.where(shrinks, self._window, self._most)
        self._epoch_s = np.where(shrinks, batch.now_s, self._epoch_s)
        self._slow_start &= ~shrinks
        moved = np.where(shrinks, BETA * self._window, grown)
        ceiling = MOST_WINDOW * (batch.links.ways.queue + batch.capacity_per_s * batch.round_trip_s)
        self._window = np.clip(moved * power(action), LEAST, ceiling)
        return np.full(len(action), math.inf), self._window


def power(action: Floats) -> Floats:
    """What an action makes of a window."""
    factor: Floats = 2.0 ** np.clip(POWER * action, -MOST_POWER, MOST_POWER)
    return factor


class OrcaStyle:
    """CUBIC, whose window a policy multiplies after every interval.

    Args:
        policy: decides.
    """

    def __init__(self, policy: RatePolicy) -> None:
        self._cubic, self._policy = Cubic(), policy
        self.packets_per_s, self.window, self.interval_s = math.inf, self._cubic.window, FIRST_S
        self._inputs = np.zeros((1, INPUTS), dtype=np.float32)
        self._inputs[0, :3] = INPUT.weights

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        """CUBIC's."""
        self._cubic.on_ack(now_s, round_trip_s)
        self.window = self._cubic.window

    def on_loss(self, now_s: float, sent_s: float) -> None:
        """CUBIC's."""
        self._cubic.on_loss(now_s, sent_s)
        self.window = self._cubic.window

    def on_interval(self, interval: Interval) -> None:
        """The policy's."""
        if not interval.acked:
            return
        self.interval_s = interval.round_trip_s
        numbers = (
            interval.sent,
            interval.acked,
            interval.round_trip_s,
            interval.least_round_trip_s,
            interval.gradient,
        )
        self._inputs[0, 3:-FEATURES] = self._inputs[0, 3 + FEATURES :]
        self._inputs[0, -FEATURES:] = look(*(np.float64(number) for number in numbers))
        factor = float(power(self._policy.action(self._inputs).astype(np.float64))[0])
        self._cubic.window = max(LEAST, self._cubic.window * factor)
        self.window = self._cubic.window
