"""The network as published; what both variants do is in `test_tuner.py`."""

import numpy as np
import pytest
from broken import Broken

from autobyte.config import Config, Space
from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.nets.forward import Forward
from autobyte.simulator.world import World
from autobyte.trace import Measurement
from autobyte.tuners.metanet import MetanetPublished
from autobyte.tuning import WARMUP, WINDOW, tune

SPACE = Space()
GBIT = 1.25e8


def make_job(model: str = "vgg16", *, gbit: float = 10.0) -> Job:
    return Job(load(model), Cluster.uniform(8, gbit * GBIT, architecture="ps"))


def window(job: Job, config: Config = SPACE.default) -> Measurement:
    return World(job).measure(config, iterations=WINDOW, warmup=WARMUP)


def _know_nothing(net: Forward) -> None:
    net.heads = [[np.zeros_like(values) for values in head] for head in net.heads]


def test_the_published_one_changes_for_five_percent() -> None:
    job = make_job(gbit=25.0)
    tuner = MetanetPublished(SPACE, model=job.model)
    tuner.tell(window(job))
    asked = tuner.ask()
    assert asked is not None
    expected = tuner._expected
    best_s = min(expected.values())
    fires = expected[SPACE.default] / best_s >= 1.05
    assert asked == (min(expected, key=lambda config: expected[config]) if fires else SPACE.default)
    _know_nothing(tuner._net._net)  # all alike
    assert tuner.ask() == SPACE.default


@pytest.mark.parametrize("how", ["missing", "nan", "other layers"])
def test_the_published_one_does_nothing_without_statistics(how: str) -> None:
    job = make_job("vgg16", gbit=25.0)
    decisions = tune(MetanetPublished(SPACE, model=job.model), Broken(job, how), SPACE, budget=4)
    assert {decision.config for decision in decisions} == {SPACE.default}
    assert not any(decision.failure for decision in decisions)
