"""Leaving out what cannot be the fastest loses nothing."""

import numpy as np
import pytest

from autobyte.comparison.worlds import draw
from autobyte.config import Config, Space
from autobyte.job import Cluster, Job, Model
from autobyte.simulator.effects import PLAIN, Effects
from autobyte.simulator.landscape import best_constant, contenders, least_s, survey

SPACE = Space((1 << 12, 1 << 22), (1.0, 3.0), Config(1 << 18, 1 << 20))
MODEL = Model.build(
    "toy", [(f"l{i}", [(f"w{i}", 300_000), (f"b{i}", 100)], 0.002, 0.004) for i in range(4)], batch_size=8
)


@pytest.mark.parametrize("architecture", ["ps", "allreduce"])
@pytest.mark.parametrize("effects", [PLAIN, Effects(incast=0.02, inflight_bytes=4e6), Effects(sharing=4)])
def test_the_fastest_is_among_those_that_are_simulated(architecture: str, effects: Effects) -> None:
    job = Job(MODEL, Cluster.uniform(4, 1.25e9, architecture=architecture))
    some, every = contenders(job, SPACE.grid(), effects=effects), survey(job, SPACE.grid(), effects=effects)
    assert (some.best, some.best_s) == (every.best, every.best_s)
    assert (len(some.configs) < len(every.configs)) == (effects.sharing == 1)


def test_worlds_are_drawn_the_same_again_and_differ() -> None:
    assert draw(3) == draw(3)
    drawn = [draw(seed) for seed in range(200)]
    assert len({each.job.model.name for each in drawn}) == 7
    assert {each.job.cluster.architecture for each in drawn} == {"ps", "allreduce"}
    assert 0.3 < sum(each.effects.inflight_bytes < 1e9 for each in drawn) / 200 < 0.5
    assert 0.05 < sum(max(each.job.cluster.slowdown) > 1.5 for each in drawn) / 200 < 0.25
    assert all(0.005 < each.effects.jitter < 0.3 for each in drawn)


@pytest.mark.parametrize("architecture", ["ps", "allreduce"])
def test_the_best_constant_is_that_of_the_whole_survey(architecture: str) -> None:
    clusters = [Cluster.uniform(4, rate, architecture=architecture) for rate in (1.25e8, 6e8, 1.25e9, 1e10)]
    jobs = [Job(MODEL, cluster) for cluster in clusters]
    every = [survey(job, SPACE.grid()) for job in jobs]
    parts = np.array([land.best_s / land.step_s for land in every])
    best = int(parts.mean(axis=0).argmax())
    config, shares = best_constant(jobs, SPACE.grid())
    assert config == SPACE.grid()[best]
    assert shares == pytest.approx(parts[:, best], rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_no_step_is_shorter_than_what_its_links_need(seed: int) -> None:
    drawn = draw(seed, workers=(2, 4))
    configs = [c for c in Space().grid() if c.partition_bytes >= 1 << 20][::7]
    land = survey(drawn.job, configs, effects=drawn.effects)
    least = np.array([least_s(drawn.job, config, effects=drawn.effects) for config in configs])
    assert (least > 0).all()
    assert (least <= land.step_s).all()
