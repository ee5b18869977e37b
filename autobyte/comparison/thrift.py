"""When a search ends because another trial would cost more than it promises."""

import statistics
from collections import defaultdict

from autobyte.best import changed
from autobyte.config import Config
from autobyte.trace import Measurement
from autobyte.tuners import Tuner

LEAST = 3  # configs that were tried, before anything can be said


class Thrift(Tuner):
    """Asks another tuner for as long as a trial is worth its price; then the best config so far runs.

    What a trial promises is how much the best one so far adds to the others: leaving out each of n trials in turn
    costs nothing, unless it is the best; so it is the lead of the best over the second, divided by n. What a trial
    costs is how much slower than the best the trials were on average, for one window of all there are. If the job
    changes, the tuner is asked again.

    Args:
        tuner: chooses.
        cost: weight of what searching costs, from 0 to 1.
        budget: windows of the search.
    """

    # without a name, for it is not for the table
    def __init__(self, tuner: Tuner, *, cost: float, budget: int) -> None:
        self._tuner, self._cost, self._budget = tuner, cost, budget
        self._windows: dict[Config, list[Measurement]] = defaultdict(list)

    @property
    def brief(self) -> bool:  # type: ignore[override]
        """As the tuner's."""
        return self._tuner.brief and self._pays()

    def ask(self) -> Config | None:
        """What the tuner asks for, or nothing."""
        return self._tuner.ask() if self._pays() else None

    def tell(self, measurement: Measurement) -> None:
        """Pass it on."""
        seen = self._windows[measurement.config]
        if seen and changed(seen[-1], measurement):
            self._windows.clear()
        self._windows[measurement.config].append(measurement)
        self._tuner.tell(measurement)

    def work(self) -> None:
        """Let the tuner think on, if it will be asked."""
        if self._pays():
            self._tuner.work()

    def _pays(self) -> bool:
        if len(self._windows) < LEAST:
            return True
        means_s = [statistics.fmean(window.mean_s for window in windows) for windows in self._windows.values()]
        steps_s = sorted(means_s)
        gain = (1 - steps_s[0] / steps_s[1]) / len(steps_s)
        price = statistics.fmean(1 - steps_s[0] / step_s for step_s in steps_s) / self._budget
        return (1 - self._cost) * gain >= self._cost * price
