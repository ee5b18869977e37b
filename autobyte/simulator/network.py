"""Links as serial resources, and two networks of them that move blocks: a ring and parameter servers."""

import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from autobyte.job import Floats
from autobyte.scheduler.block import Block, Collective
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.simulator.clock import VirtualClock
from autobyte.simulator.costs import PULL, PUSH, WindowCosts


class Link:
    """Serves one transfer after the other."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.free_s = 0.0  # when everything accepted so far is through
        self.busy_s = 0.0

    @property
    def backlog_s(self) -> float:
        """How long it is busy from now on."""
        return max(0.0, self.free_s - self._clock.now)

    def hold(self, hold_s: float, *, earliest_s: float) -> float:
        """Take a transfer, and say when it is through."""
        self.free_s = max(earliest_s, self.free_s) + hold_s
        self.busy_s += hold_s
        return self.free_s

    def stretch(self, ratio: float) -> None:
        """Serve what is left of the backlog slower or faster."""
        if ratio != 1.0 and self.free_s > self._clock.now:
            before = self.free_s
            self.free_s = _stretched(before, ratio, self._clock.now)
            self.busy_s += self.free_s - before


class Shared:
    """Serves several transfers at a time, each in proportion to its work; more than there is room for wait.

    gloo's all-reduces take turns in pieces that are a fixed part of each. So the same part of every transfer under
    way is served in the same time, and they end in the order in which they began: `_part` is how much of a transfer
    has been served that was under way all the time, and one that begins at p ends at p + 1.
    """

    def __init__(self, clock: VirtualClock, *, room: int, urgency: int) -> None:
        self._clock = clock
        self._room = room
        self._urgency = urgency
        self._part = self._since_s = 0.0
        self._served: deque[tuple[float, float, Callable[[], None]]] = deque()  # end as a part, work (s)
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._schedule = 0

    def add(self, work_s: float, over: Callable[[], None]) -> None:
        """Take a transfer that would take so long alone."""
        self._advance()
        if len(self._served) == self._room:
            self._waiting.append((work_s, over))
        else:
            self._served.append((self._part + 1.0, work_s, over))
        self._await_first()

    def stretch(self, ratio: float) -> None:
        """Serve what is left slower or faster."""
        if ratio != 1.0:
            self._advance()
            self._served = deque((end, work_s * ratio, over) for end, work_s, over in self._served)
            self._waiting = deque((work_s * ratio, over) for work_s, over in self._waiting)
            self._await_first()

    @property
    def _round_s(self) -> float:
        """How long it takes to serve the whole of everything under way."""
        total_s = 0.0  # added one by one, as the compiled simulator does: sum() of newer Pythons is more exact
        for _, work_s, _ in self._served:
            total_s += work_s
        return total_s

    def _advance(self) -> None:
        now, round_s = self._clock.now, self._round_s
        if round_s > 0:
            self._part += (now - self._since_s) / round_s
        self._since_s = now

    def _await_first(self) -> None:
        self._schedule += 1
        if self._served:
            now, schedule = self._clock.now, self._schedule
            when_s = max(now, now + (self._served[0][0] - self._part) * self._round_s)
            self._clock.at(when_s, lambda: self._over(schedule), urgency=self._urgency)

    def _over(self, schedule: int) -> None:
        if schedule != self._schedule:
            return
        self._since_s = self._clock.now
        self._part, _, over = self._served.popleft()
        if self._waiting:
            work_s, waiting = self._waiting.popleft()
            self._served.append((self._part + 1.0, work_s, waiting))
        self._await_first()
        over()


@dataclass(slots=True)
class Transfer:
    """A block under way, and when the links it holds, near and far, let it go (s)."""

    block: Block
    near_s: float
    far_s: float
    arrived: Callable[[], None]


class Lane:
    """Transfers that arrive in the order in which they left, one latency after the last link let them go."""

    def __init__(self, clock: VirtualClock, *, latency_s: Floats, urgency: int) -> None:
        self._clock = clock
        self._latency_s = latency_s
        self._urgency = urgency
        self._under_way: deque[Transfer] = deque()
        self._schedule = 0  # only the newest schedule of the first transfer counts

    def add(self, transfer: Transfer) -> None:
        """Send one more."""
        self._under_way.append(transfer)
        if len(self._under_way) == 1:
            self._await_first()

    def stretch(self, near: float, far: float) -> None:
        """The links serve what is left slower or faster."""
        now = self._clock.now
        for transfer in self._under_way:
            transfer.near_s = _stretched(transfer.near_s, near, now)
            transfer.far_s = _stretched(transfer.far_s, far, now)
        if self._under_way and (near != 1.0 or far != 1.0):
            self._await_first()

    def _await_first(self) -> None:
        first = self._under_way[0]
        latency_s = self._latency_s[first.block.index]
        when_s = max(self._clock.now, max(first.near_s, first.far_s) + latency_s)
        self._schedule += 1
        schedule = self._schedule
        self._clock.at(when_s, lambda: self._arrive(schedule), urgency=self._urgency)

    def _arrive(self, schedule: int) -> None:
        if schedule != self._schedule:
            return
        transfer = self._under_way.popleft()
        if self._under_way:
            self._await_first()
        transfer.arrived()


@dataclass
class Sends:
    """Blocks that a host sent: bytes, how long its link was busy with each (s), bytes in flight at its start."""

    nbytes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)

    def note(self, block: Block, seconds: float, in_flight: int) -> None:
        """One more."""
        self.nbytes.append(block.nbytes)
        self.seconds.append(seconds)
        self.in_flight.append(in_flight)


class SimulatedNetwork(Protocol):
    """What connects the workers.

    `groups` are the classes of workers that share a schedule: a block travels when all of them are ready.
    """

    groups: list[list[int]]

    def engine(self, group: int) -> Engine:
        """What moves the blocks of a group."""

    def begin(self, iteration: int) -> None:
        """The first worker starts an iteration: its rates hold from now on, also for what is in flight."""

    def up(self, worker_class: int) -> Link:
        """The way out of a worker's host."""

    def down(self, worker_class: int) -> Link:
        """The way into a worker's host."""

    def sent(self, worker_class: int) -> Sends:
        """What a worker's host sent."""


