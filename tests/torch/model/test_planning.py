"""An order that all ranks keep: no slower than the one that the core would make as it goes."""

import pytest

from autobyte.config import Config
from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.scheduler.policies import make_plan
from autobyte.simulator.simulate import simulate
from autobyte.torch.model.planning import DEFAULT, agreed_plan, planned_order, priced

FINE = Config(1 << 18, 1 << 20, knobs={"fusion": 1})


def measured(model: str, *, servers: int = 0) -> Job:
    job = Job(load(model).scaled(size=0.2, time=4.0), Cluster(4, servers))
    return priced(job, bytes_per_s=1.2e8, per_block_s=5e-4)


def kept_s(job: Job, config: Config, order: list[int] | None) -> float:
    return float(simulate(agreed_plan(job, config, order)).step_s[-1])


@pytest.mark.parametrize("config", [DEFAULT, FINE], ids=["default", "fine"])
@pytest.mark.parametrize("servers", [0, 4])
@pytest.mark.parametrize("model", ["resnet50", "vgg16", "gpt2"])
def test_it_is_no_slower_than_what_the_core_does_as_it_goes(model: str, servers: int, config: Config) -> None:
    job = measured(model, servers=servers)
    order = planned_order(job, config)
    assert order is not None
    assert sorted(order) == list(range(len(order)))
    as_it_goes = simulate(make_plan(job, config)).order.tolist()
    assert kept_s(job, config, order) <= kept_s(job, config, as_it_goes)


def test_urgent_blocks_overtake_later_where_that_is_faster() -> None:
    job = measured("resnet50")
    as_it_goes = simulate(make_plan(job, FINE)).order.tolist()
    assert kept_s(job, FINE, planned_order(job, FINE)) < 0.99 * kept_s(job, FINE, as_it_goes)


def test_a_policy_with_a_sequence_of_its_own_keeps_it() -> None:
    assert planned_order(measured("resnet50"), Config(1 << 20, 1 << 20, "usbyte", {"fusion": 1})) is None
