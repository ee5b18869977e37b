"""The gradients of a step in host memory: which are complete, and what ranks say of the step."""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from autobyte.errors import InputError
from autobyte.exchange.control import CommunicationError, Control, Tally
from autobyte.exchange.session import Session
from autobyte.exchange.times import ArrayTimes
from autobyte.scheduler.engines.buffers import Buffers
from autobyte.scheduler.plan import Plan
from autobyte.trace import TimeSource

Array = npt.NDArray[Any]


class Arrays:
    """Hands gradients to the session as they are computed, from whatever thread has one.

    Each gradient is copied to a place in memory, and summed there. One that is lent is summed where it lies. An
    average is handed out where it lies: as long as somebody holds it, the next gradient has another place. In each
    step an all-reduce counts how many ranks had each gradient. Nobody waits for it: they are read one step later.

    Args:
        places: by name, flat tensors in host memory, in the front end's order.
        session: communicates; its plan is the first one.
        buffers: where the engine finds gradients.
        control: sums the counts.
        times: is told of gradients and waits.
        clock: the time (s).
    """

    reduction = None  # nothing goes by PyTorch's reducer
    ahead_of_ranks = False  # no device waits in place of a thread
    out = 1  # steps whose counts are not read yet when a step is closed

    def __init__(
        self,
        places: Mapping[str, torch.Tensor],
        session: Session,
        buffers: Buffers,
        control: Control,
        *,
        times: ArrayTimes,
        clock: TimeSource,
    ) -> None:
        self.parameters = places
        self.plan = session.plan
        self.waits = times.waits
        self.announces: Callable[[], bool] = lambda: False  # whether this rank has something to say to all
        self._names, self._places = list(places), list(places.values())
        self._sums = list(self._places)  # where gradients are summed
        self._memory = [place.numpy() for place in self._sums]
        self._held: list[weakref.ref[Array] | None] = [None] * len(places)  # averages that were handed out
        self._session, self._buffers, self._control = session, buffers, control
        self._times, self._clock = times, clock
        self._opening = threading.Lock()  # gradients come from several threads
        self._had = [False] * len(places)
        self._counts: Tally | None = None  # of the step before
        self._number(session.plan)

    def ready(self, place: int, gradient: Array, *, lent: bool = False) -> None:
        """A gradient is computed: let it travel.

        Args:
            place: its index.
            gradient: of any shape with as many elements; the caller's again afterwards, unless it is lent.
            lent: whether it is summed where it lies: it is contiguous, of the place's dtype, and nobody else touches
                it until its average was waited for.

        Raises:
            InputError: it has another number of elements, or cannot be lent.
            CommunicationError: it was handed in already in this step, or averages can no longer be made.
        """
        if gradient.size != self._memory[place].size:
            name, size = self._names[place], self._memory[place].size
            raise InputError(f"tensor '{name}' has {size} elements, and its gradient has {gradient.size}")
        self._begin()
        if self._had[place]:
            raise self._failure(f"tensor '{self._names[place]}' has a second gradient in a step that was not ended")
        if lent:
            if gradient.dtype != self._memory[place].dtype or not gradient.flags.c_contiguous:
                wanted = f"contiguous and {self._memory[place].dtype}"
                raise InputError(f"the gradient of '{self._names[place]}' cannot be lent: it must be {wanted}")
            self._held[place] = None
            self._sum_at(place, torch.from_numpy(gradient.reshape(-1)))
        else:
            self._sum_at(place, self._own(place))
            np.copyto(self._memory[place], gradient.reshape(-1))
        self._had[place] = True
        self._times.complete(place)
        self._session.ready([self._indices[place]])

    def end(self) -> bool:
        """No more gradients come in this step: zeros travel for those that this rank does not have.

        Returns:
            whether a rank announced something in the step before, the same on all ranks.

        Raises:
            CommunicationError: only some ranks had a gradient in the step before, or one is gone.
        """
        self._begin()
        for place, had in enumerate(self._had):
            if not had:
                self._sum_at(place, self._own(place))
                self._memory[place].fill(0)
        announced = self._look_at_counts()
        flags = bytearray([*self._had, self.announces()])
        self._counts = self._control.tally(torch.frombuffer(flags, dtype=torch.uint8))
        self._session.end()
        self._had = [False] * len(self._had)
        progress = self._session.progress
        progress.close()
        progress.take()
        return announced

    def wait(self, place: int) -> Array:
        """An average, when it has arrived; flat. It is the caller's own; that of a lent gradient is the gradient.

        Args:
            place: its index.

        Raises:
            CommunicationError: it does not arrive; it names rank, step and tensor.
        """
        began_s = self._clock()
        self._session.wait([self._indices[place]])
        self._times.wait(place, began_s)
        held = self._held[place]
        average = None if held is None else held()
        if average is None:
            average = self._sums[place].numpy()
            self._held[place] = weakref.ref(average)
        return average

    def use(self, plan: Plan) -> None:
        """Use another plan from the next step on; all ranks must do so between the same two steps."""
        self.plan = plan

    @staticmethod
    def has_changed() -> bool:
        """Averages cannot be changed between a backward pass and its step: they are handed out in the next step."""
        return False

    @property
    def exposed_s(self) -> float:
        """For how long the model has stood still for averages, in all steps (s)."""
        return self.waits.total_s

    @property
    def open(self) -> bool:
        """Whether a step has begun, and is not ended."""
        return self._session.progress.open

    def _begin(self) -> None:
        """Begin a step with its first gradient."""
        if self._session.progress.open:
            return
        with self._opening:
            if self._session.progress.open:
                return
            self._times.open()
            before = self._session.plan
            self._session.begin(self.plan)
            if self.plan is not before:
                self._buffers.recut()
                self._number(self.plan)
            self._session.progress.begin()

    def _number(self, plan: Plan) -> None:
        """Note where a plan has the gradients, and show the engine."""
        index = {name: each for each, name in enumerate(plan.job.gradients.names)}
        self._indices = [index[name] for name in self._names]
        for each, values in zip(self._indices, self._sums, strict=True):
            self._buffers.put(each, values)

    def _own(self, place: int) -> torch.Tensor:
        """Memory for a gradient, in which no average lies that somebody holds."""
        held, self._held[place] = self._held[place], None
        if held is not None and held() is not None:
            self._places[place] = torch.empty_like(self._places[place])
        return self._places[place]

    def _sum_at(self, place: int, values: torch.Tensor) -> None:
        """Show the engine where a gradient of this step lies."""
        if values is not self._sums[place]:
            self._sums[place], self._memory[place] = values, values.numpy()
            self._buffers.put(self._indices[place], values)

    def _look_at_counts(self) -> bool:
        """What ranks said of the step before: whether one announced something."""
        if self._counts is None:
            return False
        try:
            counts = self._counts.wait()
        except CommunicationError as error:
            self._session.fail(self._session.located(error), names_silent=True)
            self._session.check()
            raise
        some = ((counts[:-1] > 0) & (counts[:-1] < self._control.size)).nonzero().flatten().tolist()
        if some:
            raise self._failure(self._uneven(some, counts.tolist()))
        return bool(counts[-1] > 0)

    def _uneven(self, some: Sequence[int], counts: Sequence[int]) -> str:
        first = some[0]
        return (
            f"tensor '{self._names[first]}' had a gradient on {counts[first]} of {self._control.size} ranks in the "
            "step before, and updates differ now: let every rank compute a gradient for the same variables"
        )

    def _failure(self, what: str) -> CommunicationError:
        """A failure that other ranks hear of."""
        error = CommunicationError(f"{self._session.here}: {what}")
        self._session.fail(error, names_silent=True)
        return error
