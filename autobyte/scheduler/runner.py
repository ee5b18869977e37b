"""Core and engine together: starts what the core decides, tells when a tensor has arrived, writes the trace."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from autobyte.scheduler.block import Block, Collective
from autobyte.scheduler.core import BlockState, Core
from autobyte.scheduler.engines.base import Engine, Moments
from autobyte.scheduler.plan import Plan
from autobyte.trace import BlockSpan, TimeSource, Trace

LATEST = 64  # blocks that are remembered for messages
AT_ONCE = 0.05  # part of a block's time, from when it is sent, in which the next one may start before it is in place


class Passage(NamedTuple):
    """A block that went over the wire.

    Args:
        nbytes: of gradients that were all-reduced; a half of an all-reduce counts half of its bytes.
        seconds: since it started, or since another was done while it was under way.
        alone: whether no other block was being sent while this one was, and it was in place right after it was sent.
        in_flight: bytes that held credit when it had started, its own among them.
    """

    nbytes: float
    seconds: float
    alone: bool
    in_flight: int = 0


class BlockTimes(NamedTuple):
    """When a block of a plan started, left this rank, and was in place (s); None: not yet.

    `step` counts the steps that were over before.
    """

    plan: Plan
    step: int
    block: Block
    start_s: float
    sent_s: float | None
    done_s: float | None


class Runner:
    """Runs one rank's schedule.

    Events come from the training thread and from threads of the engine. They go into a mailbox, and the first thread
    there handles them all; no thread waits for a lock. An engine may call back from within `start`, and callbacks may
    call the runner.

    Args:
        plan: what to start with.
        engine: moves the blocks; owned by the caller.
        clock: the time, for the trace and for `passages`.
        arrived: called with the tensors that a block has completed.
        failed: called with a block and its error; no other block is started from then on.
        reduced: called for every reduce-scatter, when this rank has the sums of its share.
        trace: where spans of blocks go, if anywhere.
        rank: the rank the spans are written for.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        *,
        clock: TimeSource,
        arrived: Callable[[Collection[int]], None],
        failed: Callable[[Block, Exception], None],
        reduced: Callable[[], None] = lambda: None,
        trace: Trace | None = None,
        rank: int = 0,
    ) -> None:
        self._core = Core(plan)
        self._engine = engine
        self._clock = clock
        self._arrived = arrived
        self._failed = failed
        self._reduced = reduced
        self._trace = trace
        self._rank = rank
        self._mailbox: deque[tuple[int, ...] | Callable[[], None]] = (
            deque()
        )  # tensors that are ready, and what else to do
        self._emptying = threading.Lock()
        self._at_boundary = True
        self._broken = False  # a block has failed
        self._latest: deque[tuple[Plan, int, Block, float, float, float]] = deque(maxlen=LATEST)  # that were timed
        self._untimed: deque[tuple[Plan, int, Block, float]] = deque()  # done as far as the host sees
        self._since_s = 0.0  # when a block was done last, or the first of those under way started
        self.passages: deque[Passage] = deque(maxlen=4096)
        self._first = 0  # step whose blocks are the first among them
        self.elsewhere = 0  # steps whose gradients went another way
        self._load(plan)

    @property
    def step(self) -> int:
        """Steps that are over."""
        return self._core.step + self.elsewhere

    @property
    def at_boundary(self) -> bool:
        """Whether every block is done and none is ready. The last arrivals may still be being told."""
        return self._at_boundary

    @property
    def under_way(self) -> list[int]:
        """Blocks that were started and are not done, for messages."""
        return [index for index, flying in enumerate(self._flying) if flying]

    @property
    def latest(self) -> list[BlockTimes]:
        """Blocks that were done last, then those under way, as they started; 64 at most."""
        core, plan = self._core, self._plan
        flying = [BlockTimes(*started, None, None) for started in list(self._untimed)[:LATEST]]
        flying += [
            BlockTimes(
                plan,
                self.step,
                plan.tiling.blocks[index],
                self._start_s[index],
                self._sent_s[index] if core.state(index) is BlockState.SENT else None,
                None,
            )
            for index in sorted(self.under_way, key=lambda index: self._start_s[index])[: LATEST - len(flying)]
        ]
        done = [BlockTimes(*times) for times in list(self._latest)]
        return done[max(0, len(done) + len(flying) - LATEST) :] + flying

    @property
    def missing(self) -> list[int]:
        """The tensors that are not ready yet in this step, for messages."""
        return self._core.missing

    def ready(self, *tensors: int) -> None:
        """Gradients are complete on this rank."""
        self._post(tensors)

    def end_step(self) -> None:
        """No more gradients will come in this step."""
        self._post(self._on_end_step)

    def configure(self, plan: Plan) -> None:
        """Use another plan from the next step boundary on."""
        self._post(lambda: self._on_configure(plan))

    def record(self, trace: Trace | None) -> None:
        """Write spans of blocks to a trace from the next gradient on; None writes no more."""
        self._post(lambda: self._on_record(trace))

    def forget(self) -> None:
        """Drop the passages of all steps that are over, including those that a device has not finished."""
        self._first = self.step
        self.passages.clear()

    def tell(self) -> bool:
        """Have the engine say when blocks travelled; returns whether all times of blocks that are done are known."""
        self._post(self._engine.tell)
        return not self._untimed

    def _post(self, event: tuple[int, ...] | Callable[[], None]) -> None:
        """Post an event, and handle all that are there, unless another thread is doing so."""
        mailbox, emptying = self._mailbox, self._emptying
        mailbox.append(event)
        while mailbox and emptying.acquire(blocking=False):
            try:
                while mailbox:
                    event = mailbox.popleft()
                    if isinstance(event, tuple):
                        self._on_ready(event)
                    else:
                        event()
                        self._at_boundary = self._core.at_boundary
            finally:
                emptying.release()

    def _load(self, plan: Plan) -> None:
        self._plan = plan
        self._blocks_of = plan.tiling.blocks_of
        self._coming = [len(blocks) for blocks in self._blocks_of]
        self._whole = [all(self._coming[tensor] == 1 for tensor in held) for held in plan.tiling.tensors_of]
        self._empty = {tensor for tensor, blocks in enumerate(self._coming) if not blocks}  # without elements
        self._ready_s = [0.0] * len(self._coming)
        self._start_s = [0.0] * len(plan.tiling)
        self._sent_s = [0.0] * len(plan.tiling)
        self._flying = [False] * len(plan.tiling)
        self._leaving: set[int] = set()  # started and not sent
        self._alone = [True] * len(plan.tiling)
        self._beside = [0] * len(plan.tiling)  # bytes in flight when a block had started
        self._under_way = 0

    def _on_ready(self, tensors: tuple[int, ...]) -> None:
        started = self._core.ready(*tensors)
        self._at_boundary = False
        if self._trace is not None:
            now_s = self._clock()
            for tensor in tensors:
                self._ready_s[tensor] = now_s
        if started:
            self._start(started)
        if self._empty:
            self._tell(self._empty.intersection(tensors))

    def _on_end_step(self) -> None:
        missing, now = self._core.missing, self._clock()
        for tensor in missing:
            self._ready_s[tensor] = now
        self._start(self._core.end_step())
        self._tell(self._empty.intersection(missing))
        self._adopt()

    def _on_record(self, trace: Trace | None) -> None:
        self._trace = trace
        self._ready_s = [self._clock()] * len(self._ready_s)  # of gradients that were ready before

    def _on_configure(self, plan: Plan) -> None:
        self._core.configure(plan)
        self._adopt()

    def _on_sent(self, block: Block) -> None:
        self._sent_s[block.index] = self._clock()
        self._leaving.discard(block.index)
        self._start(self._core.sent(block))

    def _on_done(self, block: Block) -> None:
        now, index = self._clock(), block.index
        start_s, sent_s, busy_s = self._start_s[index], self._sent_s[index], now - self._since_s
        alone = self._alone[index] and now - sent_s <= AT_ONCE * busy_s
        ready_s = 0.0 if self._trace is None else max(self._ready_s[segment.tensor] for segment in block.segments)
        ready_s = min(ready_s, start_s)  # recording may have begun after the block
        self._since_s = now  # blocks may end in another order than they started in
        plan, step = self._plan, self.step
        self._untimed.append((plan, step, block, start_s))
        seen = Moments(ready_s, start_s, sent_s, now, busy_s, alone)
        self._engine.time(block, seen, partial(self._timed, plan, step, block, self._beside[index]))
        self._under_way -= 1
        self._flying[block.index] = False
        complete = self._count(block)
        self._start(self._core.done(block))
        self._at_boundary = self._core.at_boundary  # whoever hears of the last arrival may begin the next step
        if block.op is Collective.REDUCE_SCATTER:
            self._reduced()
        self._tell(complete)
        self._adopt()

    def _timed(self, plan: Plan, step: int, block: Block, beside: int, at: Moments) -> None:
        """Note when a block travelled."""
        self._untimed.popleft()
        self._latest.append((plan, step, block, at.start_s, at.sent_s, at.done_s))
        if plan is self._plan and step >= self._first:  # else another window has begun
            whole = block.op is Collective.ALL_REDUCE  # a half has half of the traffic
            in_flight = block.nbytes if at.alone else beside
            self.passages.append(Passage(block.nbytes if whole else block.nbytes / 2, at.busy_s, at.alone, in_flight))
        if self._trace is not None:
            layer = plan.job.gradients.layer
            layers = tuple(sorted({int(layer[segment.tensor]) for segment in block.segments}))
            times = at.ready_s, at.start_s, at.sent_s, at.done_s
            self._trace.blocks.append(BlockSpan(self._rank, step, block.index, block.nbytes, layers, *times))

    def _adopt(self) -> None:
        """Follow the core to the plan that it has taken up."""
        if self._core.plan is not self._plan:
            self._load(self._core.plan)

    def _start(self, blocks: list[Block]) -> None:
        in_flight = self._core.in_flight_bytes - sum(block.nbytes for block in blocks)
        for block in blocks:
            if self._broken:
                return
            in_flight += block.nbytes
            self._beside[block.index] = in_flight
            self._start_s[block.index] = self._clock()
            if not self._under_way:
                self._since_s = self._start_s[block.index]
            self._under_way += 1
            self._flying[block.index] = True
            self._alone[block.index] = not self._leaving
            if len(self._leaving) == 1:
                self._alone[next(iter(self._leaving))] = False
            self._leaving.add(block.index)
            try:
                self._engine.start(block, self._sent, self._done)
            except Exception as error:  # of a network that is gone, say: told like one that comes later
                self._fail(block, error)

    def _sent(self, block: Block) -> None:
        self._post(lambda: self._on_sent(block))

    def _done(self, block: Block, error: Exception | None) -> None:
        self._post(lambda: self._on_done(block) if error is None else self._fail(block, error))

    def _fail(self, block: Block, error: Exception) -> None:
        """Start nothing more: engines that match blocks by order of issue would add up different ones."""
        self._broken = True
        self._failed(block, error)

    def _tell(self, complete: Collection[int]) -> None:
        """Tensors are in place."""
        if complete:
            self._arrived(complete)

    def _count(self, block: Block) -> Sequence[int]:
        """The tensors that are complete with this block."""
        tensors = self._plan.tiling.tensors_of[block.index]
        if self._whole[block.index]:
            return tensors
        complete, coming = [], self._coming
        for tensor in tensors:
            coming[tensor] -= 1
            if coming[tensor] == 0:
                coming[tensor] = len(self._blocks_of[tensor])  # for the next step
                complete.append(tensor)
        return complete
