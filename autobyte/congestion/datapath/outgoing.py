"""Which packet leaves next, and what became of those under way; it has no socket and no clock.

A packet counts as lost when the third after it, or a later one, is acknowledged first (RFC 9002, sec. 6.1). After a
long silence all packets under way count as lost. What a lost packet carried leaves again, under a new number, so that
no round trip is mistaken.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autobyte.congestion.link import Congestion, FlowCounts
from autobyte.congestion.paths import Interval

REORDERED = 3  # places that an acknowledged packet is ahead of one that counts as lost
SILENCE_S, SILENCE = 0.2, 3.0  # without a word until all is lost: at least, and in round trips
GRAIN_S = 0.002  # shorter round trips all count as this long: what they differ by is how busy the machine is
JITTER_S = 0.001  # by which a mean may exceed the shortest of an interval for the same reason
LEAP, LEAP_S = 4, 0.005  # a late sender makes up for this much, whichever is more: packets, and time at its pace


@dataclass
class Outgoing:
    """One transfer, as its sender sees it.

    >>> out = Outgoing(SteadyPace(1000.0), chunks=lambda chunk, now_s: True)
    >>> out.depart(0.0), out.depart(0.0), out.due_s(0.0)
    ((0, 0), (1, 1), 0.001)

    Args:
        control: sets pace and window.
        chunks: whether there is a chunk of this place, at this time.
    """

    control: Congestion
    chunks: Callable[[int, float], bool]
    tally: FlowCounts = field(default_factory=FlowCounts)
    under_way: dict[int, tuple[int, float]] = field(default_factory=dict)  # by number: chunk, when it left
    again: deque[int] = field(default_factory=deque)  # chunks that were lost
    number: int = 0  # of the next packet
    chunk: int = 0  # the next new one
    delivered: int = 0  # chunks
    open: bool = True  # there may be more chunks
    _oldest: int = 0  # no packet before it is under way
    _next_s: float = 0.0  # when the pace allows a packet
    _heard_s: float = 0.0
    _round_trip_s: float = SILENCE_S
    _shortest_s: float = math.inf  # round trip of the interval

    @property
    def done(self) -> bool:
        """Whether all has arrived."""
        return not self.open and self.delivered == self.chunk

    def due_s(self, now_s: float) -> float:
        """When the next packet may leave; infinite while the window is full, or there is nothing to send."""
        if len(self.under_way) >= self.control.window or not self._more(now_s):
            return math.inf
        return self._next_s

    def depart(self, now_s: float) -> tuple[int, int]:
        """Let a packet leave: its number, and the chunk that it carries."""
        gap_s = 1 / self.control.packets_per_s
        self._next_s = max(self._next_s, now_s - max(LEAP * gap_s, LEAP_S)) + gap_s
        if not self.under_way:
            self._heard_s = now_s  # silence starts now
        if self.again:
            chunk = self.again.popleft()
        else:
            chunk, self.chunk = self.chunk, self.chunk + 1
        number, self.number = self.number, self.number + 1
        self.under_way[number] = (chunk, now_s)
        self.tally.sent += 1
        return number, chunk

    def arrived(self, now_s: float, number: int) -> float:
        """Take an acknowledgement in; the round trip, or NaN for a packet that is not under way."""
        if number not in self.under_way:
            return math.nan  # acknowledged twice, or it was thought lost: what it carried is on its way again
        _, sent_s = self.under_way.pop(number)
        self.delivered += 1
        self._heard_s, self._round_trip_s = now_s, now_s - sent_s
        self._shortest_s = min(self._shortest_s, now_s - sent_s)
        self.tally.acknowledge(self.control, now_s, sent_s)
        while self._oldest <= number - REORDERED:
            if self._oldest in self.under_way:
                self._lose(now_s, self._oldest)
            self._oldest += 1
        return now_s - sent_s

    def silence_s(self) -> float:
        """When all that is under way counts as lost; infinite if nothing is."""
        longest_s = max(SILENCE_S, SILENCE * self._round_trip_s)
        return self._heard_s + longest_s if self.under_way else math.inf

    def despair(self, now_s: float) -> None:
        """Count all as lost that is under way."""
        self._heard_s = now_s
        for number in list(self.under_way):
            self._lose(now_s, number)

    def over_s(self) -> float:
        """When the monitor interval ends."""
        return self.tally.began_s + self.control.interval_s

    def next_interval(self, now_s: float) -> Interval:
        """End the monitor interval; of its mean round trip, up to a millisecond is taken to be the machine's."""
        over, shortest_s = self.tally.finish(now_s), self._shortest_s
        if over.acked:
            over = replace(over, round_trip_s=max(shortest_s, over.round_trip_s - JITTER_S))
        over, self._shortest_s = coarse(over), math.inf
        self.control.on_interval(over)
        return over

    def _lose(self, now_s: float, number: int) -> None:
        chunk, sent_s = self.under_way.pop(number)
        self.again.append(chunk)
        self.tally.lose(self.control, now_s, sent_s)

    def _more(self, now_s: float) -> bool:
        if self.again:
            return True
        self.open = self.open and self.chunks(self.chunk, now_s)
        return self.open


def coarse(over: Interval, *, grain_s: float = GRAIN_S) -> Interval:
    """An interval as a control may take it: round trips below the grain count alike."""
    if not over.round_trip_s < grain_s:
        return replace(over, least_round_trip_s=max(over.least_round_trip_s, grain_s))
    return replace(over, round_trip_s=grain_s, gradient=0.0, least_round_trip_s=grain_s)
