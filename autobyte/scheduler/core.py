"""The scheduler itself: a queue and a budget. It only decides; a runner acts.

No tensor, no clock, no thread, no socket: events come in as calls, the blocks to start now go out. So the same
core runs in virtual time, on a testbed and in training, and a test of it is a story of events.
"""

import heapq
from enum import Enum

from autobyte.errors import AutoByteError
from autobyte.scheduler.block import Block
from autobyte.scheduler.plan import CreditRule, Overlap, Plan


class BlockState(Enum):
    """The life of a block within a step."""

    WAITING = "waiting"  # some of its gradients are not complete
    READY = "ready"  # in the queue
    STARTED = "started"  # holds credit
    SENT = "sent"  # credit is back
    DONE = "done"  # the result is in place


class SchedulingError(AutoByteError):
    """An event that cannot follow on those before it: the caller's fault, never the network's."""


class Core:
    """Decides which blocks start now, from a plan and from what has happened.

    >>> core = Core(plan)
    >>> for block in core.ready(tensor): engine.start(block, sent, done)

    A step is closed by `end_step` and over when, besides, every block is done. The core is then at a step boundary,
    fresh for the next step, with the plan that `configure` gave it meanwhile.

    Reference: ByteScheduler (SOSP'19), sec. 4.2 and algorithm 1; credit as its released code counts it, in bytes.
    """

    def __init__(self, plan: Plan) -> None:
        self.step = 0  # steps that are over
        self._next_plan: Plan | None = None
        self._adopt(plan)

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._plan

    @property
    def in_flight_bytes(self) -> int:
        """Bytes that hold credit."""
        return self._in_flight

    @property
    def at_boundary(self) -> bool:
        """Whether every block is done and none is ready: where switches, flushes and checkpoints happen."""
        return not self._closed and self._incomplete == len(self._complete)

    @property
    def missing(self) -> list[int]:
        """The tensors that are not ready yet in this step."""
        return [tensor for tensor, complete in enumerate(self._complete) if not complete]

    def state(self, block: int) -> BlockState:
        """Where a block is in the current step."""
        return self._state[block]

    def ready(self, *tensors: int) -> list[Block]:
        """Gradients are complete on this rank, one after the other.

        Raises:
            SchedulingError: one already was, in this step; or `end_step` has closed the step.
        """
        started: list[Block] = []
        for tensor in tensors:
            if self._closed or self._complete[tensor]:
                why = "after its step was closed" if self._closed else "twice in one step"
                raise SchedulingError(f"tensor '{self._plan.job.gradients.names[tensor]}' became ready {why}")
            if self._mark(tensor):
                started += self._start()
        return started

    def sent(self, block: Block) -> list[Block]:
        """A block has left this rank: its credit returns. A ring has its sums, so its all-gather may go."""
        self._advance(block, BlockState.STARTED, BlockState.SENT)
        self._in_flight -= block.nbytes
        if self._follows is BlockState.SENT and self._follower[block.index] >= 0:
            self._reduced(block)
        return self._start()

    def done(self, block: Block) -> list[Block]:
        """A block's result is in place. Servers have its sums, so its all-gather may go."""
        self._advance(block, BlockState.SENT, BlockState.DONE)
        self._undone -= 1
        if self._follows is BlockState.DONE and self._follower[block.index] >= 0:
            self._reduced(block)
            return self._start()
        self._finish_step()
        return []

    def end_step(self) -> list[Block]:
        """No more gradients will come in this step: what never became ready counts as ready now."""
        for tensor in self.missing:
            self._mark(tensor)
        self._closed = True
        started = self._start()
        self._finish_step()
        return started

    def configure(self, plan: Plan) -> None:
        """Use another plan from the next step boundary on; at a boundary, from now on."""
        if self.at_boundary:
            self._adopt(plan)
        else:
            self._next_plan = plan

    def _adopt(self, plan: Plan) -> None:
        self._plan, self._next_plan = plan, None
        self._blocks = plan.tiling.blocks
        self._order: list[int] = plan.tiling.order.tolist()
        self._rank: list[int] = plan.tiling.rank.tolist()
        self._follower: list[int] = plan.tiling.follower.tolist()
        self._follows = BlockState.DONE if plan.job.cluster.servers else BlockState.SENT  # what an all-gather follows
        self._blocks_of = plan.tiling.blocks_of
        self._sequence: list[int] | None = None if plan.sequence is None else plan.sequence.tolist()
        self._new_step()

    def _new_step(self) -> None:
        self._complete = [False] * len(self._plan.job.gradients)
        self._incomplete = len(self._complete)
        self._state = [BlockState.WAITING] * len(self._blocks)
        self._missing: list[int] = self._plan.tiling.waits.tolist()
        self._queue: list[int] = []  # ranks of ready blocks, a heap: the most urgent first
        self._position = 0  # in the sequence, where the plan has one
        self._in_flight = 0
        self._undone = len(self._blocks)
        self._scatters = 0 if self._sequence is not None else self._plan.awaited_scatters  # that are not over
        self._closed = False

    def _mark(self, tensor: int) -> bool:
        """A tensor is there; whether a block has become ready."""
        self._complete[tensor] = True
        self._incomplete -= 1
        missing, released = self._missing, False
        for index in self._blocks_of[tensor]:
            if missing[index] > 1:  # as `_release` does, without a call
                missing[index] -= 1
            else:
                released |= self._release(index)
        return released

    def _release(self, index: int) -> bool:
        """One of those that a block waits for is there; whether it was the last."""
        self._missing[index] -= 1
        if self._missing[index]:
            return False
        self._state[index] = BlockState.READY
        if self._sequence is None:
            heapq.heappush(self._queue, self._rank[index])
        return True

    def _reduced(self, scatter: Block) -> None:
        """A reduce-scatter is over: its all-gather may go."""
        self._scatters = max(0, self._scatters - 1)
        self._release(self._follower[scatter.index])

    def _start(self) -> list[Block]:
        """Take blocks from the head of the line while there is credit; none overtakes a more urgent one.

        While the norm of gradients that are clipped waits for reduce-scatters, an all-gather fills an idle link, and
        nothing else: whatever it is beside would be late.
        """
        started: list[Block] = []
        if self._plan.overlap is Overlap.NONE and not self._closed:
            return started
        while (block := self._head()) is not None and self._fits(block):
            if self._sequence is None:
                heapq.heappop(self._queue)
            else:
                self._position += 1
            self._state[block.index] = BlockState.STARTED
            self._in_flight += block.nbytes
            started.append(block)
        return started

    def _head(self) -> Block | None:
        if self._sequence is None:
            return self._blocks[self._order[self._queue[0]]] if self._queue else None
        if self._position == len(self._sequence):
            return None
        index = self._sequence[self._position]
        return self._blocks[index] if self._state[index] is BlockState.READY else None

    def _fits(self, block: Block) -> bool:
        credit = self._plan.credit_bytes
        if self._in_flight and self._scatters and self._follower[block.index] < 0:
            return False
        if credit is None or self._in_flight == 0:
            return True  # a block larger than the credit still goes
        if self._plan.rule is CreditRule.SOFT:
            return self._in_flight < credit
        return self._in_flight + block.nbytes <= credit

    def _advance(self, block: Block, before: BlockState, after: BlockState) -> None:
        if self._state[block.index] is not before:
            state = self._state[block.index].value
            raise SchedulingError(f"block {block.index} cannot be {after.value}: it is {state}")
        self._state[block.index] = after

    def _finish_step(self) -> None:
        if not self._closed or self._undone:
            return
        self.step += 1
        if self._next_plan is None:
            self._new_step()
        else:
            self._adopt(self._next_plan)
