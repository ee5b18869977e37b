"""The speed of every config of a grid: the ground truth that tuners are measured against."""

import contextlib
import math
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

import autobyte.compilations  # noqa: F401  ends with the process what its threads compile
from autobyte.config import Config
from autobyte.job import Floats, Job
from autobyte.simulator.effects import PLAIN, Effects
from autobyte.simulator.steady import step_s

BATCH = 16
CUTTING = ("bytescheduler", "p3")  # policies whose blocks are never larger than the partition, or than an element


@dataclass(frozen=True, eq=False)
class Landscape:
    """Configs, and the time of a steady step under each (s); shape [configs]."""

    job: Job
    configs: tuple[Config, ...]
    step_s: Floats

    @property
    def best(self) -> Config:
        """The fastest config; of equal ones the first."""
        return self.configs[int(self.step_s.argmin())]

    @property
    def best_s(self) -> float:
        """Its step time (s)."""
        return float(self.step_s.min())


def survey(job: Job, configs: Sequence[Config], *, effects: Effects = PLAIN) -> Landscape:
    """Simulate a steady step under each config, on all cores.

    Its threads are daemons, and no executor's: an interpreter that ends would wait for those, however much is left.
    """
    seconds, failed = np.empty(len(configs)), dict[int, BaseException]()
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(configs)):
        left.put(index)

    def work() -> None:
        while not failed and not left.empty():
            with contextlib.suppress(queue.Empty):
                index = left.get_nowait()
                try:
                    seconds[index] = step_s(job, configs[index], effects=effects)
                except BaseException as error:  # raised below, for the caller
                    failed[index] = error

    threads = [
        threading.Thread(target=work, name="autobyte survey", daemon=True)  # the kernel lets go of the GIL
        for _ in range(min(len(configs), len(os.sched_getaffinity(0))))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[min(failed)]
    return Landscape(job, tuple(configs), seconds)


def contenders(job: Job, configs: Sequence[Config], *, effects: Effects = PLAIN) -> Landscape:
    """Simulate a steady step under each config that may be the fastest, the least likely ones left out.

    What blocks cost keeps every link busy for as long as there are blocks, whatever else happens: no step is shorter,
    and a config whose blocks alone take longer than a step of another needs no simulation. All-reduces that share the
    wire can hide that cost; then none is left out.
    """
    least = [least_s(job, config, effects=effects) for config in configs]
    order = sorted(range(len(configs)), key=lambda index: least[index])
    known: dict[Config, float] = {}
    for first in range(0, len(order), BATCH):
        if least[order[first]] > min(known.values(), default=math.inf):
            break
        land = survey(job, [configs[index] for index in order[first : first + BATCH]], effects=effects)
        known.update(zip(land.configs, land.step_s.tolist(), strict=True))
    kept = tuple(config for config in configs if config in known)
    return Landscape(job, kept, np.array([known[config] for config in kept]))


def best_constant(
    jobs: Sequence[Job], configs: Sequence[Config], *, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Config, Floats]:
    """The one config that is best on average over jobs: in hindsight, no choice that never changes does better.

    Args:
        jobs: what it is to be good for.
        configs: what there is to choose from.
        progress: called with how many jobs are done, and how many there are.

    Returns:
        the config, and its speed on each job as a part of that job's best, shape [jobs].
    """
    parts, exact = np.empty((len(jobs), len(configs))), np.empty((len(jobs), len(configs)), dtype=bool)
    for index, job in enumerate(jobs):
        parts[index], exact[index] = _parts(job, tuple(configs))
        progress(index + 1, len(jobs))
    while True:
        best = int(parts.mean(axis=0).argmax())
        open_jobs = np.flatnonzero(~exact[:, best])
        if not len(open_jobs):
            return configs[best], parts[:, best]
        for index in open_jobs.tolist():
            job = jobs[index]
            parts[index, best] *= least_s(job, configs[best]) / step_s(job, configs[best])
        exact[:, best] = True


def least_s(job: Job, config: Config, *, effects: Effects = PLAIN) -> float:
    """Time that a step's blocks keep the busiest uplink or ring busy, at least (s): no step is shorter."""
    cluster, total = job.cluster, job.gradients.total_bytes
    if effects.sharing > 1 or cluster.workers == 1 or config.policy not in CUTTING:
        return 0.0
    block_s = cluster.overhead_s[0] if cluster.servers else cluster.overhead_s[0] + cluster.ring_hops_s
    blocks_s = total / max(config.partition_bytes, 8) * block_s
    if cluster.gpus_per_node > 1:
        return blocks_s
    return blocks_s + total * float((cluster.traffic / np.array(cluster.up_bytes_per_s)).max())


@lru_cache(maxsize=512)
def _parts(job: Job, configs: tuple[Config, ...]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The speed of every config as a part of the best one's, at most; and where it is just that. Shape [configs]."""
    land = contenders(job, configs)
    known = dict(zip(land.configs, land.step_s.tolist(), strict=True))
    seconds = np.array([known[config] if config in known else least_s(job, config) for config in configs])
    return land.best_s / seconds, np.array([config in known for config in configs])
