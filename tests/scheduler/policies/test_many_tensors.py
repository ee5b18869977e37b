"""Plans for very many tensors take time that grows with their number, whatever the policy."""

import time
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from autobyte.config import Config
from autobyte.job import Cluster, Job, Model
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies import POLICIES, make_plan
from autobyte.simulator.simulate import simulate

FEW, MANY = 10_000, 100_000
MOST_S = 10.0
WAYS = {"usbyte": ({"fusion": 0}, {"published": 1}), "mgwfbp": ({"published": 1},), "bytescheduler": ({"fusion": 1},)}


@cache
def spread(tensors: int) -> Model:
    """A layer for every tensor, in time for the link."""
    rows = [(f"l{i}", [(f"w{i}", 100 + 7919 * i % 10_000)], 6e-6, 1.3e-5) for i in range(tensors)]
    return Model.build("spread", rows, batch_size=1)


@cache
def lumped(tensors: int) -> Model:
    """Ten layers."""
    part = tensors // 10
    rows = [(f"l{i}", [(f"w{i}.{j}", 100 + j % 977) for j in range(part)], 0.02, 0.04) for i in range(10)]
    return Model.build("lumped", rows, batch_size=1)


def plans(model: Model, policy: str) -> Iterator[Plan]:
    """One for each of a policy's algorithms."""
    job = Job(model, Cluster.uniform(8, 1.25e9))
    default = POLICIES[policy]().space(job).default
    for knobs in ({}, *WAYS.get(policy, ())):
        yield make_plan(
            job, Config(default.partition_bytes, default.credit_bytes, policy, {**default.knobs, **knobs})
        )


def seconds(model: Model, policy: str) -> float:
    """CPU time of this thread, for other work on the machine is not the policy's."""
    began = time.thread_time()
    for plan in plans(model, policy):
        assert plan.digest
    return time.thread_time() - began


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("shape", [spread, lumped])
@pytest.mark.parametrize("policy", POLICIES.names())
def test_time_to_plan_grows_as_the_number_of_tensors_does(policy: str, shape: Callable[[int], Model]) -> None:
    for _ in plans(shape(100), policy):
        pass  # compiled before the clock starts
    few, many = seconds(shape(FEW), policy), seconds(shape(MANY), policy)
    print(f"\n{policy}, {MANY} tensors: {many:.2f} s, {many / few:.1f} times as long as {FEW}")
    assert many <= MOST_S
    assert many <= 3 * MANY / FEW * max(few, 0.05)


def test_time_to_simulate_grows_as_the_number_of_tensors_does() -> None:
    """By the reference, which orders blocks while training goes on; all tensors in one layer."""
    spent = []
    for tensors in (2_000, 20_000):
        rows = [("l", [(f"w{i}", 4) for i in range(tensors)], 1e-3, 2e-3)]
        job = Job(Model.build("one layer", rows, batch_size=1), Cluster.uniform(2, 1e8))
        plan = make_plan(job, Config(2048, 4096, knobs={"fusion": 1}))
        began = time.thread_time()
        simulate(plan)
        spent.append(time.thread_time() - began)
    print(f"\n20,000 tensors: {spent[1]:.2f} s, {spent[1] / spent[0]:.1f} times as long as 2,000")
    assert spent[1] <= 30 * max(spent[0], 0.01)
