"""How near `usbyte` is to the optimum, and how fast it plans; each test prints it.

AUTOBYTE_JOBS sets how many small random jobs are tried (500 are what `make gap` asks for).
"""

import os
import statistics
import time

import numpy as np
import pytest
from small import small_job

from autobyte.config import Config
from autobyte.job import Cluster, Job, Model
from autobyte.models import load
from autobyte.scheduler.optimum import optimum_s
from autobyte.scheduler.policies import make_plan
from autobyte.scheduler.policies.usbyte import make_schedule

JOBS = int(os.environ.get("AUTOBYTE_JOBS", "60"))
UNITS = {1: 12, 2: 12, 3: 8, 4: 6, 5: 4, 6: 4}
FREE = 1 << 50


@pytest.mark.parametrize("fusion", [False, True])
def test_near_the_optimum(fusion: bool) -> None:
    rng, ratios = np.random.default_rng(0), []
    for _ in range(JOBS):
        layers = int(rng.integers(1, 7))
        job, units = small_job(rng, layers), 3 if fusion and layers == 6 else UNITS[layers]
        mine = make_schedule(job, Config(FREE, FREE, "usbyte", {"fusion": fusion})).step_s
        ratios.append(mine / optimum_s(job, units=units, fusion=fusion))
    which = "with" if fusion else "without"
    print(f"\nusbyte {which} fusion over the optimum, {JOBS} jobs of up to 6 layers: median {np.median(ratios):.4f} "
          f"(at most 1.01), worst {max(ratios):.4f} (at most 1.03)")  # fmt: skip
    assert np.median(ratios) <= 1.01
    assert max(ratios) <= 1.03


def test_400_tensors_are_planned_in_20_ms() -> None:
    pairs = [(f"l{i}", [(f"w{i}", 50_000 + 977 * i), (f"b{i}", 64)], 2e-4, 4e-4) for i in range(200)]
    alone = [(f"l{i}", [(f"w{i}", 50_000)], 3e-4, 3e-4) for i in range(400)]  # every tensor a place to begin at
    for job in (
        Job(Model.build("two per layer", pairs, batch_size=1), Cluster.uniform(8, 1.25e9)),
        Job(Model.build("one per layer", alone, batch_size=1), Cluster.uniform(8, 1.25e9)),
        Job(load("densenet121"), Cluster.uniform(8, 1.25e9)),
        Job(load("bert-large"), Cluster.uniform(8, 1.25e10)),
    ):
        for most, fusion in ((FREE, 1), (FREE, 0), (1 << 20, 1)):
            config = Config(most, most, "usbyte", {"fusion": fusion})
            make_plan(job, config)
            spent = []
            for _ in range(9):
                began = time.thread_time()  # of this thread: other work on the machine is not its own
                make_plan(job, config)
                spent.append(time.thread_time() - began)
            took = statistics.median(spent) * 1e3
            how = f"fusion {fusion}, {'any size' if most == FREE else 'at most 1 MiB'}"
            print(f"\n{job.model.name}, {len(job.gradients)} tensors, {how}: {took:.1f} ms (at most 20)")
            assert took <= 20
