"""What the meta-network costs a running job: one decision over all candidates, and one lesson; both are printed."""

import statistics
import time

import pytest

from autobyte.config import Space
from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.simulator.world import World
from autobyte.tuners.metanet import Metanet, MetanetPublished
from autobyte.tuning import WARMUP, WINDOW

SPACE = Space()


@pytest.mark.parametrize("made", [Metanet, MetanetPublished])
@pytest.mark.parametrize("model", ["vgg16", "densenet121"])
def test_a_decision_and_a_lesson(made: type[Metanet | MetanetPublished], model: str) -> None:
    """At most 15 ms and 200 ms of CPU, in the median; the memory is full, and every window is of another config."""
    job = Job(load(model), Cluster.uniform(8, 1.25e9, architecture="ps"))
    world, tuner = World(job), made(SPACE, model=job.model)
    near = [config for config in SPACE.grid() if (1 << 20) <= config.partition_bytes <= (1 << 24)]
    decisions, lessons = [], []
    for config in near[:: len(near) // 40]:
        shown = world.measure(config, iterations=WINDOW, warmup=WARMUP)
        began = time.thread_time()
        tuner.tell(shown)
        tuner.ask()
        decided = time.thread_time()
        if isinstance(tuner, Metanet):
            tuner._wrong = True
            tuner.work()
        else:
            tuner._net.learn()
        decisions.append(decided - began)
        lessons.append(time.thread_time() - decided)
    decision_s, lesson_s = statistics.median(decisions[8:]), statistics.median(lessons)
    print(
        f"\n{made.__name__}, {model}: {1e3 * decision_s:.1f} ms a decision (at most 15), "
        f"{1e3 * lesson_s:.0f} ms a lesson (at most 200)"
    )
    assert decision_s <= 0.015
    assert lesson_s <= 0.2
