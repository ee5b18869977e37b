"""The truth that no tuner sees: noise-free step times of every config, at every iteration."""

from collections.abc import Iterable, Sequence

from autobyte.bound import bound_s
from autobyte.comparison.contest import Contest
from autobyte.config import Config
from autobyte.job import Job
from autobyte.simulator.effects import Effects
from autobyte.simulator.landscape import contenders, least_s, survey
from autobyte.simulator.steady import fifo_s, reference_s, step_s


class Truth:
    """Noise-free step times at every iteration, which no tuner in the contest sees.

    Args:
        contest: whose world it is.
        tried: configs that ran or were chosen; the optimum is the best of them and of the grid.
    """

    def __init__(self, contest: Contest, tried: Sequence[Config]) -> None:
        self._world = contest.world()
        self._effects = contest.effects
        self._configs = tuple(dict.fromkeys([*contest.space.grid(), *tried]))
        self._states: dict[Job, SteadyTruth] = {}
        self._at: dict[int, SteadyTruth] = {}

    def at(self, iteration: int) -> "SteadyTruth":
        """The truth while the cluster is as it is at an iteration."""
        if iteration not in self._at:
            job = self._world.job_at(iteration)
            if job not in self._states:
                self._states[job] = SteadyTruth(job, self._configs, self._effects)
            self._at[iteration] = self._states[job]
        return self._at[iteration]

    def step_s(self, config: Config, iteration: int) -> float:
        """Time of a steady step under one of the configs (s)."""
        return self.at(iteration).step_s[config]

    def best_s(self, iteration: int) -> float:
        """The least of them (s)."""
        return self.at(iteration).best_s


class SteadyTruth:
    """The truth about a job on a cluster that stays as it is."""

    def __init__(self, job: Job, configs: Sequence[Config], effects: Effects) -> None:
        land = contenders(job, configs, effects=effects)
        self._configs, self._effects = tuple(dict.fromkeys(configs)), effects
        self.job = job
        self.step_s = _Steps(job, effects, zip(land.configs, land.step_s.tolist(), strict=True))
        self.best = land.best
        self.best_s = land.best_s
        self.fifo_s = fifo_s(job, effects=effects)
        self.reference_s = reference_s(job, effects=effects)
        self.bound_s = bound_s(job)

    def within(self, part: float) -> dict[Config, float]:
        """Step times (s) of all configs that take at most this part longer than the best, the fastest first."""
        longest = (1 + part) * self.best_s
        unknown = [config for config in self._configs if config not in self.step_s]
        likely = [config for config in unknown if least_s(self.job, config, effects=self._effects) <= longest]
        land = survey(self.job, likely, effects=self._effects)
        self.step_s.update(zip(land.configs, land.step_s.tolist(), strict=True))
        known = ((config, self.step_s[config]) for config in self._configs if config in self.step_s)
        return dict(sorted((each for each in known if each[1] <= longest), key=lambda each: each[1]))


class _Steps(dict[Config, float]):
    """Times of steady steps (s), simulated when they are first needed."""

    def __init__(self, job: Job, effects: Effects, known: Iterable[tuple[Config, float]]) -> None:
        super().__init__(known)
        self._job, self._effects = job, effects

    def __missing__(self, config: Config) -> float:
        self[config] = step_s(self._job, config, effects=self._effects)
        return self[config]
