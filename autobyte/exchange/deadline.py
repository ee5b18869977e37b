"""One deadline for all that belongs to one wait, also for calls that have none: to a store that is cut off, say."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from autobyte.exchange.parting import in_thread

POLL_S = 0.1

Result = TypeVar("Result")


class Deadline:
    """Counts down from the moment at which it is made.

    >>> deadline = Deadline(timedelta(seconds=5))
    >>> deadline.run(lambda: store.get("address"))

    Args:
        timeout: how long everything may take together.
    """

    def __init__(self, timeout: timedelta) -> None:
        self.timeout_s = timeout.total_seconds()
        self._until_s = time.monotonic() + self.timeout_s

    @property
    def left_s(self) -> float:
        """Seconds that are left; 0 when it is over."""
        return max(0.0, self._until_s - time.monotonic())

    def run(self, action: Callable[[], Result], *, check: Callable[[], None] = lambda: None) -> Result:
        """Do something, and leave it when the deadline is over: in a thread, because nothing else ends such a call.

        Args:
            action: what to do.
            check: called every tenth of a second meanwhile; it raises if there is no use in waiting any longer.

        Raises:
            TimeoutError: it takes longer.
        """
        results: list[Result] = []
        errors: list[BaseException] = []

        def act() -> None:
            try:
                results.append(action())
            except BaseException as error:  # raised below, for the caller
                errors.append(error)

        thread = in_thread(act, name="autobyte-deadline")
        thread.join(min(POLL_S, self.left_s))
        while thread.is_alive() and self.left_s:
            check()
            thread.join(min(POLL_S, self.left_s))
        if errors:
            raise errors[0]
        if not results:
            raise TimeoutError(f"no answer within {self.timeout_s:g} s")
        return results[0]
