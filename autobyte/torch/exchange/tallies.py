"""What ranks say of each step, added up over ranks while training goes on."""

from collections import deque
from typing import NamedTuple

from torch import Tensor

from autobyte.exchange.control import CommunicationError, Control, Tally
from autobyte.exchange.session import Session
from autobyte.torch.exchange.flags import StepCounts, StepFlags
from autobyte.torch.exchange.norms import check_clipping


class Heard(NamedTuple):
    """What ranks have said in steps before the last.

    Args:
        announced: whether any rank announced something.
        loaded: how many ranks said that they had loaded something, in the last step in which any did.
        note: this rank's of that step, as its listener made it.
    """

    announced: bool = False
    loaded: int = 0
    note: Tensor | None = None


class Tallies:
    """Counts of steps that were closed; the latest may still be out.

    Args:
        control: adds up.
        session: is told of failures; knows where training is.
        out: steps whose counts are still out when a step is closed.
    """

    def __init__(self, control: Control, session: Session, *, out: int) -> None:
        self._control = control
        self._session = session
        self._out = out
        self._latest: tuple[Tally, StepFlags] | None = None  # with this rank's own flags
        self._untaken: deque[tuple[Tally, StepFlags]] = deque()  # of steps that perhaps not all ranks took
        self._unheard: deque[tuple[Tally, Tensor | None]] = deque()  # of steps that nobody has looked at, and notes
        self._read: tuple[Tally, StepCounts] | None = None  # that were looked at last

    @property
    def latest(self) -> StepCounts | None:
        """Counts of the latest step; None if there are none. Waits for all ranks to close it."""
        return None if self._latest is None else self._counts(self._latest[0])

    def check(self, *, wait: bool = False) -> None:
        """Look at steps that may have been left out by some, but for those whose counts may still be out.

        Args:
            wait: whether to look at those, too, and wait for all ranks to close them.

        Raises:
            CommunicationError: some ranks took a step, or clipped it, and others did not, or not alike.
        """
        while self._untaken and (wait or len(self._untaken) >= self._out):
            tally, flags = self._untaken.popleft()
            counts = self._counts(tally)
            self._check_clipping(counts, flags, self._steps - 1 - len(self._untaken))
            skipped = counts.left_out
            if 0 < skipped < self._control.size - counts.joined:
                raise self._control.failure(
                    f"{skipped} of {self._control.size} ranks left out a step that others took "
                    "(an exception that was caught, or zero_grad() before step()); their parameters differ now",
                    step=self._steps,
                )

    def check_last(self) -> None:
        """Look at how ranks clipped the latest steps, as far as counts are there: a later step may never come.

        Raises:
            CommunicationError: some clipped, and others did not, or not alike.
        """
        for step, (tally, flags) in enumerate(self._untaken, self._steps - len(self._untaken)):
            if tally.there:
                check_clipping(StepCounts(tally.wait()), flags, self._control, step)

    def add(self, flags: StepFlags, note: Tensor | None) -> None:
        """Count a step that this rank closes. Nobody waits.

        Args:
            flags: this rank's.
            note: is given back with what others say of the step.
        """
        tally = self._control.tally(flags.pack())
        self._latest = tally, flags
        self._untaken.append(self._latest)
        self._unheard.append((tally, note))

    def clipped_by_all(self) -> bool:
        """Whether ranks clip the latest step by its norm. Waits for all to close it.

        Raises:
            CommunicationError: some do, and others do not, or not alike.
        """
        if self._latest is None:
            return False
        tally, flags = self._latest
        counts = self._counts(tally)
        self._check_clipping(counts, flags, self._steps - 1)
        return counts.clipping > 0

    def _check_clipping(self, counts: StepCounts, flags: StepFlags, step: int) -> None:
        """Let the others hear of ranks that clip unlike each other, in Join, too."""
        try:
            check_clipping(counts, flags, self._control, step)
        except CommunicationError as error:
            self._session.fail(error, names_silent=True)
            raise

    def heard(self) -> Heard:
        """What ranks have said in steps before the last, not yet looked at. All ranks get the same, but for notes.

        Nobody waits: `check` has had the counts of these steps.
        """
        heard = Heard()
        while len(self._unheard) > self._out:
            tally, note = self._unheard.popleft()
            counts = self._counts(tally)
            heard = heard._replace(announced=heard.announced or counts.announcing > 0)
            if counts.loaded:
                heard = heard._replace(loaded=counts.loaded, note=note)
        return heard

    def start_over(self) -> None:
        """It does not matter any more who left out an update before; what was said stays."""
        self._latest = None
        self._untaken.clear()

    def clear(self) -> None:
        """Let go of all counts: they keep the backend that counted, and with it threads and sockets."""
        self.start_over()
        self._read = None
        self._unheard.clear()

    @property
    def _steps(self) -> int:
        return self._session.progress.steps

    def _counts(self, tally: Tally) -> StepCounts:
        if self._read is not None and self._read[0] is tally:
            return self._read[1]
        try:
            counts = StepCounts(tally.wait())
        except CommunicationError as error:
            self._session.check()  # what has failed before is why
            located = self._session.located(error)
            self._session.fail(located, names_silent=True)
            self._session.check()  # another thread may have been faster
            raise located from error
        self._read = tally, counts
        return counts
