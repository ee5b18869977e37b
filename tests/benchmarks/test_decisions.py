"""What tuners cost a running job: one decision over all candidates, and one lesson; both are printed."""

import itertools
import statistics
import time
from collections.abc import Iterator

import pytest

from autobyte.config import Space
from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.prediction import Simulated
from autobyte.simulator.world import World
from autobyte.trace import Measurement
from autobyte.tuners.base import Tuner
from autobyte.tuners.metanet import Metanet, MetanetPublished
from autobyte.tuners.twin import Twin
from autobyte.tuning import WARMUP, WINDOW

SPACE = Space()
SETTLED = 8  # windows that come before those that count


def make_job(model: str) -> Job:
    return Job(load(model), Cluster.uniform(8, 1.25e9, architecture="ps"))


def windows(job: Job) -> Iterator[Measurement]:
    """Each under another config: the tuner's memory gets full, and nothing stays as it was."""
    world, near = World(job), [config for config in SPACE.grid() if (1 << 20) <= config.partition_bytes <= (1 << 24)]
    return (world.measure(config, iterations=WINDOW, warmup=WARMUP) for config in near[:: len(near) // 40])


def decision_s(tuner: Tuner, shown: Measurement) -> float:
    """CPU time."""
    began = time.thread_time()
    tuner.tell(shown)
    tuner.ask()
    return time.thread_time() - began


@pytest.mark.parametrize("made", [Metanet, MetanetPublished])
@pytest.mark.parametrize("model", ["vgg16", "densenet121"])
def test_a_decision_and_a_lesson(made: type[Metanet | MetanetPublished], model: str) -> None:
    """At most 15 ms and 200 ms of CPU, in the median."""
    job = make_job(model)
    tuner, decisions, lessons = made(SPACE, model=job.model), [], []
    for shown in windows(job):
        decisions.append(decision_s(tuner, shown))
        began = time.thread_time()
        if isinstance(tuner, Metanet):
            tuner._wrong = True
            tuner.work()
        else:
            tuner._net.learn()
        lessons.append(time.thread_time() - began)
    decided, learned = statistics.median(decisions[SETTLED:]), statistics.median(lessons)
    print(
        f"\n{made.__name__}, {model}: {1e3 * decided:.1f} ms a decision (at most 15), "
        f"{1e3 * learned:.0f} ms a lesson (at most 200)"
    )
    assert decided <= 0.015
    assert learned <= 0.2


def test_a_decision_by_simulation() -> None:
    """At most 30 ms of CPU, in the median; `tools/judge_tuners.py decisions` asks the same in a hundred worlds."""
    decisions: dict[str, list[float]] = {}
    for model in ("vgg16", "resnet50", "bert-base", "densenet121"):
        job = make_job(model)
        twin = Twin(SPACE, model=job.model, predictor=Simulated(job))
        decisions[model] = [decision_s(twin, shown) for shown in windows(job)][SETTLED:]
        print(f"\nTwin, {model}: {1e3 * statistics.median(decisions[model]):.1f} ms a decision", end="")
    decided = statistics.median(itertools.chain(*decisions.values()))
    print(f"\nTwin, all: {1e3 * decided:.1f} ms (at most 30)")
    assert decided <= 0.03
