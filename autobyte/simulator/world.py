"""A simulated job that trains on and on: windows are measured in it, its cluster may change, switches cost time."""

from dataclasses import replace

from autobyte.config import Config
from autobyte.job import Job
from autobyte.scenario import STEADY, Scenario, resized
from autobyte.scheduler.policies import make_plan
from autobyte.simulator import kernel
from autobyte.simulator.effects import PLAIN, Effects
from autobyte.trace import Measurement

#: Modelled: agreeing on a new plan and loading it, while training goes on.
SWITCH_S = 0.01


class World:
    """What a tuner is judged in.

    >>> world = World(job)
    >>> world.measure(Config(4_000_000, 16_000_000), iterations=10).mean_s

    Args:
        job: what is trained, and on what before anything changes.
        scenario: what changes.
        effects: second-order effects.
        seed: of jitter and cross traffic.
        switch_s: what a change of config costs (s), added to the first step under the new one.
    """

    def __init__(
        self,
        job: Job,
        *,
        scenario: Scenario = STEADY,
        effects: Effects = PLAIN,
        seed: int = 0,
        switch_s: float = SWITCH_S,
    ) -> None:
        self.iteration = 0
        self._job = job
        self._scenario = scenario
        self._effects = effects
        self._seed = seed
        self._switch_s = switch_s
        self._config: Config | None = None

    def measure(self, config: Config, *, iterations: int, warmup: int = 0) -> Measurement:
        """Train for a window under a config.

        A window in which the number of workers changes is measured in pieces; its statistics are those of the last.
        """
        first, last = self.iteration, self.iteration + iterations
        steps: list[float] = []
        while self.iteration < last:
            piece = self._until_resized(last)
            run = kernel.simulate(
                make_plan(self._sized(self.iteration), config),
                iterations=piece,
                first=self.iteration,
                scenario=self._scenario,
                effects=self._effects,
                seed=self._seed,
            )
            steps += run.step_s.tolist()
            self.iteration += piece
        if self._config not in (None, config):
            steps[0] += self._switch_s
        self._config = config
        return Measurement(config, first, tuple(steps), warmup, run.stats)

    def skip(self, config: Config, *, iterations: int) -> None:
        """Let a window pass whose measurement is known already."""
        self.iteration += iterations
        self._config = config

    def job_at(self, iteration: int) -> Job:
        """The job as its cluster is at an iteration."""
        return replace(self._job, cluster=self._scenario.cluster(self._job.cluster, iteration))

    def _sized(self, iteration: int) -> Job:
        """The job with as many workers as it has at an iteration, and otherwise as it was at first."""
        workers = self._scenario.cluster(self._job.cluster, iteration).workers
        return replace(self._job, cluster=resized(self._job.cluster, workers))

    def _until_resized(self, last: int) -> int:
        """Iterations from here until the number of workers changes, or until the window's end."""
        if not any(change.workers for change in self._scenario.changes):
            return last - self.iteration
        workers = self.job_at(self.iteration).cluster.workers
        ahead = range(self.iteration + 1, last)
        other = (i for i in ahead if self.job_at(i).cluster.workers != workers)
        return next(other, last) - self.iteration
