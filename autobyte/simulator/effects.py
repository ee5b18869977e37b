"""Second-order effects: what real networks and workers do beyond the model of the design, each off by default.

They make the worlds that tuners are judged in. No tuner is told which a world has; the meta-network was fitted in
such worlds, and the twin expects links to crowd as much as is usual in them.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from autobyte.errors import InputError
from autobyte.job import Floats, Ints


@dataclass(frozen=True)
class Effects:
    """How a simulated world deviates from the plain model.

    Args:
        size_efficiency: (block bytes, share of the rate reached), log-linear between; nccl#450 saw 16 MB at 2.69 and
            64 MB at 0.58 GB/s.
        size_overhead_s: (block bytes, seconds of its all-reduce beyond overhead and bytes), log-linear between.
        inflight_bytes: with this much in flight, a block takes twice its time on the wire.
        sharing: all-reduces that share the wire at a time, each in proportion to its size, while others wait; 1 is
            one after the other. gloo serves as many as it has threads.
        incast: extra time that a server's downlink needs, per sender beyond the first.
        cross_traffic: mean share of the rate that others take.
        cross_traffic_spread: the share is drawn anew for every iteration, uniformly from the mean ± this part of it.
        jitter: coefficient of variation of a worker's compute time from iteration to iteration.
        compute_slowdown: how much slower a layer is while its worker's link is busy (12.6 % was measured elsewhere).
        wire_slowdown: how much slower a block is when it starts beside compute.
    """

    size_efficiency: tuple[tuple[float, float], ...] = ()
    size_overhead_s: tuple[tuple[float, float], ...] = ()
    inflight_bytes: float = math.inf
    sharing: int = 1
    incast: float = 0.0
    cross_traffic: float = 0.0
    cross_traffic_spread: float = 1.0
    jitter: float = 0.0
    compute_slowdown: float = 0.0
    wire_slowdown: float = 0.0

    def __post_init__(self) -> None:
        names = ("incast", "cross_traffic", "cross_traffic_spread", "jitter", "compute_slowdown", "wire_slowdown")
        for name in names:
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"effect {name} must be a number of at least 0, got {getattr(self, name)}")
        if self.cross_traffic * (1 + self.cross_traffic_spread) >= 1:
            raise InputError(f"effect cross_traffic must leave some of the rate, got {self.cross_traffic}")
        if not 1 <= self.sharing < 1 << 20 or self.sharing != int(self.sharing):
            raise InputError(f"effect sharing must be a whole number of at least 1, got {self.sharing}")
        if not self.inflight_bytes > 0:
            raise InputError(f"effect inflight_bytes must be positive, got {self.inflight_bytes}")
        sizes = [size for size, _ in self.size_efficiency]
        if sizes != sorted(set(sizes)) or not all(s > 0 and 0 < share <= 1 for s, share in self.size_efficiency):
            raise InputError("effect size_efficiency needs growing sizes and shares in (0, 1]")

        sizes = [size for size, _ in self.size_overhead_s]
        if sizes != sorted(set(sizes)) or not all(
            s > 0 and 0 <= spent < math.inf for s, spent in self.size_overhead_s
        ):
            raise InputError("effect size_overhead_s needs growing sizes and times of at least 0")

    def calm(self) -> Self:
        """The same without anything that is drawn at random."""
        return replace(self, jitter=0.0, cross_traffic_spread=0.0)

    def stretch(self, nbytes: Ints) -> Floats:
        """How much longer than its bytes each block takes, from its size alone; shape [blocks]."""
        if not self.size_efficiency:
            return np.ones(len(nbytes))
        return 1.0 / _between(self.size_efficiency, nbytes)

    def overhead_s(self, nbytes: Ints) -> Floats:
        """What a block costs beyond what the cluster says, from its size alone (s); shape [blocks]."""
        return _between(self.size_overhead_s, nbytes) if self.size_overhead_s else np.zeros(len(nbytes))

    def compute_factors(self, *, seed: int, first: int, iterations: int, workers: int) -> Floats:
        """What jitter multiplies compute times by, lognormal with mean 1, shape [iterations, workers]."""
        if not self.jitter:
            return np.ones((iterations, workers))
        sigma = math.sqrt(math.log1p(self.jitter**2))
        rows = [np.random.default_rng([seed, first + k, 0]).normal(size=workers) for k in range(iterations)]
        return np.exp(sigma * np.array(rows) - sigma**2 / 2)

    def rate_factors(self, *, seed: int, first: int, iterations: int) -> Floats:
        """What cross traffic multiplies every rate by, shape [iterations]."""
        if not self.cross_traffic or not self.cross_traffic_spread:
            return np.full(iterations, 1.0 - self.cross_traffic)
        drawn = [np.random.default_rng([seed, first + k, 1]).uniform(-1, 1) for k in range(iterations)]
        return 1.0 - self.cross_traffic * (1.0 + self.cross_traffic_spread * np.array(drawn))


def _between(table: tuple[tuple[float, float], ...], nbytes: Ints) -> Floats:
    """Values at sizes, log-linear between those of a table, constant beyond its ends; shape [blocks]."""
    sizes, values = np.array(table).T
    efficiency: Floats = np.interp(np.log2(np.maximum(nbytes, 1)), np.log2(sizes), values)
    return efficiency


PLAIN = Effects()
