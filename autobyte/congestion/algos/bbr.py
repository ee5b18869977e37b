"""BBR, version 1 (Cardwell et al., ACM Queue 2016): paces at the greatest rate of delivery of the last ten rounds."""

import math
from collections import deque

from autobyte.congestion.paths import Interval

HIGH_GAIN = 2 / math.log(2)
CYCLE = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
ROUNDS = 10  # that the greatest rate is of
LEAST_S, PROBE_S, LEAST_WINDOW = 10.0, 0.2, 4.0
FIRST_PER_S, FIRST = 100.0, 10.0


class Bbr:
    """A model of the path: greatest rate of delivery, and least round trip."""

    def __init__(self) -> None:
        self.packets_per_s, self.window, self.interval_s = FIRST_PER_S, FIRST, math.inf
        self._delivered = 0
        self._history: deque[tuple[float, int]] = deque([(0.0, 0)])  # when so many were delivered
        self._rates: deque[tuple[int, float]] = deque()  # by round, descending: the first is the greatest
        self._round, self._round_over_s = 0, 0.0
        self._least_s, self._least_at_s = math.inf, 0.0
        self._state, self._gain = "startup", HIGH_GAIN
        self._full, self._full_rounds = 0.0, 0
        self._phase, self._phase_s = 0, 0.0
        self._probe_over_s = 0.0

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        """Measure, and set pace and window by the model."""
        begins = self._measure(now_s, round_trip_s)
        greatest = self._rates[0][1]
        match self._state:
            case "startup":
                if begins:
                    self._look_whether_full(greatest)
            case "drain":
                if now_s >= self._phase_s:
                    self._state, self._gain, self._phase, self._phase_s = "probe", 1.0, 2, now_s
            case "probe":
                if now_s - self._phase_s > self._least_s:
                    self._phase, self._phase_s = (self._phase + 1) % len(CYCLE), now_s
                self._gain = CYCLE[self._phase]
            case "least":
                if now_s >= self._probe_over_s:
                    self._state, self._phase, self._phase_s, self._least_at_s = "probe", 2, now_s, now_s
        if self._state == "startup" and self._full_rounds >= 3:
            # what startup put into the queue leaves within about that many round trips
            self._state, self._gain, self._phase_s = "drain", 1 / HIGH_GAIN, now_s + 2 * round_trip_s
        if now_s - self._least_at_s > LEAST_S and self._state == "probe":
            self._state, self._gain, self._probe_over_s = "least", 1.0, now_s + PROBE_S + self._least_s
            self._least_s = round_trip_s
        self.packets_per_s = max(1.0, self._gain * greatest)
        ceiling = HIGH_GAIN if self._state in ("startup", "drain") else 2.0
        room = max(LEAST_WINDOW, ceiling * greatest * self._least_s)
        self.window = LEAST_WINDOW if self._state == "least" else max(room, FIRST if greatest == 0 else 0.0)

    def _measure(self, now_s: float, round_trip_s: float) -> bool:
        """Take a sample of both; whether a round trip begins."""
        self._delivered += 1
        if round_trip_s <= self._least_s:
            self._least_s, self._least_at_s = round_trip_s, now_s
        sent_s = now_s - round_trip_s
        while len(self._history) > 1 and self._history[1][0] <= sent_s:
            self._history.popleft()
        before_s, before = self._history[0]
        self._history.append((now_s, self._delivered))
        rate = (self._delivered - before) / max(now_s - before_s, round_trip_s)
        while self._rates and self._rates[-1][1] <= rate:
            self._rates.pop()
        self._rates.append((self._round, rate))
        begins = now_s >= self._round_over_s
        if begins:
            self._round, self._round_over_s = self._round + 1, now_s + round_trip_s
            while self._rates[0][0] < self._round - ROUNDS and len(self._rates) > 1:
                self._rates.popleft()
        return begins

    def _look_whether_full(self, greatest: float) -> None:
        """Three rounds without a quarter more: the pipe is full."""
        if greatest > 1.25 * self._full:
            self._full, self._full_rounds = greatest, 0
        else:
            self._full_rounds += 1

    def on_loss(self, now_s: float, sent_s: float) -> None:
        """Loss says nothing."""

    def on_interval(self, interval: Interval) -> None:
        """There are none."""
