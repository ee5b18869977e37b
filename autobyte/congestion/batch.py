"""Many links to learn on at once: an action for each, features and three rewards back; everything in arrays."""

import math
from typing import Protocol

import numpy as np

from autobyte.congestion.packets import ACKED, LOST, SENT, TR, TT, CompiledLinks, R, T
from autobyte.congestion.paths import Bottleneck, Route
from autobyte.congestion.ranges import Draw
from autobyte.congestion.senses import FEATURES, HISTORY, Values, length_s, look, next_pace
from autobyte.job import Floats

FIRST_PACE = (0.1, 3.0)  # of the link's rate, the logarithm uniform; the release: 0.3 to 1.5, uniform

MOST_PACE = 3.0  # times the link's rate; the release: at most twice the greatest of its range


class Steering(Protocol):
    """What actions do to flows, from one interval to the next."""

    def steer(self, batch: "LinkBatch", action: Floats) -> tuple[Floats, Floats | None]:
        """Paces (packets/s) and windows (packets; None: unlimited) of the next interval, shape [links]."""
        ...


class PaceSteering:
    """An action changes the pace: MOCC's and Aurora's."""

    def steer(self, batch: "LinkBatch", action: Floats) -> tuple[Floats, Floats | None]:
        """A positive action multiplies, a negative one divides."""
        return np.minimum(next_pace(batch.pace, action), MOST_PACE * batch.capacity_per_s), None


class LinkBatch:
    """Links side by side, with one flow that is controlled on each.

    >>> batch = LinkBatch(range_of("paper").draw, 64, seed=1)
    >>> parts = batch.step(np.zeros(64))  # shape [64, 3]
    >>> batch.seen.shape
    (64, 30)

    Args:
        draw: makes a link.
        links: how many.
        seed: of links, losses and first rates.
        copies: the links are so many times the same ones, with the same losses and first rates.
        steering: what actions do.
    """

    def __init__(
        self, draw: Draw, links: int, *, seed: int, copies: int = 1, steering: Steering | None = None
    ) -> None:
        self._steering = PaceSteering() if steering is None else steering
        different = links // copies
        rng = np.random.default_rng([seed, different])
        drawn = [draw(rng) for _ in range(different)] * copies
        self.bottlenecks: list[Bottleneck] = [bottleneck for bottleneck, _ in drawn]
        routes: list[list[Route]] = [[route] for _, route in drawn]
        self.links = CompiledLinks(
            self.bottlenecks, routes, seeds=rng.integers(1 << 40, size=different).tolist() * copies
        )
        times_s, self._rates = self.links.ways.times_s, self.links.ways.rates
        self._from_s, self._to_s = times_s, np.append(times_s[:, 1:], np.full((links, 1), np.inf), axis=1)
        self._base_s = self.links.ways.round_trip_s[:, 0]
        self.round_trip_s = self._base_s.copy()
        first = np.exp(rng.uniform(math.log(FIRST_PACE[0]), math.log(FIRST_PACE[1]), different))
        self.pace = self._rates[:, 0] * np.tile(first, copies)
        self.seen: Values = np.zeros((links, HISTORY * FEATURES), dtype=np.float32)
        self.totals = np.zeros(
            (links, 4)
        )  # packets acknowledged, lost, that could be served; latency ratio × seconds
        self.seconds = np.zeros(links)
        self.acked, self.lost, self.now_s = np.zeros(links), np.zeros(links), np.zeros(links)  # of the last interval

    def step(self, action: Floats) -> Floats:
        """Change every rate, let an interval pass, and give the rewards of throughput, latency and loss.

        Args:
            action: shape [links].

        Returns:
            Each from 0 to 1, shape [links, 3]: acknowledged over what the link could serve; least round trip there
            can be over the mean; packets not lost.
        """
        self.pace, window = self._steering.steer(self, action)
        traffic = self.links.traffic
        start_s = traffic.now_s.copy()
        end_s = start_s + length_s(self.round_trip_s, self.pace)
        self.links.run(self.pace[:, None], end_s, window=None if window is None else window[:, None])
        traffic = self.links.traffic
        counts = traffic.counts[:, 0]
        acked, lost = counts[:, ACKED], counts[:, LOST]
        heard = acked > 0
        self.round_trip_s = np.where(heard, counts[:, R] / np.maximum(acked, 1.0), self.round_trip_s)
        spread = acked * counts[:, TT] - counts[:, T] ** 2
        sloped = (acked > 1) & (spread > 1e-12 * acked * counts[:, TT])
        rise = acked * counts[:, TR] - counts[:, T] * counts[:, R]
        gradient = np.where(sloped, rise / np.where(sloped, spread, 1.0), 0.0)
        least_s = np.minimum(traffic.least_s[:, 0], self.round_trip_s)
        self.seen = np.roll(self.seen, -FEATURES, axis=1)
        self.seen[:, -FEATURES:] = look(counts[:, SENT], acked, self.round_trip_s, least_s, gradient)
        spans_s = np.minimum(self._to_s, end_s[:, None]) - np.maximum(self._from_s, start_s[:, None])
        capacity = (np.clip(spans_s, 0.0, None) * self._rates).sum(axis=1)
        seconds = end_s - start_s
        service_s = seconds / capacity
        parts = np.empty((len(acked), 3))
        parts[:, 0] = np.minimum(acked / capacity, 1.0)
        parts[:, 1] = np.minimum((self._base_s + service_s) / self.round_trip_s, 1.0)
        parts[:, 2] = 1.0 - lost / np.maximum(acked + lost, 1.0)
        self.totals += np.stack([acked, lost, capacity, parts[:, 1] * seconds], axis=1)
        self.seconds += seconds
        self.acked, self.lost, self.now_s = acked.copy(), lost.copy(), end_s
        traffic.began_s[:, 0] = end_s
        counts[:] = 0.0
        return parts

    @property
    def capacity_per_s(self) -> Floats:
        """Packets per second that each link can serve at first, shape [links]."""
        first: Floats = self._rates[:, 0]
        return first

    def summary(self) -> Floats:
        """Since the last call: utilisation, mean latency ratio and loss of every link, shape [links, 3]."""
        acked, lost, capacity, latency = self.totals.T
        done = np.stack([acked / capacity, latency / self.seconds, lost / np.maximum(acked + lost, 1.0)], axis=1)
        self.totals[:], self.seconds[:] = 0.0, 0.0
        return done
