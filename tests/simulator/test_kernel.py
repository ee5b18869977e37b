"""The compiled simulator against the readable one."""

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import EFFECTS, plans, scenarios

from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.scheduler.policies import make_plan
from autobyte.simulator import kernel
from autobyte.simulator.simulate import simulate
from autobyte.simulator.simulation import Simulation

TIMES = ("step_s", "forward_s", "backward_s", "wait_s", "up_busy_s", "down_busy_s", "ready_s", "start_s", "done_s")
COLUMNS = (*TIMES, "sends")
EXAMPLES = int(os.environ.get("AUTOBYTE_EXAMPLES", "500"))  # by night, thousands


def assert_equal(compiled: Simulation, reference: Simulation) -> None:
    """Equal to 1e-9, and the order to the block."""
    for name in COLUMNS:
        np.testing.assert_allclose(
            getattr(compiled, name), getattr(reference, name), rtol=1e-9, atol=1e-15, err_msg=name
        )
    np.testing.assert_array_equal(compiled.order, reference.order)
    np.testing.assert_array_equal(compiled.worker_class, reference.worker_class)
    assert compiled.inversions == reference.inversions


@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(data=st.data(), plan=plans(), effects=EFFECTS, iterations=st.integers(1, 5), first=st.sampled_from([0, 3]))
def test_equals_the_reference_in_any_world(data: st.DataObject, plan, effects, iterations, first) -> None:
    scenario = data.draw(scenarios(plan.job.cluster.workers))
    how = {"iterations": iterations, "first": first, "scenario": scenario, "effects": effects, "seed": 7}
    assert_equal(kernel.simulate(plan, **how), simulate(plan, **how))


def test_equals_the_reference_on_real_models() -> None:
    for name in ("resnet50", "vgg16", "densenet121"):
        for architecture in ("allreduce", "ps"):
            job = Job(load(name), Cluster.uniform(8, 1.25e9, architecture=architecture))
            for config in (
                Config(1 << 20, 4 << 20),
                Config(1 << 20, 4 << 20, knobs={"fusion": 1}),
                Config(1, 1, "ddp"),
            ):
                plan = make_plan(job, config)
                assert_equal(kernel.simulate(plan, iterations=2), simulate(plan, iterations=2))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(plan=plans(), iterations=st.integers(1, 3), stretch=st.sampled_from([0.25, 1.0, 2.0, 8.0]))
def test_runs_of_one_job_are_those_of_its_plans_on_slower_links(plan, iterations, stretch) -> None:
    job, cluster = plan.job, plan.job.cluster
    rates = {
        name: tuple(rate / stretch for rate in getattr(cluster, name))
        for name in ("up_bytes_per_s", "down_bytes_per_s")
    }
    local = cluster.local[0] / stretch, cluster.local[1]
    slower = replace(plan, job=replace(job, cluster=replace(cluster, **rates, local=local)))
    runs = kernel.Repeated(job, np.array([job.model.forward_s, job.model.backward_s]), iterations=iterations)
    expected_s = kernel.simulate(slower, iterations=iterations).step_s[-1]
    for _ in range(2):
        assert runs.step_s(plan, stretch=stretch) == pytest.approx(expected_s, rel=1e-9)
    with pytest.raises(InputError, match="the plan is not of the gradients of 'resnet50'"):
        kernel.Repeated(Job(load("resnet50"), job.cluster), np.ones((2, 107)), iterations=1).step_s(plan)
    with pytest.raises(InputError, match="iterations must be at least 1, got 0"):
        kernel.Repeated(job, np.zeros((2, 1)), iterations=0)
