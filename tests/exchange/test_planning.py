"""An order that all ranks keep: no slower than the one that the core would make as it goes."""

from dataclasses import replace

import pytest

from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.exchange.planning import DEFAULT, MeasuredPlan, agreed_plan, begin_with, planned_order, priced
from autobyte.job import Cluster, Job, Layer, Model, Tensor
from autobyte.models import load
from autobyte.scheduler.policies import POLICIES, make_plan
from autobyte.scheduler.policies.bytescheduler import ByteScheduler
from autobyte.simulator.simulate import simulate

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


def test_training_does_not_begin_with_a_policy_whose_space_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    class Anothers(ByteScheduler):
        """Its space is ByteScheduler's."""

    monkeypatch.setattr(POLICIES, "_classes", dict(POLICIES._classes) | {"anothers": Anothers})
    with pytest.raises(InputError, match=r"^policy 'anothers': the default config of its space\(\) is of 'bytesche"):
        begin_with("anothers", workers=2, servers=False)


def test_urgent_blocks_overtake_later_where_that_is_faster() -> None:
    job = measured("resnet50")
    as_it_goes = simulate(make_plan(job, FINE)).order.tolist()
    assert kept_s(job, FINE, planned_order(job, FINE)) < 0.99 * kept_s(job, FINE, as_it_goes)


def test_a_policy_with_a_sequence_of_its_own_keeps_it() -> None:
    assert planned_order(measured("resnet50"), Config(1 << 20, 1 << 20, "usbyte", {"fusion": 1})) is None


def test_a_checkpoint_that_was_written_before_is_read() -> None:
    """As `state_dict()["autobyte"]` had it when plans were first kept, and as it still is."""
    kept = {
        "config": {"partition_bytes": 4096, "credit_bytes": 16384, "knobs": {"fusion": 1}},
        "measured": {
            "layers": [
                ["back", ["back.weight"], 0.001, 0.002],
                ["front", ["front.weight", "front.bias"], 0.003, 0.004],
            ],
            "bytes_per_s": 1.25e8,
            "per_block_s": 0.0005,
        },
        "order": [1, 0],
        "parameters": "0123456789abcdef",
        "workers": 2,
        "engine": "allreduce",
        "wire_dtype": None,
    }
    weight, bias, back = (
        Tensor("front.weight", 10, "float32", 0),
        Tensor("front.bias", 2, "float32", 0),
        "back.weight",
    )
    layers = Layer("front", (weight, bias), 0.0, 0.0), Layer("back", (Tensor(back, 20, "float32", 1),), 0.0, 0.0)
    job = Job(Model("net", layers, 1), Cluster(2))
    plan = MeasuredPlan.from_json(kept, job)
    assert (plan.config, plan.order) == (Config(4096, 16384, knobs={"fusion": 1}), [1, 0])
    assert plan.job is not None
    assert [(layer.name, layer.forward_s, layer.backward_s) for layer in plan.job.model.layers] == [
        ("back", 0.001, 0.002),
        ("front", 0.003, 0.004),
    ]
    assert [(each.name, each.numel, each.layer) for each in plan.job.model.tensors] == [
        ("back.weight", 20, 0),
        ("front.weight", 10, 1),
        ("front.bias", 2, 1),
    ]
    assert plan.job.cluster == replace(
        job.cluster, up_bytes_per_s=(1.25e8,), down_bytes_per_s=(1.25e8,), latency_s=0.0, overhead_s=(0.0005, 0.0)
    )
    assert plan.to_json() == {key: kept[key] for key in ("config", "measured", "order")}


def test_a_checkpoint_without_measurements_is_read() -> None:
    kept = {"config": {"partition_bytes": 4096, "credit_bytes": 16384}, "measured": None, "order": None}
    plan = MeasuredPlan.from_json(kept, measured("resnet50"))
    assert plan == MeasuredPlan(Config(4096, 16384), None, None)
    assert plan.to_json() == kept


def test_an_order_is_of_the_plan_that_is_made_of_the_job_where_gradients_are_clipped() -> None:
    config = Config(1 << 20, 1 << 20, "usbyte", {"fusion": 1})
    job = replace(measured("vgg16"), clips=True)
    beside = priced(job, bytes_per_s=0.5 * job.cluster.up_bytes_per_s[0], per_block_s=5e-3)
    assert len(make_plan(job, config).tiling) != len(make_plan(beside, config).tiling), "it cuts by what blocks cost"
    plan = agreed_plan(job, config, planned_order(job, config, beside=beside))
    assert plan.barrier


def test_halves_that_are_messages_fill_the_time_that_late_gradients_leave() -> None:
    """In an order that was made for a link thought too slow, they come when all gradients are out."""
    job = replace(measured("vgg16"), model=load("vgg16").scaled(size=0.09, time=4.0), clips=True)
    slow = priced(job, bytes_per_s=0.75 * job.cluster.up_bytes_per_s[0], per_block_s=job.cluster.overhead_s[0])
    small = Config(1 << 20, 1 << 20, knobs={"fusion": 1})
    order = planned_order(job, small, beside=slow)
    free = agreed_plan(job, small, order, messages=True)
    assert (free.sequence, free.barrier) == (None, True)
    assert float(simulate(free).step_s[-1]) < 0.95 * kept_s(job, small, order)
    for other, config in ((replace(job, clips=False), small), (job, Config(1 << 20, 1 << 20, "dear"))):
        assert agreed_plan(other, config, messages=True).sequence is not None
