"""A search that begins again when the job is not what it was: for tuners that search once and then rest."""

import math
from collections.abc import Callable
from dataclasses import replace

from autobyte.best import changed
from autobyte.config import Config, Space
from autobyte.trace import Measurement
from autobyte.tuners import Tuner


class Retuned(Tuner):
    """Rests with a config, and starts a new search from it when steps, compute, links or workers change.

    What an earlier search found is where the new one starts: its default. Links are compared between windows of the
    same config only, for their pace depends on it.

    Args:
        make: makes the tuner of the n-th search in a space, n from 1.
        space: whose default is the config to start with.
    """

    def __init__(self, make: Callable[[Space, int], Tuner], space: Space) -> None:  # no name: not for the table
        self._make = make
        self._space = space
        self._searches = 0
        self._tuner: Tuner | None = None
        self._best = space.default
        self._best_s = math.inf
        self._seen: dict[Config, Measurement] = {}  # the latest window of each config

    def ask(self) -> Config | None:
        """What the search asks for; once it rests, the best of it."""
        asked = self._tuner.ask() if self._tuner is not None else None
        if asked is None:
            self._tuner = None
        return asked or self._best

    def tell(self, measurement: Measurement) -> None:
        """Pass it on; at rest, look whether the job is what it was."""
        before = self._seen.get(measurement.config)
        new = before is not None and changed(before, measurement)
        searching = self._tuner is not None
        if new and not searching:
            self._seen.clear()
            self._searches += 1
            self._tuner = self._make(replace(self._space, default=self._best), self._searches)
            self._best_s = math.inf
        if measurement.mean_s < self._best_s:
            self._best, self._best_s = measurement.config, measurement.mean_s
        if self._tuner is not None:
            self._tuner.tell(measurement)
        self._seen[measurement.config] = measurement

    def work(self) -> None:
        """Let the search think on."""
        if self._tuner is not None:
            self._tuner.work()
