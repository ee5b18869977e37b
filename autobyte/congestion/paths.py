"""What a packet meets: a bottleneck whose rate may change, a queue, random loss, and flows with round trips."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autobyte.errors import InputError
from autobyte.job import Floats

PACKET_BYTES = 1500  # what a packet takes on the wire
MASK = (1 << 64) - 1
LOSS_DRAW, GAP_DRAW = 0, 1  # the two random numbers of a packet


@dataclass(frozen=True)
class RateProfile:
    """The rate of a bottleneck over time: from each time on, another rate.

    Args:
        times_s: ascending, the first is 0 (s).
        packets_per_s: rate from each of these times on.

    Raises:
        InputError: a rate that is not positive, or times that do not ascend from 0.
    """

    times_s: tuple[float, ...]
    packets_per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.times_s) != len(self.packets_per_s) or not self.times_s:
            raise InputError(f"a profile needs a rate for each time, got {len(self.times_s)} times")
        for rate in self.packets_per_s:
            if not 0 < rate < math.inf:
                raise InputError(f"a link's rate must be positive and finite, got {rate:g} packets/s")
        if self.times_s[0] != 0 or any(a >= b for a, b in zip(self.times_s, self.times_s[1:], strict=False)):
            raise InputError(f"a profile's times must ascend from 0, got {self.times_s}")

    @classmethod
    def steady(cls, packets_per_s: float) -> "RateProfile":
        """A rate that stays."""
        return cls((0.0,), (packets_per_s,))

    def capacity(self, start_s: float, end_s: float) -> float:
        """Packets that the bottleneck can serve from one time to another."""
        edges = np.array([*self.times_s, math.inf])
        spans = np.clip(np.minimum(edges[1:], end_s) - np.maximum(edges[:-1], start_s), 0.0, None)
        return float(spans @ np.array(self.packets_per_s))


@dataclass(frozen=True)
class Bottleneck:
    """A first-in-first-out link that all flows share.

    Args:
        profile: its rate.
        queue_packets: that may wait, beside the one in service; one that finds it full is lost.
        loss: share of packets that are lost at random, before the queue.

    Raises:
        InputError: a negative queue, or a loss outside 0 to 1.
    """

    profile: RateProfile
    queue_packets: int
    loss: float = 0.0

    def __post_init__(self) -> None:
        if self.queue_packets < 0:
            raise InputError(f"a queue must hold at least 0 packets, got {self.queue_packets}")
        if not 0 <= self.loss < 1:
            raise InputError(f"loss must be a share from 0 to below 1, got {self.loss}")


@dataclass(frozen=True)
class Route:
    """A flow's way: how long its round trip is without a queue, and when it sends.

    Args:
        round_trip_s: of a packet that waits nowhere and takes no time on the bottleneck.
        start_s: of the flow.
        stop_s: nothing is sent from then on.
        random_gaps: gaps between packets are exponential, as of many users together; else they are even.

    Raises:
        InputError: a round trip that is not positive, or a flow that stops before it starts.
    """

    round_trip_s: float
    start_s: float = 0.0
    stop_s: float = math.inf
    random_gaps: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.round_trip_s < math.inf:
            raise InputError(f"a round trip must be a positive time, got {self.round_trip_s} s")
        if not 0 <= self.start_s <= self.stop_s:
            raise InputError(f"a flow cannot run from {self.start_s} s to {self.stop_s} s")


@dataclass(frozen=True)
class Interval:
    """What a sender knows of a monitor interval.

    Args:
        start_s: of the interval.
        end_s: of the interval.
        sent: packets that were sent in it.
        acked: packets whose acknowledgement came in it.
        lost: packets that were found lost in it.
        round_trip_s: mean of those that were acknowledged; NaN if none was.
        gradient: by how many seconds the round trip grows per second (least squares).
        least_round_trip_s: of the whole flow so far; infinite before the first.
    """

    start_s: float
    end_s: float
    sent: int
    acked: int
    lost: int
    round_trip_s: float
    gradient: float
    least_round_trip_s: float

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end_s - self.start_s

    @property
    def acked_per_s(self) -> float:
        """Packets per second that arrived."""
        return self.acked / self.seconds

    @property
    def loss(self) -> float:
        """Share of the packets with a known fate that were lost; 0 where none has one."""
        return self.lost / max(1, self.acked + self.lost)


def gradient_of(acked: int, sums: Sequence[float]) -> float:
    """Slope of a least-squares line, from sums of t, t², r and t·r; 0 for fewer than two times.

    Args:
        acked: number of points (t, r).
        sums: the four sums.
    """
    t, tt, r, tr = sums
    spread = acked * tt - t * t
    return (acked * tr - t * r) / spread if acked > 1 and spread > 1e-12 * acked * tt else 0.0


def uniform(seed: int, flow: int, number: int, draw: int) -> float:
    """A random number in [0, 1) that depends on nothing but these four (SplitMix64)."""
    x = (seed * 0x2545F4914F6CDD1D + flow * 0xD1342543DE82EF95 + (2 * number + draw) * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return ((x ^ (x >> 31)) >> 11) * 2.0**-53


def padded(profiles: Sequence[RateProfile]) -> tuple[Floats, Floats]:
    """Profiles as two arrays of shape [profiles, most times]; after the last time of a short one comes infinity."""
    most = max(len(profile.times_s) for profile in profiles)
    times_s = np.full((len(profiles), most), math.inf)
    rates = np.ones((len(profiles), most))
    for row, profile in enumerate(profiles):
        times_s[row, : len(profile.times_s)] = profile.times_s
        rates[row, : len(profile.packets_per_s)] = profile.packets_per_s
    return times_s, rates
