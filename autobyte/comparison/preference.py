"""What is wished of a tuner: weights of speed, of how long the first layers wait, and of what searching costs.

Each of the three is a reward from 0 to 1, and their weighted sum is the score. MOCC does so with throughput, latency
and loss of a link (arXiv:2107.01427, sec. 4.1).

    throughput   bound / step
    latency      bound / (bound + wait): the first quarter of the layers waits so long for gradients in a step
    cost         of the time of the search, how much it would have taken under the config that it ended with

The bound is the least time of a step. So a second of a step weighs as much as a second of waiting, where the weights
are equal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autobyte.bound import yardstick_s
from autobyte.config import Config
from autobyte.job import Job
from autobyte.scheduler.policies import make_plan
from autobyte.simulator.effects import Effects
from autobyte.simulator.landscape import least_s
from autobyte.simulator.steady import settled, steady_of
from autobyte.trace import Measurement
from autobyte.weights import check_weights, parse_weights, show_weights

NAMES = ("throughput", "latency", "cost")
EXAMPLE = (0.7, 0.2, 0.1)
FIRST = 4  # one layer of so many is among the first


@dataclass(frozen=True)
class Preference:
    """Weights of throughput, latency and cost; they sum to 1.

    >>> Preference(0.7, 0.2, 0.1).score((0.9, 0.5, 1.0))
    0.83

    Raises:
        InputError: a weight is negative or no number, or they do not sum to 1.
    """

    throughput: float
    latency: float
    cost: float

    def __post_init__(self) -> None:
        check_weights(self.weights, NAMES, example=EXAMPLE)

    @classmethod
    def of(cls, wish: "str | Mapping[str, float] | Preference") -> "Preference":
        """Read weights, as text or by name.

        >>> Preference.of({"cost": 0.1, "throughput": 0.7, "latency": 0.2}) == Preference.of("0.7,0.2,0.1")
        True

        Raises:
            InputError: a name that is missing, unknown or there twice, or weights that are none.
        """
        if isinstance(wish, Preference):
            return wish
        if isinstance(wish, Mapping) and set(wish) == set(NAMES):
            return cls(**wish)
        return cls(*parse_weights(wish if isinstance(wish, str) else str(wish), NAMES, example=EXAMPLE))

    @property
    def weights(self) -> tuple[float, float, float]:
        """The three, in the order of `NAMES`."""
        return self.throughput, self.latency, self.cost

    def score(self, rewards: Sequence[float]) -> float:
        """The weighted sum of the rewards of throughput, latency and cost."""
        return sum(weight * reward for weight, reward in zip(self.weights, rewards, strict=True))

    def worth(self, throughput: float, latency: float) -> float:
        """What a config is worth, whatever it costs to find: the weighted mean of both; the first, if none weighs."""
        weight = self.throughput + self.latency
        return (self.throughput * throughput + self.latency * latency) / weight if weight else throughput

    def __str__(self) -> str:
        return show_weights(self.weights)


@dataclass(frozen=True)
class SteadyStep:
    """A steady step under a config, and what the first layers wait in it (s)."""

    step_s: float
    wait_s: float


class Rewards:
    """Throughput and latency of every config, in each state of a cluster; noise-free.

    Args:
        job_at: the job as its cluster is at an iteration.
        effects: second-order effects.

    Raises:
        InputError: a step need not take any time.
    """

    def __init__(self, job_at: Callable[[int], Job], effects: Effects) -> None:
        self._job_at, self._effects = job_at, effects
        self._jobs: dict[int, Job] = {}
        self._bound_s: dict[Job, float] = {}
        self._steps: dict[tuple[Job, Config], SteadyStep] = {}

    def of(self, config: Config, iteration: int) -> tuple[float, float]:
        """Throughput and latency of a steady step, each from 0 to 1."""
        step = self._step(config, iteration)
        return min(1.0, self.bound_s(iteration) / step.step_s), self._latency(step, iteration)

    def bound_s(self, iteration: int) -> float:
        """The least time of a step (s)."""
        job = self._job(iteration)
        if job not in self._bound_s:
            self._bound_s[job] = yardstick_s(job)
        return self._bound_s[job]

    def wished(self, measurement: Measurement, preference: Preference) -> Measurement:
        """A window as a tuner is told of it: the steps take so long as if a step were all that is wished.

        That is the bound over what the config is worth: the step itself, where throughput is all that weighs. How
        long first layers wait is that of a steady step.
        """
        steps = []
        for iteration, step_s in enumerate(measurement.step_s, measurement.iteration):
            bound_s = self.bound_s(iteration)
            latency = self._latency(self._step(measurement.config, iteration), iteration)
            steps.append(bound_s / preference.worth(bound_s / step_s, latency))
        return replace(measurement, step_s=tuple(steps))

    def best(self, configs: Sequence[Config], preference: Preference) -> Config:
        """The config that is worth most before anything changes.

        Blocks keep a link busy for so long that many configs are out of the question before they are simulated.
        """
        job, bound_s = self._job(0), self.bound_s(0)
        most = {
            config: preference.worth(bound_s / max(bound_s, least_s(job, config, effects=self._effects)), 1.0)
            for config in configs
        }
        best, worth = configs[0], -1.0
        for config in sorted(most, key=lambda config: -most[config]):
            if most[config] <= worth:
                break
            if (found := preference.worth(*self.of(config, 0))) > worth:
                best, worth = config, found
        return best

    def _job(self, iteration: int) -> Job:
        if iteration not in self._jobs:
            self._jobs[iteration] = self._job_at(iteration)
        return self._jobs[iteration]

    def _latency(self, step: SteadyStep, iteration: int) -> float:
        bound_s = self.bound_s(iteration)
        return bound_s / (bound_s + step.wait_s)

    def _step(self, config: Config, iteration: int) -> SteadyStep:
        key = self._job(iteration), config
        if key not in self._steps:
            run = settled(make_plan(*key), effects=self._effects)
            first = -(-run.wait_s.shape[1] // FIRST)
            self._steps[key] = SteadyStep(steady_of(run), float(run.wait_s[:, :first].sum(axis=1).max()))
        return self._steps[key]
