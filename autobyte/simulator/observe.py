"""A window of a job, as the data set of the meta-network needs it: effects by name, cheap where nothing varies."""

from collections.abc import Mapping
from typing import Any

from autobyte.config import Config
from autobyte.job import Job
from autobyte.scheduler.policies import make_plan
from autobyte.simulator import kernel
from autobyte.simulator.costs import all_alike
from autobyte.simulator.effects import Effects
from autobyte.simulator.steady import steady_s
from autobyte.trace import Measurement

WARMUP = 2


def window(
    job: Job, config: Config, *, iterations: int, first: int, effects: Mapping[str, Any], seed: int
) -> Measurement:
    """Run some iterations; identical workers without anything drawn at random repeat the first for ever."""
    drawn, plan = Effects(**effects), make_plan(job, config)
    repeats = drawn == drawn.calm() and all_alike(job.cluster)
    run = kernel.simulate(plan, iterations=1 if repeats else iterations, first=first, effects=drawn, seed=seed)
    steps = tuple(run.step_s.tolist()) * (iterations if repeats else 1)
    return Measurement(config, first, steps, WARMUP, run.stats)


def truth_s(job: Job, config: Config, *, effects: Mapping[str, Any]) -> float:
    """Time of a steady step, noise-free (s)."""
    return steady_s(make_plan(job, config), effects=Effects(**effects))
