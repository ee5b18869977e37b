"""What US-Byte loses under a plan for a job that has changed since, and what a new plan gains.

    python paper/usbyte_drift.py        # 5 seconds

Simulated: plans are made for 10 Gbit/s on a ring of 8 workers; then links or compute change. Writes
data/usbyte_drift.csv, a row per model and change.
"""

from collections.abc import Iterator
from dataclasses import replace

import jobs
import sheet

from autobyte.bound import bound_s
from autobyte.config import Config
from autobyte.job import Job
from autobyte.scheduler.policies import make_plan
from autobyte.simulator.steady import steady_s

NAME = "usbyte_drift"
MODELS = ("vgg16", "resnet50", "densenet121", "gpt2", "bert-large")
GBIT, SLOWER, FREE = 10, 1.5, 1 << 34  # a window as good as none
FUSED = Config(FREE, FREE, "usbyte", {"fusion": 1})


def changed(before: Job) -> dict[str, Job]:
    """A job after each change."""
    slower = replace(before.cluster, slowdown=(SLOWER,) * before.cluster.workers)
    links = {f"link of {gbit} Gbit/s": jobs.job(before.model.name, gbit, "allreduce") for gbit in (3, 25)}
    return links | {f"compute {SLOWER} times as long": replace(before, cluster=slower)}


def judged(model: str) -> Iterator[sheet.Row]:
    """Step over bound after each change: under the plan from before, and under a new one."""
    before = jobs.job(model, GBIT, "allreduce")
    old = make_plan(before, FUSED)
    for change, after in changed(before).items():
        stayed, anew = (
            steady_s(plan) / bound_s(after) for plan in (replace(old, job=after), make_plan(after, FUSED))
        )
        yield {"model": model, "change": change, "stale_over_bound": stayed, "new_over_bound": anew}


if __name__ == "__main__":
    options = sheet.options(__doc__).parse_args()
    if not options.redraw:
        some = MODELS[: 1 if options.quick else None]
        sheet.write([row for model in some for row in judged(model)], NAME, options.out)
