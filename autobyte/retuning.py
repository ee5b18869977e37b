"""A search that begins again when the job is not what it was: for tuners that search once and then rest."""

from collections.abc import Callable
from dataclasses import replace

from autobyte.best import best_config, changed
from autobyte.config import Config, Space
from autobyte.trace import Measurement
from autobyte.tuners import Tuner


class Retuned(Tuner):
    """Rests with a config, and starts a new search from it when steps, compute, links or workers change.

    What an earlier search found is where the new one starts: its default. A change during a search ends that one and
    starts another. Links are compared between windows of the same config only, for their pace depends on it.

    Args:
        make: makes the tuner of the n-th search in a space, n from 1.
        space: whose default is the config to start with.
        budget: windows after which a search ends that does not rest by itself.
    """

    # without a name, for it is not for the table
    def __init__(self, make: Callable[[Space, int], Tuner], space: Space, *, budget: int) -> None:
        self._make = make
        self._space = space
        self._budget = budget
        self._searches = 0
        self._tuner: Tuner | None = None
        self._best = space.default
        self._windows: list[Measurement] = []  # of the search
        self._seen: dict[Config, Measurement] = {}  # the latest window of each config

    def ask(self) -> Config | None:
        """What the search asks for; once it rests, the best of it."""
        asked = self._tuner.ask() if self._tuner is not None and len(self._windows) < self._budget else None
        if asked is None:
            self._rest()
        return asked or self._best

    def tell(self, measurement: Measurement) -> None:
        """Look whether the job is what it was, and pass it on."""
        before = self._seen.get(measurement.config)
        if before is not None and changed(before, measurement):
            self._rest()
            self._seen.clear()
            self._searches += 1
            self._tuner = self._make(replace(self._space, default=self._best), self._searches)
        if self._tuner is not None:
            self._windows.append(measurement)
            self._tuner.tell(measurement)
        self._seen[measurement.config] = measurement

    def work(self) -> None:
        """Let the search think on."""
        if self._tuner is not None:
            self._tuner.work()

    def _rest(self) -> None:
        """End the search, if there is one, with the best of what it measured."""
        self._best = best_config(self._windows, self._best)
        self._tuner = None
        self._windows.clear()
