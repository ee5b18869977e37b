"""Blocks that another library's parameter servers add up: MXNet's, say. Processes of their own carry them there.

What a rank sends lies in memory that it and its carrier both see, in places of fixed sizes. A place is a key on the
servers. These forget none, so blocks of later plans use earlier keys again, in the same order on all ranks.
"""

import mmap
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from autobyte.scheduler.block import Block, Segment
from autobyte.scheduler.engines.base import Done, Engine, Sent
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.engines.carriers import Carriers
from autobyte.scheduler.engines.labels import shown
from autobyte.units import MIB

SAME_BYTES = 64 * MIB  # of keys of one size; blocks beyond wait for one of them
PARTING_S = 30.0  # in which all others must have ended, too


@dataclass
class Journey:
    """A block on its way, or waiting for its key.

    Args:
        number: how many were started before it; the same on all ranks.
        travelling: its values, averaged; its sums go there.
    """

    number: int
    block: Block
    travelling: Tensor
    sent: Sent
    done: Done
    acknowledged: bool = False


@dataclass
class Slot:
    """A key, and where its values lie.

    Args:
        journey: that uses it; the others wait for it.
    """

    key: int
    room: Tensor
    journey: Journey | None = None
    waiting: deque[Journey] = field(default_factory=deque)


class Carried(Engine):
    """Moves a block to servers of another library and back, by a process of its own.

    Servers acknowledge a push when they have that of all workers, so all ranks must start the same blocks in the same
    order. A dtype that they do not add up travels in single precision. Halves of all-reduces do not come here: plans
    for servers have none.

    Args:
        buffers: where the gradients lie.
        carriers: this rank's processes; closed with the engine.
    """

    def __init__(self, buffers: Buffers, carriers: Carriers) -> None:
        self._buffers = buffers
        self._carriers = carriers
        self._lock = threading.Lock()  # of what follows
        self._order = threading.Lock()  # of what the carrier is told
        self._places: dict[tuple[tuple[Segment, ...], torch.dtype], Slot] = {}
        self._by_size: dict[tuple[int, torch.dtype], list[Slot]] = defaultdict(list)
        self._used: dict[tuple[int, torch.dtype], int] = defaultdict(int)
        self._keys: list[Slot] = []
        self._started = 0
        self._ended: dict[int, int] = {}  # blocks that ranks had started when they ended
        self._problem = ""
        self._ready, self._over = threading.Event(), threading.Event()
        self._memory_bytes = 0
        self._reader = threading.Thread(target=self._read, name="autobyte-carried", daemon=True)
        self._reader.start()

    def join(self, timeout_s: float) -> None:
        """Wait until all members of the cluster are there.

        Raises:
            ConnectionError: one of them is gone.
            TimeoutError: they do not come in time.
        """
        if not self._ready.wait(timeout_s):
            raise TimeoutError(f"{self._carriers.what} did not start on all ranks within {timeout_s:g} s")
        if self._problem:
            raise ConnectionError(self._problem)

    def start(self, block: Block, sent: Sent, done: Done) -> None:
        """Copy a block to its place, and have it carried."""
        done = shown(block, self.names, done)
        travelling = self._buffers.take(block)
        with self._order:
            with self._lock:
                problem = self._problem or self._missed(self._started)
                if not problem:
                    place = self._place(block, travelling)
                    journey = Journey(self._started, block, travelling, sent, done)
                    self._started += 1
                    free = place.journey is None
                    if free:
                        place.journey = journey
                    else:
                        place.waiting.append(journey)
            if not problem and free:
                self._carry(place, journey)
        if problem:
            done(block, ConnectionError(problem))

    def close(self) -> None:
        """End, together with the other ranks: until then they may need this rank's server."""
        if not self._problem:
            self._carriers.line.tell("bye", self._started)
            self._over.wait(PARTING_S)
        self.abandon()

    def abandon(self) -> None:
        """End, whatever other ranks still need."""
        self._fail("the engine is closed")
        self._carriers.close()
        self._reader.join()

    def _carry(self, place: Slot, journey: Journey) -> None:
        place.room.copy_(journey.travelling)
        self._carriers.line.tell("move", place.key, -journey.block.index)

    def _place(self, block: Block, travelling: Tensor) -> Slot:
        """Where a block's values lie. A key is made when it is needed first, at the same block on all ranks."""
        size = travelling.numel(), self._carriers.wide.get(travelling.dtype, travelling.dtype)
        known = block.segments, size[1]
        if known not in self._places:
            same, used = self._by_size[size], self._used[size]
            most = max(2, SAME_BYTES // (size[0] * size[1].itemsize))
            if used < most:
                same.append(self._make(*size))
            self._places[known] = same[used % most]
            self._used[size] += 1
        return self._places[known]

    def _make(self, numel: int, dtype: torch.dtype) -> Slot:
        nbytes, offset = numel * dtype.itemsize, self._memory_bytes
        self._memory_bytes += -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        os.ftruncate(self._carriers.memory, self._memory_bytes)
        memory = mmap.mmap(self._carriers.memory, nbytes, offset=offset)
        self._carriers.line.tell("make", offset, nbytes, str(dtype).removeprefix("torch."))
        place = Slot(len(self._keys), torch.frombuffer(memory, dtype=dtype))
        self._keys.append(place)
        return place

    def _read(self) -> None:
        for what, *values in self._carriers.line.messages():
            if what == "pushed":
                self._on_pushed(self._keys[values[0]])
            elif what == "pulled":
                self._on_pulled(self._keys[values[0]])
            elif what == "ready":
                self._ready.set()
            elif what == "over":
                self._over.set()
            elif what == "bye":
                self._on_bye(*values)
            else:
                role, rank = values
                self._fail(f"the {role} of {self._carriers.what} on rank {rank} is gone")
        if not self._problem:
            self._fail(self._carriers.last_words())

    def _on_pushed(self, place: Slot) -> None:
        journey = place.journey
        if journey is not None:  # it has not failed meanwhile
            journey.acknowledged = True
            journey.sent(journey.block)

    def _on_pulled(self, place: Slot) -> None:
        journey, error = place.journey, None
        if journey is None:
            return
        try:
            journey.travelling.copy_(place.room)
            self._buffers.give(journey.block)
        except Exception as problem:  # the runner tells the training thread
            error = problem
        with self._order:
            with self._lock:
                place.journey = following = place.waiting.popleft() if place.waiting else None
            if following is not None:
                self._carry(place, following)
        journey.done(journey.block, error)

    def _on_bye(self, rank: int, started: int) -> None:
        """Give up blocks that a rank which has ended never started."""
        with self._lock:
            self._ended[rank] = started
            lost = self._take(lambda journey: journey.number >= started and not journey.acknowledged)
        self._report(lost, self._missed(started))

    def _missed(self, number: int) -> str:
        """Why a block cannot be added up, of which so many were started before."""
        gone = [rank for rank, started in self._ended.items() if started <= number]
        return f"rank {gone[0]} has ended, and takes no part" if gone else ""

    def _fail(self, problem: str) -> None:
        """Let everything end, now and from now on."""
        with self._lock:
            if self._problem:
                return
            self._problem = problem
            lost = self._take(lambda journey: True)
        self._ready.set()
        self._over.set()
        self._report(lost, problem)

    def _take(self, which: Callable[[Journey], bool]) -> list[Journey]:
        """Journeys that are over, because they cannot end."""
        lost = []
        for place in self._keys:
            lost += [journey for journey in (place.journey, *place.waiting) if journey is not None and which(journey)]
            place.waiting = deque(journey for journey in place.waiting if not which(journey))
            if place.journey is not None and which(place.journey):
                place.journey = None
        return lost

    def _report(self, lost: Sequence[Journey], problem: str) -> None:
        for journey in lost:
            journey.done(journey.block, ConnectionError(problem))