class Ring(Engine):
    """All-reduce among all workers: one pipe, at the pace of the slowest link, that blocks may share."""

    def __init__(self, clock: VirtualClock, costs: WindowCosts, *, computing: Callable[[int], bool]) -> None:
        self.groups = [list(range(costs.classes))]
        self._clock = clock
        self._costs = costs
        self._computing = computing
        self._iteration = 0
        self._in_flight = 0
        self._pipe = Link(clock)  # shared or not, it is busy for as long
        self._sent = Sends()
        room = costs.effects.sharing
        self._shared = Shared(clock, room=room, urgency=PULL * costs.classes) if room > 1 else None
        self._lane = Lane(clock, latency_s=costs.latency_s, urgency=PUSH * costs.classes)

    def engine(self, group: int) -> Engine:
        """The ring itself: there is one group."""
        return self

    def up(self, worker_class: int) -> Link:
        """The pipe."""
        return self._pipe

    down = up

    def sent(self, worker_class: int) -> Sends:
        """What all send."""
        return self._sent

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Queue a block; its credit returns when it has arrived."""
        costs, effects = self._costs, self._costs.effects
        self._in_flight += block.nbytes
        load = block.nbytes * costs.stretch[block.index] * (1.0 + self._in_flight / effects.inflight_bytes)
        beside = 1.0 + effects.wire_slowdown if any(map(self._computing, self.groups[0])) else 1.0
        hold_s = (costs.ring_hold_s[block.index] + costs.ring_s_per_byte[self._iteration] * load) * beside
        self._sent.note(block, hold_s, self._in_flight)
        through_s = self._pipe.hold(hold_s, earliest_s=self._clock.now)
        if self._shared is None:
            self._through(through_s, block, sent, done)
        else:
            self._shared.add(hold_s, lambda: self._through(self._clock.now, block, sent, done))

    def begin(self, iteration: int) -> None:
        """The first worker starts an iteration: its rates hold from now on, also for what is in flight."""
        before, after = self._costs.ring_s_per_byte[self._iteration], self._costs.ring_s_per_byte[iteration]
        self._iteration = iteration
        ratio = after / before if before != after and before > 0 else 1.0
        self._pipe.stretch(ratio)
        if self._shared is not None:
            self._shared.stretch(ratio)
        self._lane.stretch(ratio, ratio)

    def close(self) -> None:
        """Nothing to let go of."""

    def _through(self, through_s: float, block: Block, sent: Sent, done: Done) -> None:
        self._lane.add(Transfer(block, through_s, through_s, lambda: self._arrived(block, sent, done)))

    def _arrived(self, block: Block, sent: Sent, done: Done) -> None:
        self._in_flight -= block.nbytes
        sent(block)
        done(block, None)


class Servers:
    """Parameter servers on the workers' hosts; every block is split evenly over them.

    A push returns its credit when the servers have it, whatever other workers do. When all pushes of a block are in,
    the sum goes back to every worker; of a reduce-scatter, when a worker starts the all-gather. Its credit then
    comes back with the sum.
    """

    def __init__(self, clock: VirtualClock, costs: WindowCosts, *, computing: Callable[[int], bool]) -> None:
        self.groups = [[c] for c in range(costs.classes)]
        self._clock = clock
        self._costs = costs
        self._computing = computing
        self._iteration = 0
        self._in_flight = [0] * costs.classes
        self._up = [Link(clock) for _ in range(costs.classes)]
        self._down = [Link(clock) for _ in costs.link_serves]
        self._sent = [Sends() for _ in range(costs.classes)]
        self._waiting: dict[int, list[tuple[int, Done]]] = defaultdict(list)  # that have pushed a block, by its index
        latency_s, classes = costs.latency_s, costs.classes
        self._pushes, self._pulls = (
            [Lane(clock, latency_s=latency_s, urgency=kind * classes + c) for c in range(classes)]
            for kind in (PUSH, PULL)
        )

    def engine(self, group: int) -> Engine:
        """One class's way to the servers."""
        return _Port(self, group)

    def up(self, worker_class: int) -> Link:
        """The uplink of a class's hosts."""
        return self._up[worker_class]

    def down(self, worker_class: int) -> Link:
        """The downlink of a class's hosts."""
        return self._down[int(self._costs.link[worker_class])]

    def sent(self, worker_class: int) -> Sends:
        """What a host of a class sends of its own blocks, there and back."""
        return self._sent[worker_class]

    def push(self, c: int, block: Block, sent: Sent, done: Done) -> None:
        """Send a block of class c to the servers."""
        costs, effects, k = self._costs, self._costs.effects, self._iteration
        self._in_flight[c] += block.nbytes
        load = block.nbytes * costs.stretch[block.index] * (1.0 + self._in_flight[c] / effects.inflight_bytes)
        beside = 1.0 + effects.wire_slowdown if self._computing(c) else 1.0
        begin_s = max(self._clock.now, self._up[c].free_s)
        hold_s = (costs.push_hold_s[c] + costs.push_up_s_per_byte[k, c] * load) * beside
        near_s = self._up[c].hold(hold_s, earliest_s=begin_s)
        back_s = 0.0
        if costs.serves[c]:
            back_s = costs.pull_hold_s + costs.pull_up_s_per_byte[k, c] * (block.nbytes * costs.stretch[block.index])
        self._sent[c].note(block, hold_s + back_s, self._in_flight[c])
        far_s = begin_s
        for link, serves in enumerate(costs.link_serves):
            if serves:
                hold_s = costs.push_down_s_per_byte[k, c, link] * load
                far_s = max(far_s, self._down[link].hold(hold_s, earliest_s=begin_s))
        self._pushes[c].add(Transfer(block, near_s, far_s, lambda: self._pushed(c, block, sent, done)))

    def pull(self, c: int, block: Block, sent: Sent, done: Done) -> None:
        """Send sums that are there to class c alone."""
        costs, k, now = self._costs, self._iteration, self._clock.now
        load = block.nbytes * costs.stretch[block.index]
        far_s = now
        for other, serves in enumerate(costs.serves):
            if serves:
                hold_s = costs.own_pull_hold_s[c, other] + costs.own_pull_up_s_per_byte[k, c, other] * load
                far_s = max(far_s, self._up[other].hold(hold_s, earliest_s=now))
        near_s = self.down(c).hold(costs.pull_down_s_per_byte[k, costs.link[c]] * load, earliest_s=now)

        def arrived() -> None:
            sent(block)
            done(block, None)

        self._pulls[c].add(Transfer(block, near_s, far_s, arrived))

    def begin(self, iteration: int) -> None:
        """The first worker starts an iteration: its rates hold from now on, also for what is in flight."""
        costs, k = self._costs, self._iteration
        up = [_slower(*pair) for pair in zip(costs.up_bytes_per_s[k], costs.up_bytes_per_s[iteration], strict=True)]
        down = [
            _slower(*pair) for pair in zip(costs.down_bytes_per_s[k], costs.down_bytes_per_s[iteration], strict=True)
        ]
        self._iteration = iteration
        for link, ratio in zip(self._up + self._down, up + down, strict=True):
            link.stretch(ratio)
        far_down = max(ratio for ratio, serves in zip(down, costs.link_serves, strict=True) if serves)
        far_up = max(ratio for ratio, serves in zip(up, costs.serves, strict=True) if serves)
        for c in range(costs.classes):
            self._pushes[c].stretch(up[c], far_down)
            self._pulls[c].stretch(down[costs.link[c]], far_up)

    def _pushed(self, c: int, block: Block, sent: Sent, done: Done) -> None:
        self._in_flight[c] -= block.nbytes
        self._waiting[block.index].append((c, done))
        everywhere = len(self._waiting[block.index]) == self._costs.classes
        waiting = sorted(self._waiting.pop(block.index), key=lambda each: each[0]) if everywhere else []
        if block.op is Collective.ALL_REDUCE:
            if everywhere:
                self._send_back(block, waiting)
            sent(block)
            return
        sent(block)
        for _, summed in waiting:
            summed(block, None)

    def _send_back(self, block: Block, waiting: list[tuple[int, Done]]) -> None:
        costs, k, now = self._costs, self._iteration, self._clock.now
        load = block.nbytes * costs.stretch[block.index]
        far_s = now
        for c, serves in enumerate(costs.serves):
            if serves:
                hold_s = costs.pull_hold_s + costs.pull_up_s_per_byte[k, c] * load
                far_s = max(far_s, self._up[c].hold(hold_s, earliest_s=now))
        near_s = [
            link.hold(per_byte * load, earliest_s=now)
            for link, per_byte in zip(self._down, costs.pull_down_s_per_byte[k], strict=True)
        ]
        for c, done in waiting:
            self._pulls[c].add(Transfer(block, near_s[costs.link[c]], far_s, _pulled(block, done)))


class _Port(Engine):
    """One class of workers' way to the servers."""

    def __init__(self, servers: Servers, worker_class: int) -> None:
        self._servers = servers
        self._class = worker_class

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Push a block, which is done when it has been pulled; or one of these alone."""
        move = self._servers.pull if block.op is Collective.ALL_GATHER else self._servers.push
        move(self._class, block, sent, done)

    def close(self) -> None:
        """Nothing to let go of."""


def _pulled(block: Block, done: Done) -> Callable[[], None]:
    return lambda: done(block, None)


def _slower(before: float, after: float) -> float:
    """How much longer what is under way takes at the new rate; on an infinite link nothing but overhead was."""
    return before / after if before != after and before < math.inf else 1.0


def _stretched(when_s: float, ratio: float, now_s: float) -> float:
    return now_s + (when_s - now_s) * ratio if ratio != 1.0 and when_s > now_s else when_s
