"""`policy="auto"`: what simulation finds fastest is measured beside DDP's best bucket; the fastest stays."""

from statistics import fmean

from autobyte.config import Config
from autobyte.job import Job
from autobyte.simulator.choose import shortlist
from autobyte.torch.tuning.kept import Trial

CLOSE, FINALISTS, AGAIN = 1.05, 3, 2  # who was within 5 % of the fastest is heard twice more, three at most
CHANGED = 0.1  # relative change of the winner's step, in two windows running, after which all are heard again


class Audition:
    """Chooses policy and config from a few measured windows; nobody stays slower than with DDP's buckets.

    Simulation alone would do on a calm machine; measuring costs one window for each candidate, and two more for each
    of those that are close: the fastest of many single windows is often the luckiest.
    """

    def __init__(self) -> None:
        self._left: list[Config] | None = None  # to be measured; None: not begun
        self._seen: dict[Config, list[float]] = {}  # median step of every window (s)
        self._final = False  # those that are close are heard again
        self._hearing = False  # the latest answer is on trial
        self._off = 0  # windows running in which the winner was not what it had been

    @property
    def over(self) -> bool:
        """Whether all were heard that should be, and the latest answer is the fastest."""
        return self._final and not self._hearing

    @property
    def left(self) -> int | None:
        """How many windows are still to be measured; None before it has begun."""
        return None if self._left is None else len(self._left)

    @property
    def trials(self) -> dict[Config, Trial]:
        """Who was heard in this round, in that order; steps are means of windows' medians."""
        return {config: Trial(len(heard), self._mean_s(config)) for config, heard in self._seen.items()}

    def settle(self, config: Config, step_s: float) -> None:
        """Hear nobody: an earlier audition chose this one, whose step took so long then (s)."""
        self._left, self._seen, self._final = [], {config: [step_s]}, True

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
            self._seen.setdefault(config, []).append(step_s)
        ranked = sorted(self._seen, key=self._mean_s)
        if not self._left and not self._final:
            close = [each for each in ranked if self._mean_s(each) <= CLOSE * self._mean_s(ranked[0])]
            self._final, self._left = True, AGAIN * close[:FINALISTS] if len(close) > 1 else []
        self._hearing = bool(self._left)
        return self._left.pop(0) if self._left else ranked[0]

    def _lost(self, config: Config, step_s: float | None) -> bool:
        """Whether the winner is no longer what it was."""
        if self._hearing or step_s is None or config not in self._seen:
            return False
        self._off = self._off + 1 if abs(step_s / self._mean_s(config) - 1) > CHANGED else 0
        return self._off == 2

    def _mean_s(self, config: Config) -> float:
        return fmean(self._seen[config])
