"""What `on_window=` is told after every window, and what becomes of its errors."""

import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from autobyte.config import Config

log = logging.getLogger("autobyte")

State = Literal["fixed", "starting", "thinking", "compiling", "searching", "settled", "unknown"]


@dataclass(frozen=True)
class WindowReport:
    """A window of training, as rank 0 saw it.

    >>> def print_pace(window: ab.WindowReport) -> None:
    ...     print(window.last_step, window.config.full_label, window.steps_per_s)
    >>> optimizer = ab.DistributedOptimizer(optimizer, model, policy="auto", on_window=print_pace)

    Args:
        first_step, last_step: of the window, counted from 0 where the optimizer was wrapped.
        config: in force in it.
        step_s: time of every step on the slowest rank (s). The first two may still belong to the config before.
        state: `fixed`, nothing searches; `starting`, no window was measured yet that counts; `thinking`, one was, and
            the search makes its first choice; `compiling`, what it needs for that is compiled first; `searching`, the
            config is on trial; `settled`, it is what the search has found. On ranks other than 0 it is `unknown`.
        best: the fastest config measured before this window; None if there is none.
        best_step_s: its mean step (s).
        exposed_s: of a step, exposed communication: for how long the model of the rank that computes longest stood
            still for averages (s); None if that is not known.
        overlap: share of communication for which it did not, likewise.
    """

    first_step: int
    last_step: int
    config: Config
    step_s: tuple[float, ...]
    state: State
    best: Config | None
    best_step_s: float | None
    exposed_s: float | None = None
    overlap: float | None = None

    @property
    def median_s(self) -> float:
        """The median step (s)."""
        return median(self.step_s)

    @property
    def steps_per_s(self) -> float:
        """Throughput by the median step; times the samples of a step on all ranks, it is samples per second."""
        return 1 / self.median_s


class Callback:
    """Calls users' functions; one that fails is not called again, and training goes on.

    Other ranks do not wait for it, so an error that ended rank 0 here would leave them in the middle of a step.

    Args:
        functions: by the argument that they were given as.
    """

    def __init__(self, functions: Mapping[str, Callable[[WindowReport], object]]) -> None:
        self._functions = dict(functions)

    def tell(self, window: WindowReport) -> None:
        """Tell of a window."""
        for name in list(self._functions):
            self._call(name, window)

    def _call(self, name: str, window: WindowReport) -> None:
        try:
            self._functions[name](window)
        except (Exception, SystemExit) as error:
            del self._functions[name]
            place = traceback.extract_tb(error.__traceback__)[-1]
            first, *_ = str(error).splitlines() or [""]
            log.error(
                "%s failed after step %d, and is not called again; training goes on: %s: %s (%s:%s)",
                name, window.last_step, type(error).__name__, first, place.filename, place.lineno,
            )  # fmt: skip
