"""What became of the packets that were sent at each rate: PCC's monitor (Dong et al., NSDI 2015, sec. 3)."""

import math
from collections import deque
from dataclasses import dataclass, field

from autobyte.congestion.paths import gradient_of


@dataclass
class RateTrial:
    """A rate that was tried for an interval, and the fate of the packets that were sent in it.

    Args:
        packets_per_s: the rate.
        kind: what the trial is for; 0: nothing, it fills the time until the others are known.
        begin_s: of the interval.
        end_s: of the interval.
    """

    packets_per_s: float
    kind: int
    begin_s: float
    end_s: float = math.inf
    acked: int = 0
    lost: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])

    @property
    def loss(self) -> float:
        """Share of the packets."""
        return self.lost / max(1, self.acked + self.lost)

    @property
    def gradient(self) -> float:
        """Of the round trip over the time of sending (s/s)."""
        return gradient_of(self.acked, self.sums)


class Trials:
    """Trials one after another, each known when a packet that was sent after it is."""

    def __init__(self, packets_per_s: float) -> None:
        self._open = deque([RateTrial(packets_per_s, 0, 0.0)])

    def begin(self, now_s: float, packets_per_s: float, *, kind: int = 0) -> None:
        """End the current trial, and begin another."""
        self._open[-1].end_s = now_s
        self._open.append(RateTrial(packets_per_s, kind, now_s))

    def acked(self, sent_s: float, round_trip_s: float) -> list[RateTrial]:
        """Count a packet; the trials that are known by it."""
        known = self._known(sent_s)
        trial = self._open[0]
        trial.acked += 1
        since_s = sent_s - trial.begin_s
        for place, value in enumerate((since_s, since_s * since_s, round_trip_s, since_s * round_trip_s)):
            trial.sums[place] += value
        return known

    def lost(self, sent_s: float) -> list[RateTrial]:
        """Count a packet; the trials that are known by it."""
        known = self._known(sent_s)
        self._open[0].lost += 1
        return known

    def _known(self, sent_s: float) -> list[RateTrial]:
        known = []
        while self._open[0].end_s <= sent_s:
            known.append(self._open.popleft())
        return known
