"""One training job on one rank: a runner with its engine, what has arrived, and what to say when it does not."""

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta

from autobyte.exchange.control import CommunicationError, first_line
from autobyte.exchange.diagnostics import Diagnostics, format_blocks, format_tensors
from autobyte.exchange.progress import Progress
from autobyte.exchange.rollcall import LONG_S, RollCall
from autobyte.scheduler.block import Block
from autobyte.scheduler.engines.base import Engine
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.runner import Runner

#: Whether threads of Python run at the same time: what one writes, another may see later than what follows.
FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()


class Session:
    """Communication of one wrapped model, step after step.

    Args:
        plan: what to begin with.
        engine: moves the blocks; closed with the session.
        rank: of this process, for messages.
        timeout: after which a wait fails.
        progress: where training is.
        rollcall: tells which rank is to blame for a failure.
        diagnostics: hears of the first failure.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        *,
        rank: int,
        timeout: timedelta,
        progress: Progress,
        rollcall: RollCall,
        diagnostics: Diagnostics | None = None,
    ) -> None:
        self.plan = plan
        self._engine = engine
        self._rank = rank
        self.progress = progress
        self._rollcall: RollCall | None = rollcall  # until the error says who is silent
        self._diagnostics = diagnostics or Diagnostics(None, rank=rank)
        self._diagnostics.include(self._state)
        self.timeout_s = timeout.total_seconds()
        self._error: CommunicationError | None = None
        self._changed = threading.Condition()
        self._naming = threading.Lock()  # held while the roll is called
        self._awaited: set[int] = set()  # tensors whose arrival somebody is to hear of
        self._arrived = [True] * len(plan.job.gradients)
        self._coming = 0  # tensors that have not arrived
        self._unreduced = 0  # reduce-scatters that are not over
        self.runner = Runner(
            plan,
            engine,
            clock=time.perf_counter,
            arrived=self._on_arrived,
            failed=self.fail_block,
            reduced=self._on_reduced,
            rank=rank,
        )
        progress.follow(self)

    def begin(self, plan: Plan) -> None:
        """Begin a step under a plan, when everything of the step before has arrived."""
        self.wait_all()
        self.check()
        if not self.runner.at_boundary:
            raise self._failure("a new step begins before the last one was ended")
        if plan is not self.plan:
            self._finish_before("the plan cannot change")
            self.plan = plan
            self.runner.configure(plan)
        self._arrived = [False] * len(plan.job.gradients)
        self._coming = len(self._arrived)
        self._unreduced = plan.tiling.scatters

    def ready(self, tensors: Iterable[int]) -> None:
        """Gradients are complete."""
        self.runner.ready(*tensors)

    def end(self) -> None:
        """No more gradients come in this step."""
        self.runner.end_step()

    @property
    def whole(self) -> bool:
        """Whether all tensors of the step are in place, whatever has gone wrong since."""
        return not self._coming

    @property
    def failed(self) -> bool:
        """Whether something has gone wrong: tensors that are not in place never will be."""
        return self._error is not None

    @property
    def step(self) -> int:
        """The step whose blocks are under way, those among them that only a device still works on."""
        pending = len(self._engine.unfinished())
        rows = self.runner.latest[-pending:] if pending else []
        return rows[0].step if rows else self.runner.step

    def rest(self) -> None:
        """Wait until nothing is under way: gradients go another way from now on.

        Raises:
            CommunicationError: an engine failed, or something does not come within the timeout.
        """
        self.wait_all()
        self._finish_before("gradients cannot go another way")

    def pass_by(self) -> None:
        """A step is over whose gradients went another way."""
        self.runner.elsewhere += 1

    def arrived(self, tensors: Iterable[int]) -> bool:
        """Whether tensors are in place, whatever has gone wrong since."""
        return not self._coming or all(map(self._arrived.__getitem__, tensors))

    def wait(self, tensors: Iterable[int]) -> None:
        """Wait until tensors are in place.

        Raises:
            CommunicationError: an engine failed, or they do not come within the timeout.
        """
        arrived, wanted = self._arrived, list(tensors)
        if self.arrived(wanted):
            return
        missing = wanted[:]

        def over() -> bool:
            while missing:  # nobody looks at any of them twice
                self._awaited.add(missing[-1])  # first: whoever lets it arrive looks here afterwards
                if not arrived[missing[-1]]:
                    break
                self._awaited.discard(missing.pop())
            return self._error is not None or not missing

        self._wait(over)
        late = [tensor for tensor in wanted if not arrived[tensor]]
        if late:
            self.check()
            self.fail(self._failure(f"tensor '{self._name(late[0])}' did not arrive within {self.timeout_s:g} s"))
            self.check()

    def wait_reduced(self) -> None:
        """Wait until this rank has the sums of its shares of all gradients of the step.

        Raises:
            CommunicationError: an engine failed, or they do not come within the timeout.
        """
        self._wait(lambda: self._error is not None or not self._unreduced)
        if self._unreduced:
            self.check()
            self.fail(self._failure(f"reduce-scatters are not over within {self.timeout_s:g} s: {self._unreduced}"))
            self.check()

    def _wait(self, over: Callable[[], bool]) -> None:
        """Wait until something is over, or for as long as the timeout; then and when ranks fail, hear of it."""
        with self._changed:
            is_over = self._changed.wait_for(over, min(LONG_S, self.timeout_s))
        if not is_over and self._rollcall is not None:
            self._rollcall.listen(self._on_alarm, where=self._waits)
            with self._changed:
                self._changed.wait_for(over, self.timeout_s - LONG_S)
            self._rollcall.ignore()

    def wait_all(self) -> None:
        """Wait until everything of this step is in place, and the step is over."""
        self.wait(range(len(self._arrived)))

    def check(self) -> None:
        """Raise what has gone wrong, if anything has, and say which rank is silent."""
        if self._error is None:
            return
        with self._naming:  # several threads may wait
            rollcall = self._rollcall
            others = [] if rollcall is None else [rollcall.absent(), rollcall.heard]
            where = self._diagnostics.write(str(self._error), *others)
            where = "" if where in str(self._error) else where
            if others or where:
                self._error = CommunicationError("; ".join([str(self._error), *others[:1]]) + where)
                self._rollcall = None  # once is enough
        raise self._error

    def fail(self, error: CommunicationError, *, names_silent: bool = False) -> None:
        """Let every wait end with an error; the first one counts.

        Args:
            error: what has gone wrong.
            names_silent: its message says which rank is silent: nobody is asked, if it is the first.
        """
        if self._error is None:
            self._diagnostics.capture()
        with self._changed:
            self._error = self._error or error
            names_silent = names_silent and self._error is error
            self._changed.notify_all()
        rollcall = self._rollcall  # another thread may let go of it
        if rollcall is not None:
            rollcall.alarm(str(error))
            if names_silent:
                self._rollcall = None

    def fail_block(self, block: Block, error: Exception) -> None:
        """Let every wait end, because a block failed."""
        self.fail(
            self._failure(
                f"block {block.index} of tensor '{self._name(block.segments[0].tensor)}': {first_line(error)}"
            )
        )

    def fail_tensor(self, tensor: int, error: Exception) -> None:
        """Let every wait end, because a tensor does not arrive."""
        self.fail(self._failure(f"tensor '{self._name(tensor)}' has not arrived; {first_line(error)}"))

    def fail_elsewhere(self, what: str) -> None:
        """Let training end, because gradients that went another way did not arrive."""
        self.fail(CommunicationError(f"{self.here}: {what}"))

    @property
    def here(self) -> str:
        """Rank and step, for a message."""
        return f"rank {self._rank}, step {self.step}"

    def listen(self, heard: Callable[[str], None], *, where: Callable[[], str] | None = None) -> None:
        """Call back if another rank raises an alarm, until `ignore` is called.

        Args:
            heard: is told the message.
            where: tells for a line in the log what is waited for; by default the tensor.
        """
        if self._rollcall is not None:
            self._rollcall.listen(heard, where=where or self._waits)

    def ignore(self) -> None:
        """Listen to no alarm."""
        if self._rollcall is not None:
            self._rollcall.ignore()

    def located(self, why: object) -> CommunicationError:
        """A failure beside the gradients, with the tensor that is being waited for."""
        late = self._late()
        what = f"tensor '{self._name(late[0])}' has not arrived" if late else "all tensors have arrived"
        return self._failure(f"{what}; {why}")

    def _state(self) -> str:
        """What has been under way, for whoever looks into a failure."""
        names, missing, enqueued = self.plan.job.gradients.names, set(self.runner.missing), self._enqueued()
        late, flying = self._late(), len(self.runner.under_way) + len(self._engine.unfinished())
        blocks = format_blocks(self.runner.latest, time.perf_counter())
        here = [tensor in enqueued or tensor not in missing for tensor in late]
        tensors = format_tensors([names[tensor] for tensor in late], here=here)
        return (
            f"last blocks of {len(self.plan.tiling)} in the plan, {flying} of them under way; "
            f"times are milliseconds, and 0 is the failure:\n{blocks}\n\n"
            f"tensors that have not arrived: {len(late)} of {len(names)}\n{tensors}"
        )

    def _waits(self) -> str:
        late = self._late()
        what = f"tensor '{self._name(late[0])}' has not arrived" if late else "a step has not ended"
        return f"{self.here}: {what}"

    def _late(self) -> list[int]:
        """Tensors that have not arrived, those among them that only a device still waits for."""
        enqueued = self._enqueued()
        return [tensor for tensor, arrived in enumerate(self._arrived) if not arrived or tensor in enqueued]

    def _enqueued(self) -> set[int]:
        """Tensors that only a device still waits for."""
        return {segment.tensor for block in self._engine.unfinished() for segment in block.segments}

    def finish(self) -> bool:
        """Wait until no block is under way, on a device either: before plans change, and at the end.

        Returns:
            whether none is.
        """
        deadline = time.monotonic() + self.timeout_s
        while not (over := self.runner.at_boundary and not self._engine.unfinished()):
            if self._error is not None or time.monotonic() >= deadline:
                break
            time.sleep(0.01)
        return over

    def _finish_before(self, cannot: str) -> None:
        """Wait until no block is under way; else fail, and say what cannot be done."""
        if not self.finish():
            why = f"{cannot}: blocks of the last step are not over within {self.timeout_s:g} s"
            self.fail(self.located(why))  # the first failure counts
        self.check()

    def close(self, *, ended: bool) -> bool:
        """Wait for what other ranks still need of a step that was ended, and let go of the engine.

        Args:
            ended: no step is open.

        Returns:
            whether nothing is under way.
        """
        if ended:
            self.finish()
        over = self.runner.at_boundary and not self._engine.unfinished()
        self._engine.close()
        return over and self._error is None

    def _on_arrived(self, tensors: Collection[int]) -> None:
        """Note it without a lock: the runner tells of one block at a time."""
        arrived = self._arrived
        for tensor in tensors:
            if not arrived[tensor]:
                arrived[tensor] = True  # first: who sees that none is coming may begin the next step
                self._coming -= 1
        if FREE_THREADED or not self._awaited.isdisjoint(tensors):
            with self._changed:
                self._awaited.difference_update(tensors)
                self._changed.notify_all()

    def _on_reduced(self) -> None:
        with self._changed:
            self._unreduced -= 1
            if not self._unreduced:
                self._changed.notify_all()

    def _on_alarm(self, message: str) -> None:
        self.fail(self.located(message))

    def _failure(self, what: str) -> CommunicationError:
        flying = self.runner.under_way + [block.index for block in self._engine.unfinished()]
        return CommunicationError(f"{self.here}: {what} ({len(flying)} blocks under way: {flying[:5]})")

    def _name(self, tensor: int) -> str:
        return self.plan.job.gradients.names[tensor]
