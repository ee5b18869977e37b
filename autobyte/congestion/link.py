"""The link, packet by packet, to be read: flows send, the bottleneck serves, acknowledgements come back.

`packets.py` is its compiled twin, equal to the bit. A packet is sent as soon as the flow's pace and window allow. It
is lost at random, or because the queue is full, or it is served and acknowledged one round trip later. A sender
learns of a loss when the acknowledgement of the packet before it in the queue arrives, as by duplicates.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autobyte.congestion.paths import (
    GAP_DRAW,
    LOSS_DRAW,
    Bottleneck,
    Interval,
    RateProfile,
    Route,
    gradient_of,
    uniform,
)


class Congestion(Protocol):
    """Decides how fast a flow sends."""

    @property
    def packets_per_s(self) -> float:
        """Its pace; inf if only the window bounds it."""
        ...

    @property
    def window(self) -> float:
        """Packets that may be in flight; inf if only the pace bounds it."""
        ...

    @property
    def interval_s(self) -> float:
        """Length of the next monitor interval; inf for an algorithm that needs none."""
        ...

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        """A packet arrived."""
        ...

    def on_loss(self, now_s: float, sent_s: float) -> None:
        """A packet that was sent then is lost."""
        ...

    def on_interval(self, interval: Interval) -> None:
        """A monitor interval is over."""
        ...


@dataclass
class SteadyPace:
    """Sends at one pace, whatever happens: traffic of others, and the hand on the rate in an environment."""

    packets_per_s: float
    window: float = math.inf
    interval_s: float = math.inf

    def on_ack(self, now_s: float, round_trip_s: float) -> None:
        """Nothing changes."""

    def on_loss(self, now_s: float, sent_s: float) -> None:
        """Nothing changes."""

    def on_interval(self, interval: Interval) -> None:
        """Nothing changes."""


@dataclass(kw_only=True)
class FlowCounts:
    """What a sender learns, counted for the interval and in all, and told to its congestion control."""

    began_s: float = 0.0
    sent: int = 0
    acked: int = 0
    lost: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])
    least_s: float = math.inf
    total_acked: int = 0
    total_lost: int = 0
    total_round_trip_s: float = 0.0

    def lose(self, control: Congestion, now_s: float, sent_s: float) -> None:
        """Learn that a packet that was sent then is lost."""
        self.lost += 1
        self.total_lost += 1
        control.on_loss(now_s, sent_s)

    def acknowledge(self, control: Congestion, now_s: float, sent_s: float) -> None:
        """Learn that a packet that was sent then has arrived."""
        round_trip_s, since_s = now_s - sent_s, now_s - self.began_s
        self.acked += 1
        self.total_acked += 1
        self.total_round_trip_s += round_trip_s
        for place, value in enumerate((since_s, since_s * since_s, round_trip_s, since_s * round_trip_s)):
            self.sums[place] += value
        self.least_s = min(self.least_s, round_trip_s)
        control.on_ack(now_s, round_trip_s)

    def finish(self, now_s: float) -> Interval:
        """End the monitor interval, and begin the next."""
        mean_s = self.sums[2] / self.acked if self.acked else math.nan
        gradient = gradient_of(self.acked, self.sums)
        over = Interval(self.began_s, now_s, self.sent, self.acked, self.lost, mean_s, gradient, self.least_s)
        self.began_s, self.sent, self.acked, self.lost, self.sums = now_s, 0, 0, 0, [0.0] * 4
        return over


@dataclass
class Flow(FlowCounts):
    """A sender: what is under way, and what it counted since its interval began."""

    route: Route
    control: Congestion
    last_s: float = -math.inf  # when it sent last
    gap: float = 0.0  # to the next packet, in packets at the pace
    number: int = 0  # of the next packet
    notices: deque[tuple[float, float, bool]] = field(default_factory=deque)  # when it is told, when sent, arrived?

    def due_s(self, now_s: float) -> float:
        """When the next packet may leave; never while the window is full, or after the flow stopped."""
        if len(self.notices) >= self.control.window:
            return math.inf
        due_s = max(now_s, self.route.start_s, self.last_s + self.gap / self.control.packets_per_s)
        return due_s if due_s < self.route.stop_s else math.inf

    def hear(self) -> None:
        """Take the next notice in."""
        now_s, sent_s, arrived = self.notices.popleft()
        (self.acknowledge if arrived else self.lose)(self.control, now_s, sent_s)


class Server:
    """Serves packets in order, at a rate that may change while one is served."""

    def __init__(self, profile: RateProfile) -> None:
        self._profile, self._place = profile, 0
        self.free_s = 0.0  # when all that waits is served

    def serve(self, now_s: float) -> float:
        """When a packet that comes now has left."""
        times_s, rates = self._profile.times_s, self._profile.packets_per_s
        start_s, work = max(now_s, self.free_s), 1.0
        while True:
            while self._place + 1 < len(times_s) and times_s[self._place + 1] <= start_s:
                self._place += 1
            end_s = start_s + work / rates[self._place]
            if self._place + 1 == len(times_s) or end_s <= times_s[self._place + 1]:
                self.free_s = end_s
                return end_s
            work -= (times_s[self._place + 1] - start_s) * rates[self._place]
            start_s = times_s[self._place + 1]


class PacketLink:
    """A bottleneck and the flows that share it, in virtual time.

    >>> link = PacketLink(Bottleneck(RateProfile.steady(1000.0), 100), [(Route(0.05), SteadyPace(800.0))])
    >>> link.run(2.0)
    >>> link.flows[0].total_acked
    1559
    """

    def __init__(self, bottleneck: Bottleneck, flows: Sequence[tuple[Route, Congestion]], *, seed: int = 0) -> None:
        self.now_s = 0.0
        self.flows = [Flow(route, control) for route, control in flows]
        self.waiting: deque[float] = deque()  # when each packet in queue and service leaves
        self._bottleneck, self._seed = bottleneck, seed
        self._server = Server(bottleneck.profile)

    def run(self, until_s: float) -> None:
        """Let all happen that happens up to a time; of what happens at once, notices come before packets."""
        while True:
            notice = min((flow.notices[0][0], place) for place, flow in enumerate(self._all()) if flow.notices)
            due = min((flow.due_s(self.now_s), place) for place, flow in enumerate(self.flows))
            over = min((self._over_s(flow), place) for place, flow in enumerate(self.flows))
            when_s = min(notice[0], due[0], over[0])
            if when_s > until_s:
                break
            self.now_s = when_s
            if notice[0] == when_s:
                self.flows[notice[1]].hear()
            elif over[0] == when_s:
                flow = self.flows[over[1]]
                flow.control.on_interval(flow.finish(when_s))
            else:
                self._send(due[1])
        self.now_s = until_s

    def _all(self) -> list[Flow]:
        """The flows, and one that never hears anything: a minimum needs something."""
        return [*self.flows, NOBODY]

    def _over_s(self, flow: Flow) -> float:
        return max(flow.began_s, flow.route.start_s) + flow.control.interval_s

    def _send(self, place: int) -> None:
        flow, now_s = self.flows[place], self.now_s
        while self.waiting and self.waiting[0] <= now_s:
            self.waiting.popleft()
        lost = uniform(self._seed, place, flow.number, LOSS_DRAW) < self._bottleneck.loss
        if lost or len(self.waiting) > self._bottleneck.queue_packets:
            told_s = max(now_s, self._server.free_s) + flow.route.round_trip_s
            flow.notices.append((told_s, now_s, False))
        else:
            left_s = self._server.serve(now_s)
            self.waiting.append(left_s)
            flow.notices.append((left_s + flow.route.round_trip_s, now_s, True))
        draw = uniform(self._seed, place, flow.number, GAP_DRAW) if flow.route.random_gaps else 0.0
        flow.gap = -math.log(1.0 - draw) if flow.route.random_gaps else 1.0
        flow.last_s = now_s
        flow.number += 1
        flow.sent += 1


NOBODY = Flow(Route(1.0), SteadyPace(1.0), notices=deque([(math.inf, 0.0, True)]))
