"""Exposed communication: for how long the model's computing stood still until averages were there."""

from collections import deque
from collections.abc import Callable, Sequence

from autobyte.torch.model.marks import Mark, Marks

UNREAD = 4096  # waits at most that are kept until they are over; a device that is further behind has lost a rank


class Waits:
    """Adds up waits for averages, each when it is over; nobody waits for that.

    Args:
        marks: of the model's computing.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._unread: deque[list[Mark]] = deque(maxlen=UNREAD)
        self.record: Callable[[list[Mark]], None] | None = None  # is told of each wait, while a trace is on
        self.total_s = 0.0  # of all waits that were over when they were last looked at (s)

    def enter(self) -> Mark:
        """Computing has come to a wait."""
        return self._marks.now()

    def leave(self, entered: Mark, awaited: Sequence[Mark]) -> None:
        """The wait has been enqueued, or is over.

        Args:
            entered: what `enter` gave.
            awaited: the moments that the model's stream waits for; none if the thread has waited.
        """
        marks = [entered, *(awaited or [self._marks.now()])]
        self._unread.append(marks)
        if self.record is not None:
            self.record(marks)

    def forget(self) -> None:
        """Let waits so far count that are known to be over, and no others."""
        self.read()
        self._unread.clear()

    def read(self) -> None:
        """Look which are over by now."""
        try:
            while self._unread and (at := self._marks.seconds(self._unread[0])) is not None:
                self.total_s += max(0.0, *(left - at[0] for left in at[1:]))
                self._unread.popleft()
        except Exception:  # of the network: told to whoever waits
            self._unread.clear()
