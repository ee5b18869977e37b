"""What the twin is handed: as the simulator has it, of a state that was measured, and nothing of the cluster."""

from dataclasses import replace

import numpy as np
import pytest

from autobyte.config import Config, Space
from autobyte.job import Cluster, Job, Model
from autobyte.models import load
from autobyte.prediction import Simulated
from autobyte.simulator.steady import step_s
from autobyte.simulator.world import World
from autobyte.tuners.twin import Twin
from autobyte.tuners.twin.windows import JobState
from autobyte.tuning import WINDOW

SPACE = Space()
GBIT = 1.25e8


def make_job(*, gbit: float = 10.0, workers: int = 8) -> Job:
    return Job(load("vgg16"), Cluster.uniform(workers, gbit * GBIT, architecture="ps"))


def test_what_it_remembers_of_a_window_is_of_that_window() -> None:
    """Not of one that is forgotten, whose place in memory it took."""
    job = make_job()
    simulated = Simulated(job)
    twin = Twin(SPACE, model=job.model, predictor=simulated)
    twin.tell(World(job).measure(SPACE.default, iterations=WINDOW))
    past = twin.calibration
    (first,) = past.windows
    for config in [Config(1 << 20, 1 << 20), Config(1 << 26, 1 << 26), Config(1 << 18, 1 << 24)]:
        window = replace(first, config=config)
        expected_s = Simulated(job).step_s(past.of(window), [config], np.ones(1))[0]
        past.windows = [window]
        assert simulated.ran_s(past, past.now()) == pytest.approx([expected_s])
        del window, past.windows


def make_state(job: Job) -> JobState:
    times = (
        np.tile(job.model.forward_s, (job.cluster.workers, 1)),
        np.tile(job.model.backward_s, (job.cluster.workers, 1)),
    )
    rates = np.array(job.cluster.up_bytes_per_s), np.array(job.cluster.down_bytes_per_s)
    return JobState(*times, *rates, job.cluster.servers, 1.0)


def test_what_it_is_handed_knows_nothing_of_the_cluster() -> None:
    one, other = make_job(gbit=1.0), make_job(gbit=25.0, workers=4)
    configs, stretch = SPACE.grid()[200:210], np.ones(10)
    seconds = [Simulated(job).step_s(make_state(one), configs, stretch) for job in (one, other)]
    assert (seconds[0] == seconds[1]).all()


@pytest.mark.parametrize("architecture", ["ps", "allreduce"])
def test_the_handed_predictor_agrees_with_the_simulator(architecture: str) -> None:
    rows = [("a", [("a.w", 400_000)], 0.002, 0.004), ("b", [("b.w", 900_000)], 0.004, 0.008)]
    job = Job(Model.build("two", rows, batch_size=8), Cluster.uniform(4, 1.25e9, architecture=architecture))
    sizes, policies = [(1 << 18, 1 << 19), (1 << 20, 1 << 22)], ["bytescheduler", "ddp", "usbyte", "mgwfbp"]
    configs = [Config(*size, policy) for size in sizes for policy in policies]
    slower = replace(job, cluster=Cluster.uniform(4, 0.625e9, architecture=architecture))
    handed = Simulated(replace(job, model=job.model.scaled(time=3.0)))  # times are those of the state
    for like, stretch in ((job, 1.0), (slower, 2.0)):
        predicted = handed.step_s(make_state(job), configs, np.full(len(configs), stretch))
        assert predicted == pytest.approx([step_s(like, config) for config in configs])


@pytest.mark.parametrize("architecture", ["ps", "allreduce"])
def test_workers_that_differ_are_predicted_by_their_slowest(architecture: str) -> None:
    cluster = Cluster.uniform(4, 1.25e9, architecture=architecture)
    cluster = replace(cluster, slowdown=(1.0, 1.03, 1.0, 2.0), up_bytes_per_s=(1.25e9, 6e8, 1.2e9, 1.25e9))
    job = Job(load("resnet50"), cluster)
    slowdown = np.array(cluster.slowdown)[:, None]
    state = make_state(job)
    state = replace(state, forward_s=state.forward_s * slowdown, backward_s=state.backward_s * slowdown)
    configs = [Config(1 << 20, 1 << 21), Config(1 << 22, 1 << 22), Config(1 << 24, 1 << 24)]
    predicted = Simulated(job).step_s(state, configs, np.ones(3))
    assert predicted == pytest.approx([step_s(job, config) for config in configs], rel=0.06)
