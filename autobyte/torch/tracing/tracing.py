"""What the wrapper does while a trace is on: the same as before, and it notes what happens."""

import contextlib
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from autobyte.errors import FileError
from autobyte.exchange.control import CommunicationError
from autobyte.scheduler.plan import Plan
from autobyte.torch.exchange.training import Training
from autobyte.torch.model.marks import marks_of
from autobyte.torch.model.timeline import TrainingTimeline, activities, marks_in
from autobyte.torch.off import Off
from autobyte.torch.on import On
from autobyte.torch.tracing.clocks import ClockOffset, as_first_ranks, measure
from autobyte.torch.tracing.parts import merged, part_of
from autobyte.trace import BlockSpan, Trace, about_job

log = logging.getLogger("autobyte")

POLL_S = 0.01
SHORT_S = 2.0  # that a device is waited for where a trace has failed


class Tracing:
    """Stands in for `On` or `Off` while a trace is on, and has their methods; afterwards nothing is left of it.

    Args:
        mode: what training does.
        model: the user's.
        steps: to trace.
        path: of the file, which the first rank writes.
        first: whether this is that rank.
        over: is called when the trace is over.

    Raises:
        FileError: the file cannot be written; on every rank.
        CommunicationError: ranks differ in what they trace, or do not hear each other.
    """

    def __init__(
        self,
        mode: On | Off,
        model: nn.Module,
        *,
        steps: int,
        path: Path,
        first: bool,
        over: Callable[[], None],
    ) -> None:
        self._mode = mode
        self._path = path
        self._first = first
        self._steps, self._taken = steps, 0
        self._ended = False
        self._over = over
        self._training: Training | None = mode.training
        self._plans: dict[int, Plan] = {}  # by step
        self._offsets: list[list[ClockOffset]] = []  # of all ranks, at the beginning and at the end
        problem = unwritable(path) if first else ""
        if self._training is not None:
            self._training.control.agree("a trace", f"{steps} steps")
            problem = self._training.control.share(problem)
        if problem:
            raise FileError(problem)
        if self._training is not None:
            self._offsets.append(measure(self._training.control))
        self._blocks = Trace()
        self._marks = self._marks_of(model)
        self._timeline = TrainingTimeline(model, self._marks)
        self._anchor_s, self._anchor = self._anchored()
        self._timeline.begin()
        if isinstance(mode, On):
            mode.record(self._timeline, self._blocks)
        self._number = self._closed
        self._timeline.step(self._number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_mode"], name)

    @property
    def target(self) -> str:
        """What is being traced, for a message."""
        return f"{self._steps} steps, for '{self._path}'"

    def step(self, closure: Callable[[], Any] | None) -> Any:
        """Update the parameters; at the end of the last step, write the trace."""
        try:
            loss = self._mode.step(closure) if isinstance(self._mode, On) else self._step_off(self._mode, closure)
            self._after_step()
        except CommunicationError:
            self._give_up("communication failed")
            raise
        return loss

    def accompany(self) -> None:
        """This rank has no inputs left: no step of it is to be traced."""
        self._give_up("the inputs of a rank have ended")
        self._mode.accompany()

    def close(self) -> None:
        """Write what there is, and close."""
        self._give_up("the optimizer was closed")
        self._mode.close()

    def recover(self) -> int:
        """Write what there is, and let go of everything after a failure."""
        self._give_up("recover() was called")
        return self._mode.recover()

    def part(self) -> None:
        """Write what there is at the end of the script."""
        self._give_up("the script ended")
        self._mode.part()

    @property
    def _closed(self) -> int:
        """Steps that were closed: what blocks are numbered by."""
        return self._mode.steps if self._training is None else self._training.exchange.steps

    def _marks_of(self, model: nn.Module) -> Any:
        if self._training is not None:
            return self._training.exchange.marks
        return marks_of(None, next(model.parameters()).device)

    def _anchored(self) -> tuple[float, Any]:
        """A moment by the host's clock (s), and its mark, which happens at once: what was queued before is over."""
        before = self._marks.now()
        self._times([before, self._marks.now()])
        return time.perf_counter(), self._marks.now()

    def _times(self, marks: list[Any]) -> list[float]:
        """When marks were; waits until they are over.

        Raises:
            CommunicationError: what a device computes before them does not come to an end.
        """
        until_s = time.monotonic() + (SHORT_S if self._ended or self._training is None else self._timeout_s)
        while (at_s := self._marks.seconds(marks)) is None:
            if time.monotonic() > until_s:
                raise CommunicationError("a device does not come to the end of what is traced")
            time.sleep(POLL_S)
        return list(at_s)

    @property
    def _timeout_s(self) -> float:
        assert self._training is not None
        return self._training.session.timeout_s

    def _step_off(self, mode: Off, closure: Callable[[], Any] | None) -> Any:
        self._timeline.take()
        loss = mode.step(closure)
        self._timeline.taken()
        return loss

    def _after_step(self) -> None:
        training, number = self._training, self._number
        if training is not None:
            for step in range(number, max(number + 1, self._closed)):  # a closure may have closed several
                self._plans[step] = training.session.plan
        self._number = self._closed
        self._timeline.step(self._number)
        self._taken += 1
        if training is not None and training.progress.joining and training.exchange.joined:
            self._give_up("the inputs of a rank have ended")
        elif self._taken == self._steps:
            self._finish()

    def _finish(self) -> None:
        """Gather what all ranks have noted, and write it. Collective."""
        training = self._training
        if training is None:
            self._end()
            if self._first:
                self._save([self._part()], {})
            return
        self._settle(training)
        control = training.control
        self._offsets.append(measure(control))
        parts = control.collect(self._part())
        errors = [max(each.error_s for each in row) for row in zip(*self._offsets, strict=True)]
        problem = ""
        if self._first:
            problem = self._save(parts, {"clock_error_us": round(max(errors) * 1e6, 1)})
        control.share(problem)  # nobody goes on before the file is there: the next step would be timed with it
        self._end()

    def _settle(self, training: Training) -> None:
        """Wait until everything of the traced steps is in place, and told."""
        training.session.wait_all()
        training.session.finish()
        until_s = time.monotonic() + self._timeout_s
        while not training.session.runner.tell() and time.monotonic() < until_s:
            training.session.check()
            time.sleep(POLL_S)

    def _give_up(self, why: str) -> None:
        """End the trace before its last step, with nobody's help: the first rank writes what it has itself."""
        if self._ended:
            return
        if self._training is not None and self._training.exchange.failed:
            why = "communication failed"  # in a forward or backward pass, say
        self._end()
        if not self._first:
            return
        log.warning("the trace ends after %d of %d steps: %s", self._taken, self._steps, why)
        others = [] if self._training is None else self._training.control.ranks[1:]
        missing = {"missing_ranks": others, "missing_because": why} if others else {}
        with contextlib.suppress(Exception):  # of a device that has failed, too
            self._save([self._part()], missing)

    def _end(self) -> None:
        """Note nothing more; the time that a file has taken counts to no window."""
        self._ended = True
        self._timeline.end()
        if isinstance(self._mode, On):
            self._mode.record(None, None)
        self._over()

    def _part(self) -> dict[str, Any]:
        """What this rank has noted."""
        events, training = self._timeline.events, self._training
        anchor_s, *times = self._times([self._anchor, *marks_in(events)])
        moved = [each + self._anchor_s - anchor_s for each in times]
        place = 0 if training is None else training.rank
        rank = 0 if training is None else training.control.global_rank
        offsets = [row[place] for row in self._offsets]
        blocks = [(block, self._held(block)) for block in self._blocks.blocks if block.step in self._plans]
        found = activities(events, moved)
        return part_of(rank, self._timeline.layers, found, blocks, lambda at_s: as_first_ranks(at_s, offsets))

    def _held(self, block: BlockSpan) -> list[str]:
        """Names of the layers whose gradients a block holds; the plan may have numbered them otherwise."""
        job = self._plans[block.step].job
        return [job.model.layers[layer].name for layer in block.layers]

    def _save(self, parts: list[dict[str, Any]], more: dict[str, Any]) -> str:
        """Write the file, and say in the log where it is; or say what has gone wrong."""
        training = self._training
        job = {"what": "measured"} if training is None else about_job(training.job, training.config, what="measured")
        about = job | {"steps": self._taken, "ranks": [part["rank"] for part in parts]} | more
        if training is not None:
            about["engine"] = training.engine
        try:
            merged(parts, about).save(self._path)
        except FileError as error:
            log.error("%s; training goes on", error)
            return str(error)
        log.info("trace of %d steps written to %s: autobyte explain %s", self._taken, self._path, self._path)
        return ""


def unwritable(path: Path) -> str:
    """Why a file cannot be written; empty if it can."""
    if path.is_dir():
        return f"cannot write trace {path}: it is a folder; name a file in it"
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return ""
    except OSError as error:
        return f"cannot write trace {path}: {error.strerror}"
