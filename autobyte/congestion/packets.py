"""Many links at once, compiled: the same packets as `link.py` sends, at the same times, to the bit.

The senders here have a pace and a window that stay during a call; who sets them calls again and again.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autobyte.compiling import njit
from autobyte.congestion.paths import Bottleneck, Interval, Route, padded
from autobyte.errors import InputError
from autobyte.job import Floats, Ints

SENT, ACKED, LOST, T, TT, R, TR = range(7)  # what is counted in an interval
RING = 64  # notices under way that a flow has room for at first
MOST_UNDER_WAY = 1 << 20  # beyond, memory runs out


class LinkTables(NamedTuple):
    """What does not change, by link and flow."""

    times_s: Floats  # [links, times]
    rates: Floats
    queue: Ints  # [links]
    loss: Floats  # [links]
    seed: npt.NDArray[np.uint64]  # [links]
    round_trip_s: Floats  # [links, flows]
    start_s: Floats
    stop_s: Floats
    random_gaps: npt.NDArray[np.bool_]


class Traffic(NamedTuple):
    """What changes: the state of every link, flow and packet under way."""

    now_s: Floats  # [links]
    free_s: Floats  # [links]
    place: Ints  # [links], in the profile
    leaves_s: Floats  # [links, queue + 1], a ring
    first_waiting: Ints  # [links]
    waiting: Ints  # [links]
    last_s: Floats  # [links, flows]
    gap: Floats
    number: npt.NDArray[np.uint64]
    told_s: Floats  # [links, flows, ring]
    sent_s: Floats
    arrived: npt.NDArray[np.bool_]
    first: Ints  # [links, flows], in the ring
    under_way: Ints
    counts: Floats  # [links, flows, 7]
    began_s: Floats  # [links, flows]
    least_s: Floats


@njit(cache=True)
def _uniform(seed: Any, flow: Any, number: Any, draw: Any) -> Any:
    x = seed * np.uint64(0x2545F4914F6CDD1D) + flow * np.uint64(0xD1342543DE82EF95)
    x += (np.uint64(2) * number + draw) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.float64((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@njit(cache=True)
def advance(ways: LinkTables, traffic: Traffic, pace: Floats, window: Floats, until_s: Floats) -> bool:  # noqa: PLR0912, PLR0915 - one flat loop
    """Let all happen up to a time of each link; False: a ring is full, so double the rings and call again."""
    links, flows = pace.shape
    ring = traffic.told_s.shape[2]
    times = ways.times_s.shape[1]
    room = traffic.leaves_s.shape[1]
    for e in range(links):
        now, end = traffic.now_s[e], until_s[e]
        free, place = traffic.free_s[e], traffic.place[e]
        head, waiting = traffic.first_waiting[e], traffic.waiting[e]
        while True:
            when, actor, hears = math.inf, -1, False
            for f in range(flows):
                if traffic.under_way[e, f] > 0:
                    told = traffic.told_s[e, f, traffic.first[e, f]]
                    if told < when:
                        when, actor, hears = told, f, True
            for f in range(flows):
                if traffic.under_way[e, f] < window[e, f]:
                    due = max(now, ways.start_s[e, f], traffic.last_s[e, f] + traffic.gap[e, f] / pace[e, f])
                    if due < when and due < ways.stop_s[e, f]:
                        when, actor, hears = due, f, False
            if when > end or actor < 0:
                break
            f = actor
            now = when
            at = traffic.first[e, f]
            if hears:
                traffic.first[e, f] = (at + 1) % ring
                traffic.under_way[e, f] -= 1
                if traffic.arrived[e, f, at]:
                    round_trip, since = now - traffic.sent_s[e, f, at], now - traffic.began_s[e, f]
                    traffic.counts[e, f, ACKED] += 1
                    traffic.counts[e, f, T] += since
                    traffic.counts[e, f, TT] += since * since
                    traffic.counts[e, f, R] += round_trip
                    traffic.counts[e, f, TR] += since * round_trip
                    traffic.least_s[e, f] = min(traffic.least_s[e, f], round_trip)
                else:
                    traffic.counts[e, f, LOST] += 1
                continue
            if traffic.under_way[e, f] == ring:
                traffic.now_s[e], traffic.free_s[e], traffic.place[e] = now, free, place
                traffic.first_waiting[e], traffic.waiting[e] = head, waiting
                return False
            while waiting > 0 and traffic.leaves_s[e, head] <= now:
                head = (head + 1) % room
                waiting -= 1
            number = traffic.number[e, f]
            tail = (at + traffic.under_way[e, f]) % ring
            lost = False
            if ways.loss[e] > 0.0:
                lost = _uniform(ways.seed[e], np.uint64(f), number, np.uint64(0)) < ways.loss[e]
            if lost or waiting > ways.queue[e]:
                traffic.told_s[e, f, tail] = max(now, free) + ways.round_trip_s[e, f]
                traffic.arrived[e, f, tail] = False
            else:
                begin, work = max(now, free), 1.0
                while True:
                    while place + 1 < times and ways.times_s[e, place + 1] <= begin:
                        place += 1
                    free = begin + work / ways.rates[e, place]
                    if place + 1 == times or free <= ways.times_s[e, place + 1]:
                        break
                    work -= (ways.times_s[e, place + 1] - begin) * ways.rates[e, place]
                    begin = ways.times_s[e, place + 1]
                traffic.leaves_s[e, (head + waiting) % room] = free
                waiting += 1
                traffic.told_s[e, f, tail] = free + ways.round_trip_s[e, f]
                traffic.arrived[e, f, tail] = True
            traffic.sent_s[e, f, tail] = now
            traffic.under_way[e, f] += 1
            if ways.random_gaps[e, f]:
                draw = _uniform(ways.seed[e], np.uint64(f), number, np.uint64(1))
                traffic.gap[e, f] = -math.log(1.0 - draw)
            else:
                traffic.gap[e, f] = 1.0
            traffic.last_s[e, f] = now
            traffic.number[e, f] = number + np.uint64(1)
            traffic.counts[e, f, SENT] += 1
        traffic.now_s[e], traffic.free_s[e], traffic.place[e] = end, free, place
        traffic.first_waiting[e], traffic.waiting[e] = head, waiting
    return True


class CompiledLinks:
    """Bottlenecks beside each other, each with as many flows as the others.

    >>> links = CompiledLinks([Bottleneck(RateProfile.steady(1000.0), 100)], [[Route(0.05)]])
    >>> links.run(pace=np.array([[800.0]]), until_s=np.array([2.0]))
    >>> links.finish(0, 0).acked
    1559

    Args:
        bottlenecks: one for each link.
        routes: of every link's flows.
        seeds: of every link; 0, 1, … by default.

    Raises:
        InputError: no link, or links with different numbers of flows.
    """

    def __init__(
        self,
        bottlenecks: Sequence[Bottleneck],
        routes: Sequence[Sequence[Route]],
        *,
        seeds: Sequence[int] | None = None,
    ) -> None:
        counts = {len(each) for each in routes}
        if len(counts) != 1 or len(bottlenecks) != len(routes):
            raise InputError(f"every link needs as many flows as the others, got {sorted(counts)}")
        links, flows = len(bottlenecks), counts.pop()
        times_s, rates = padded([one.profile for one in bottlenecks])
        column = np.array([[(r.round_trip_s, r.start_s, r.stop_s, r.random_gaps) for r in each] for each in routes])
        queue = np.array([one.queue_packets for one in bottlenecks])
        round_trip_s, start_s, stop_s, random_gaps = np.ascontiguousarray(np.moveaxis(column, 2, 0), dtype=np.float64)
        self.ways = LinkTables(
            times_s,
            rates,
            queue,
            np.array([one.loss for one in bottlenecks]),
            np.array(range(links) if seeds is None else seeds, dtype=np.uint64),
            round_trip_s,
            start_s,
            stop_s,
            random_gaps > 0,
        )
        pair = (links, flows)
        self.traffic = Traffic(
            now_s=np.zeros(links),
            free_s=np.zeros(links),
            place=np.zeros(links, dtype=np.int64),
            leaves_s=np.zeros((links, int(queue.max()) + 1)),
            first_waiting=np.zeros(links, dtype=np.int64),
            waiting=np.zeros(links, dtype=np.int64),
            last_s=np.full(pair, -math.inf),
            gap=np.zeros(pair),
            number=np.zeros(pair, dtype=np.uint64),
            told_s=np.zeros((*pair, RING)),
            sent_s=np.zeros((*pair, RING)),
            arrived=np.zeros((*pair, RING), dtype=np.bool_),
            first=np.zeros(pair, dtype=np.int64),
            under_way=np.zeros(pair, dtype=np.int64),
            counts=np.zeros((*pair, 7)),
            began_s=np.zeros(pair),
            least_s=np.full(pair, math.inf),
        )

    def run(self, pace: Floats, until_s: Floats, *, window: Floats | None = None) -> None:
        """Let the flows send.

        Args:
            pace: packets/s, shape [links, flows].
            until_s: of each link, shape [links]; not before where it is.
            window: packets in flight, shape [links, flows]; unlimited by default.
        """
        limit = np.full(pace.shape, math.inf) if window is None else window
        while not advance(self.ways, self.traffic, pace, limit, until_s):
            self._widen()

    def finish(self, link: int, flow: int) -> Interval:
        """End the monitor interval of a flow, and begin the next."""
        state, counts = self.traffic, self.traffic.counts[link, flow]
        start_s, end_s = float(state.began_s[link, flow]), float(state.now_s[link])
        sent, acked, lost = (int(counts[place]) for place in (SENT, ACKED, LOST))
        mean_s = float(counts[R]) / acked if acked else math.nan
        slope = gradient(acked, counts[T], counts[TT], counts[R], counts[TR])
        counts[:] = 0.0
        state.began_s[link, flow] = end_s
        return Interval(start_s, end_s, sent, acked, lost, mean_s, slope, float(state.least_s[link, flow]))

    def _widen(self) -> None:
        """Make room for twice as many notices."""
        state, ring = self.traffic, self.traffic.told_s.shape[2]
        if ring >= MOST_UNDER_WAY:
            raise InputError(
                f"more than {MOST_UNDER_WAY:,} packets of a flow are under way; bound its pace or its window"
            )
        order = (state.first[..., None] + np.arange(ring)) % ring
        rings = {
            name: np.concatenate([np.take_along_axis(old, order, 2), np.zeros_like(old)], axis=2)
            for name, old in (("told_s", state.told_s), ("sent_s", state.sent_s), ("arrived", state.arrived))
        }
        state.first[:] = 0
        self.traffic = state._replace(**rings)


@njit(cache=True)
def gradient(acked: Any, t: Any, tt: Any, r: Any, tr: Any) -> Any:
    """`paths.gradient_of`, compiled."""
    spread = acked * tt - t * t
    if acked > 1 and spread > 1e-12 * acked * tt:
        return (acked * tr - t * r) / spread
    return 0.0
