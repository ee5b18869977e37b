"""`policy="auto"`: what simulation finds fastest is measured beside DDP's best bucket; the fastest stays."""

from autobyte.config import Config
from autobyte.job import Job
from autobyte.simulator.choose import shortlist

CLOSE, FINALISTS = 1.05, 3  # who was within 5 % of the fastest is heard again, three at most
CHANGED = 0.1  # relative change of the winner's step, in two windows running, after which all are heard again


class Audition:
    """Chooses policy and config from a few measured windows; nobody stays slower than with DDP's buckets.

    Simulation alone would do on a calm machine; measuring costs one window for each candidate, and another for each
    of those that are close: the fastest of many single windows is often the luckiest.
    """

    def __init__(self) -> None:
        self._left: list[Config] | None = None  # to be measured; None: not begun
        self._seen: dict[Config, float] = {}  # median step (s), the mean of two where it was heard twice
        self._final = False  # those that are close are heard again
        self._hearing = False  # the latest answer is on trial
        self._off = 0  # windows running in which the winner was not what it had been

    def choose(self, job: Job, config: Config, step_s: float | None) -> Config:
        """What runs next.

        Args:
            job: as the latest window showed it.
            config: in force in that window.
            step_s: its median step (s); None if it was no measurement.
        """
        if self._left is None or self._lost(config, step_s):
            self._left, self._seen, self._final, self._off = shortlist(job), {}, False, 0
        elif step_s is not None and self._hearing:
            self._seen[config] = (self._seen.get(config, step_s) + step_s) / 2
        if not self._left and not self._final:
            ranked = sorted(self._seen, key=self._seen.__getitem__)
            close = [each for each in ranked if self._seen[each] <= CLOSE * self._seen[ranked[0]]]
            self._final, self._left = True, close[:FINALISTS] if len(close) > 1 else []
        self._hearing = bool(self._left)
        if self._left:
            return self._left.pop(0)
        return min(self._seen, key=self._seen.__getitem__)

    def _lost(self, config: Config, step_s: float | None) -> bool:
        """Whether the winner is no longer what it was."""
        if self._hearing or step_s is None or config not in self._seen:
            return False
        self._off = self._off + 1 if abs(step_s / self._seen[config] - 1) > CHANGED else 0
        return self._off == 2
