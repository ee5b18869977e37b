"""Runs of tuners in simulated worlds, on all cores; the same seed gives the same run."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import numpy as np

from autobyte.config import BYTESCHEDULER_DEFAULT, Config, Space
from autobyte.job import Job
from autobyte.scenario import STEADY, Scenario
from autobyte.simulator.effects import Effects
from autobyte.simulator.world import World
from autobyte.trace import Measurement
from autobyte.tuners import TUNERS
from autobyte.tuning import WINDOW, Decision, make_tuner, tune
from autobyte.units import MIB

Cell = TypeVar("Cell")
Result = TypeVar("Result")

#: ByteScheduler's tuner tries 15 pairs and stops (bytecore.py); everyone has as many windows, and one for trial 0.
BUDGET = 16
#: Compute times vary by this from iteration to iteration: the median coefficient of variation of production jobs.
EFFECTS = Effects(jitter=0.087)


METRIC = slice(10, 60)  # iterations of the paper's metric (sec. IV-A): 50 after 10 of warm-up, searching included
PATIENCE_S = 3600.0  # what a decision waits for its tuner: on a machine that stands still meanwhile, too

#: Tuners in a space of their own. The released ByteScheduler's assigns the partition to a field that nobody reads, so
#: only the credit moves; 2 … 8 MB and 1 … 4X is what the paper's grid search may be.
SPACED = {
    "released": ("bayesian-published", Space(partition_bytes=(BYTESCHEDULER_DEFAULT.partition_bytes,) * 2)),
    "grid-12": ("grid", Space(partition_bytes=(2 * MIB, 8 * MIB), credit_ratio=(1, 4))),
}


def installed(names: Sequence[str]) -> list[str]:
    """Those of the tuners that there are."""
    return [name for name in names if spaced(name)[0] in TUNERS.names()]


def spaced(name: str) -> tuple[str, Space]:
    """The name a tuner is registered by, and what it may choose from."""
    return SPACED.get(name, (name, Space()))


def run(
    job: Job,
    tuner: str,
    seed: int,
    *,
    budget: int = BUDGET,
    space: Space | None = None,
    scenario: Scenario = STEADY,
) -> list[Decision]:
    """Let one tuner train a job for `budget` windows of 10 iterations."""
    name, own = spaced(tuner)
    space = space or own
    world = World(job, scenario=scenario, effects=EFFECTS, seed=seed)
    searching = make_tuner(name, space, job=job, seed=seed, budget=budget)
    return tune(searching, world, space, budget=budget, patience_s=PATIENCE_S)


def speeds(windows: Sequence[Measurement], samples: int, *, every: int = 5) -> list[tuple[int, Config, float]]:
    """Mean speed of every so many iterations: (first iteration, config, samples/s)."""
    return [
        (window.iteration + k, window.config, samples / float(np.mean(window.step_s[k : k + every])))
        for window in windows
        for k in range(0, len(window.step_s), every)
    ]


def still(job: Job, config: Config, seed: int, *, windows: int, part: slice = slice(None)) -> float:
    """Mean speed of a job whose config never changes (samples/s), over all its iterations or a part of them."""
    world = World(job, effects=EFFECTS, seed=seed)
    return job.samples / float(np.mean(world.measure(config, iterations=windows * WINDOW).step_s[part]))


def spread(work: Callable[[Cell], Result], cells: Sequence[Cell]) -> list[Result]:
    """Apply `work` to every cell, on as many processes as there are cores; the results are in the order of cells."""
    context = multiprocessing.get_context("fork")  # a fresh interpreter would run the script that calls this again
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        return list(pool.map(work, cells))
