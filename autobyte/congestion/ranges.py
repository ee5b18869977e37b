"""Links that are drawn at random: the paper's ranges, the release's, and those of a data centre."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autobyte.congestion.paths import PACKET_BYTES, Bottleneck, RateProfile, Route
from autobyte.errors import InputError, unknown

MBIT = 1e6 / 8 / PACKET_BYTES  # packets per second


@dataclass(frozen=True)
class LinkRange:
    """From where links are drawn, uniformly unless said otherwise.

    Args:
        packets_per_s: least and greatest rate.
        one_way_s: least and greatest delay, half of a round trip.
        queue_packets: least and greatest queue.
        loss: least and greatest share that is lost at random.
        exponential_queue: the logarithm of the queue is uniform.
    """

    packets_per_s: tuple[float, float]
    one_way_s: tuple[float, float]
    queue_packets: tuple[int, int]
    loss: tuple[float, float]
    exponential_queue: bool = False

    def draw(self, rng: np.random.Generator) -> tuple[Bottleneck, Route]:
        """One link, and the way of the one flow on it."""
        low, high = self.queue_packets
        queue = (
            low - 1 + math.exp(rng.uniform(0, math.log(high))) if self.exponential_queue else rng.uniform(low, high)
        )
        profile = RateProfile.steady(rng.uniform(*self.packets_per_s))
        return Bottleneck(profile, round(queue), rng.uniform(*self.loss)), Route(2 * rng.uniform(*self.one_way_s))


RANGES = {
    # MOCC, training; its release; MOCC, tests
    "paper": LinkRange((1 * MBIT, 5 * MBIT), (0.010, 0.050), (0, 3000), (0.0, 0.03)),
    "release": LinkRange((100.0, 500.0), (0.050, 0.500), (2, 55), (0.0, 0.03), exponential_queue=True),
    "paper-test": LinkRange((10 * MBIT, 50 * MBIT), (0.010, 0.200), (500, 5000), (0.0, 0.10)),
    # ours
    "datacenter": LinkRange((500 * MBIT, 25_000 * MBIT), (10e-6, 250e-6), (100, 4000), (0.0, 0.001)),
}


def range_of(name: str) -> LinkRange:
    """A range by its name.

    Raises:
        InputError: no such range.
    """
    if name not in RANGES:
        raise unknown("range", name, RANGES)
    return RANGES[name]


def parse_loss(text: str) -> float:
    """Read a share of packets as people write it.

    >>> parse_loss("1%"), parse_loss("0.02")
    (0.01, 0.02)

    Raises:
        InputError: no number, or outside 0 to 1.
    """
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise InputError(f"cannot read loss '{text}'; write it like 1% or 0.01") from None
    if not 0 <= value < 1:
        raise InputError(f"loss must be from 0 to below 100 %, got '{text}'")
    return value


Draw = Callable[[np.random.Generator], tuple[Bottleneck, Route]]
