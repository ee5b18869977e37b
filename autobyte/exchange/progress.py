"""Where training is: which step it is in, and whether that is open, closed, averaged or over.

    OVER ──begin──▶ OPEN ──close──▶ CLOSED ──average──▶ AVERAGED
      ▲                               │                    │
      ├──────────── end ──────────────┴────────────────────┤
      └──────────── outdate ───────────────────────────────┘

`begin` also follows on a step that was closed and never ended. `take` moves nothing: it notes that an update follows
from the averages.
"""

from enum import Enum
from typing import Protocol

from autobyte.scheduler.core import SchedulingError


class Phase(Enum):
    """The life of a training step."""

    OPEN = "open"  # gradients become complete, and travel
    CLOSED = "closed"  # no more gradients come; averages are on their way
    AVERAGED = "averaged"  # all averages are in `.grad`
    OVER = "over"  # the next one has not begun


_AVERAGED = Phase.AVERAGED  # a look-up less at every gradient


class Blocks(Protocol):
    """Moves the blocks of a step. They may still be under way when the training step is over."""

    @property
    def step(self) -> int:
        """Steps of which every block is done."""


class Progress:
    """Owns the state of the training step; everybody else asks here.

    >>> progress = Progress()
    >>> progress.begin()
    >>> progress.close()
    >>> progress.take()
    >>> progress.end()
    >>> progress.steps, progress.phase.value
    (1, 'over')

    What is known of a single gradient, layer or block stays with those who act on it: `Exchange` counts backward
    passes, `Session` knows which tensors have arrived, `Updates` which layers are due, `Core` which blocks are done.

    Raises:
        SchedulingError: by each method below, if its event cannot follow on those before it.
    """

    def __init__(self) -> None:
        self.phase = Phase.OVER
        self.steps = 0  # that were closed
        self.taken = True  # the step that was closed last was followed by an update
        self.joining = False  # ranks whose inputs have ended take part in this step
        self._blocks: Blocks | None = None

    @property
    def open(self) -> bool:
        """Whether a step has begun, and is not closed."""
        return self.phase is Phase.OPEN

    @property
    def averaged(self) -> bool:
        """Whether `.grad` holds the averages of the step that was closed last, and no gradient has come since."""
        return self.phase is Phase.AVERAGED

    @property
    def travelling(self) -> int:
        """The step whose blocks are under way; it may be the one before the step that is open."""
        return 0 if self._blocks is None else self._blocks.step

    def follow(self, blocks: Blocks) -> None:
        """Say what moves the blocks; it stays the same from now on."""
        self._blocks = blocks

    def begin(self, *, joining: bool = False) -> None:
        """The first gradient is complete, or a step is closed that has none.

        Args:
            joining: ranks whose inputs have ended take part in this step.
        """
        if self.phase is Phase.OPEN:
            raise self._cannot("begin again")
        self.phase, self.joining = Phase.OPEN, joining

    def close(self) -> None:
        """No more gradients come in this step."""
        if self.phase is not Phase.OPEN:
            raise self._cannot("be closed")
        self.phase, self.taken = Phase.CLOSED, False
        self.steps += 1

    def average(self) -> None:
        """All averages of the closed step are in `.grad`."""
        if self.phase is not Phase.CLOSED:
            raise self._cannot("be averaged")
        self.phase = Phase.AVERAGED

    def take(self) -> None:
        """An update follows from the averages of the closed step, now or layer by layer."""
        if self.phase not in (Phase.CLOSED, Phase.AVERAGED):
            raise self._cannot("be taken")
        self.taken = True

    def forgive(self) -> None:
        """Whether an update followed from the averages of the closed step does not matter: a checkpoint is loaded."""
        self.taken = True

    def end(self) -> None:
        """The closed step is over: the averages that are in `.grad` are not used again."""
        if self.phase not in (Phase.CLOSED, Phase.AVERAGED):
            raise self._cannot("end")
        self.phase = Phase.OVER

    def outdate(self) -> None:
        """Averages that are in `.grad` are out of date: another gradient is complete, or soon will be."""
        if self.phase is _AVERAGED:
            self.phase = Phase.OVER

    def _cannot(self, what: str) -> SchedulingError:
        number = self.steps if self.phase is Phase.OPEN else max(0, self.steps - 1)
        return SchedulingError(f"step {number} is {self.phase.value}: it cannot {what}")
