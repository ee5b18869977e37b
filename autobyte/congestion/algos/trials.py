"""What became of the packets that were sent at each rate: PCC's monitor (Dong et al., NSDI 2015, sec. 3)."""

import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from autobyte.congestion.paths import Interval, gradient_of

FIRST_PER_S, LEAST_PER_S = 50.0, 2.0
FIRST_S, PACKETS = 0.1, 10  # an interval: the first, and how many packets it has at least


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


class TryingControl(ABC):
    """Tries rates for an interval each, and learns later what became of them.

    Args:
        first: kind of the first trial.
        seed: of the order of trials.
    """

    def __init__(self, first: int, *, seed: int) -> None:
        self.packets_per_s, self.window, self.interval_s = FIRST_PER_S, math.inf, FIRST_S
        self._rng, self._trials = np.random.default_rng(seed), Trials(FIRST_PER_S)
        self._base, self._best = FIRST_PER_S, -math.inf
        self._queue: list[tuple[float, int]] = [(FIRST_PER_S, first)]  # rates to try, and what for
        self._round_trip_s = FIRST_S

    def on_interval(self, interval: Interval) -> None:
        """Begin the next trial, or send at the base until those under way are known."""
        self.packets_per_s, kind = self._queue.pop(0) if self._queue else (self._base, 0)
        self.interval_s = max(self._round_trip_s, PACKETS / self.packets_per_s)
        self._trials.begin(interval.end_s, self.packets_per_s, kind=kind)

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        """Count it for the trial that it was sent in."""
        self._round_trip_s = round_trip_s
        for trial in self._trials.acked(now_s - round_trip_s, round_trip_s):
            self._judge(trial)

    def on_loss(self, now_s: float, sent_s: float) -> None:
        """Count it for the trial that it was sent in."""
        for trial in self._trials.lost(sent_s):
            self._judge(trial)

    @abstractmethod
    def _judge(self, trial: RateTrial) -> None:
        """Decide on what to try next, now that a trial is known."""
