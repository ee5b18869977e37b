"""Every policy against its paper; DDP against the function that real DDP calls."""

import gc
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jobs import covers_exactly, jobs, make_job, spelled, typed_job

from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.job import Cluster, Gradients, Job, Model
from autobyte.models import load, names
from autobyte.scheduler.plan import CreditRule, Overlap, Plan
from autobyte.scheduler.policies import POLICIES, check_ranges, check_sizes, label_of, make_plan
from autobyte.scheduler.policies.ddp import BUCKETS, FIRST_BUCKET_BYTES
from autobyte.simulator.steady import step_s
from autobyte.units import KIB, MIB

CLUSTER = Cluster.uniform(8, 1.25e9)


def model_job(name: str) -> Job:
    return Job(load(name), CLUSTER)


def default(policy: str, job: Job) -> Config:
    return POLICIES[policy]().space(job).default


def test_fifo_sends_whole_tensors_after_the_backward_pass() -> None:
    job = make_job(10, [3, 4], 0, 5)
    plan = make_plan(job, default("fifo", job))
    assert plan.overlap is Overlap.NONE
    assert plan.credit_bytes is None
    assert spelled(plan.tiling) == [[(4, 0, 5)], [(2, 0, 4)], [(1, 0, 3)], [(0, 0, 10)]]


def test_wfbp_sends_whole_tensors_beside_the_backward_pass() -> None:
    job = make_job(10, [3, 4], 0, 5)
    plan = make_plan(job, default("wfbp", job))
    assert plan.overlap is Overlap.BACKWARD
    assert (plan.credit_bytes, plan.sequence) == (None, None)
    assert spelled(plan.tiling) == [[(4, 0, 5)], [(2, 0, 4)], [(1, 0, 3)], [(0, 0, 10)]]


def test_bytescheduler_cuts_orders_by_layer_and_holds_a_window() -> None:
    job = make_job(10, 3)
    plan = make_plan(job, Config(16, 32))
    assert (plan.overlap, plan.rule, plan.credit_bytes) == (Overlap.STEP, CreditRule.SOFT, 32)
    assert plan.sequence is None
    assert spelled(plan.tiling) == [[(0, 0, 4)], [(0, 4, 8)], [(0, 8, 10)], [(1, 0, 3)]]
    assert plan.tiling.priority.tolist() == [0, 0, 0, 1]


def test_bytescheduler_as_shipped_cuts_vgg16_at_a_million_parameters() -> None:
    job = model_job("vgg16")
    plan = make_plan(job, default("bytescheduler", job))
    assert plan.credit_bytes == 16_000_000
    assert len(plan.tiling) == sum(-(-tensor.numel // 1_000_000) for tensor in job.model.tensors)


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "gpt2"])
def test_p3_sends_slices_of_40_000_parameters_one_at_a_time(name: str) -> None:
    job = model_job(name)
    config = default("p3", job)
    plan = make_plan(job, config)
    assert plan.tiling.nbytes.max() == plan.credit_bytes == 160_000
    assert (plan.tiling.stop - plan.tiling.start).max() == 40_000
    assert plan.overlap is Overlap.STEP
    assert plan.tiling.priority.tolist() == plan.tiling.tensor.tolist()


@pytest.mark.parametrize("name", ["densenet121", "resnet50"])
def test_fusion_really_fuses(name: str) -> None:
    job = model_job(name)
    plain, fused = (make_plan(job, Config(4 * MIB, 16 * MIB, knobs=knobs)) for knobs in ({}, {"fusion": 1}))
    assert len(plain.tiling) >= len(job.model.tensors)
    assert len(fused.tiling) <= 2 * job.gradients.total_bytes / (4 * MIB) + 1
    assert fused.tiling.nbytes.max() <= 4 * MIB
    assert (plain.credit_bytes, plain.overlap) == (fused.credit_bytes, fused.overlap)


def test_fusion_of_mixed_dtypes_keeps_them_apart() -> None:
    job = typed_job(*((3, dtype) for dtype in ("float32", "float32", "float16", "float16", "float32")))
    plan = make_plan(job, Config(MIB, MIB, knobs={"fusion": 1.0}))
    assert spelled(plan.tiling) == [[(0, 0, 3), (1, 0, 3)], [(2, 0, 3), (3, 0, 3)], [(4, 0, 3)]]


def test_the_fusion_knob_is_a_switch() -> None:
    job = make_job(1, 1, 1)
    counts = [len(make_plan(job, Config(MIB, MIB, knobs={"fusion": at})).tiling) for at in (0.0, 0.49, 0.5, 1.0)]
    assert counts == [3, 3, 1, 1]


def test_ddp_fills_buckets_in_a_fixed_sequence_without_a_window() -> None:
    job = make_job(10, 3)
    plan = make_plan(job, default("ddp", job))
    assert (plan.overlap, plan.credit_bytes) == (Overlap.BACKWARD, None)
    assert plan.sequence is not None
    assert plan.sequence.tolist() == list(range(len(plan.tiling)))


def elements(gradients: Gradients, rows: list[list[int]]) -> list[int]:
    return [int(gradients.numel[row].sum()) for row in rows]


def ddp_buckets(job: Job, size: int) -> list[list[int]]:
    return [[s.tensor for s in block.segments] for block in make_plan(job, Config(size, size, "ddp")).tiling.blocks]


def test_ddp_on_resnet50_has_the_recorded_buckets() -> None:
    """Recorded once from torch's own assignment, for a torch that hides it."""
    job = model_job("resnet50")
    config = default("ddp", job)
    assert config.partition_bytes == 25 * MIB
    recorded = [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040]
    assert elements(job.gradients, ddp_buckets(job, config.partition_bytes)) == recorded


def torch_buckets(job: Job, size: int) -> list[list[int]]:
    """As torch.nn.parallel.DistributedDataParallel assigns them when gradients come in reverse order."""
    backwards = [i for i in reversed(range(len(job.gradients))) if job.gradients.numel[i]]
    dtypes = [job.wire_dtype or tensor.dtype for tensor in job.model.tensors]
    tensors = [
        torch.empty(int(job.gradients.numel[i]), dtype=getattr(torch, dtypes[i]), device="meta") for i in backwards
    ]
    if not tensors:
        return []
    every = list(range(len(tensors)))  # says that this is the order in which they come
    assigned, _ = torch.distributed._compute_bucket_assignment_by_size(
        tensors, [FIRST_BUCKET_BYTES, size], [False] * len(tensors), every
    )
    return [[backwards[place] for place in bucket] for bucket in assigned]


needs_oracle = pytest.mark.skipif(
    not hasattr(torch.distributed, "_compute_bucket_assignment_by_size"), reason="this torch hides DDP's buckets"
)


@needs_oracle
@pytest.mark.parametrize("size", [config.partition_bytes for config in BUCKETS])
@pytest.mark.parametrize("name", names())
def test_ddp_has_real_ddps_buckets(name: str, size: int) -> None:
    job = model_job(name)
    assert ddp_buckets(job, size) == torch_buckets(job, size)


@needs_oracle
@given(jobs(most=700_000), st.sampled_from([256 * KIB, MIB, 3 * MIB]))
def test_ddp_has_real_ddps_buckets_whatever_the_dtypes(job: Job, size: int) -> None:
    ours, theirs = ddp_buckets(job, size), torch_buckets(job, size)
    kinds = len(set(job.gradients.kind.tolist()))
    full = len(ours) - kinds  # the open ones at the end come in no order that DDP promises
    assert ours[: max(0, full)] == theirs[: max(0, full)]
    assert sorted(ours) == sorted(theirs)


def test_an_unknown_policy_comes_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"^unknown policy 'bytesheduler'; did you mean 'bytescheduler'\?"):
        make_plan(make_job(1), Config(1, 1, "bytesheduler"))


def test_an_unknown_knob_comes_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'fusoin'; did you mean 'fusion'\?"):
        make_plan(make_job(1), Config(1, 1, knobs={"fusoin": 1.0}))
    with pytest.raises(InputError, match=r"unknown knob of p3 'fusion'"):
        make_plan(make_job(1), Config(1, 1, "p3", {"fusion": 1.0}))


@pytest.mark.parametrize("policy", [name for name in POLICIES.names() if POLICIES[name].by_gradients])
def test_a_policy_that_goes_by_gradients_alone_says_so_rightly(policy: str) -> None:
    job = model_job("resnet50")
    layers, times = job.model.layers, [(layer.backward_s, layer.forward_s) for layer in reversed(job.model.layers)]
    upside_down = [replace(one, forward_s=f, backward_s=b) for one, (f, b) in zip(layers, times, strict=True)]
    cluster = Cluster.uniform(3, 1e8, architecture="ps", slowdown=2.0)
    other = Job(replace(job.model, layers=tuple(upside_down)), cluster, accumulation=2)
    for knobs in ({}, dict.fromkeys(POLICIES[policy].knobs, 1.0)):
        for size in (64 * KIB, 4 * MIB):
            config = Config(size, 3 * size, policy, knobs=knobs)
            assert make_plan(job, config).digest == make_plan(other, config).digest


def test_a_policy_that_makes_other_plans_says_anew_that_it_goes_by_gradients() -> None:
    class Mine(POLICIES["bytescheduler"]):  # type: ignore[misc]
        def plan(self, job: Job, config: Config) -> Plan:
            return make_plan(job, config)

    assert POLICIES["bytescheduler"].by_gradients and not Mine.by_gradients


@pytest.mark.parametrize("policy", POLICIES.names())
def test_a_plan_is_the_same_whoever_makes_it(policy: str) -> None:
    one, other = (make_job(1000, [50, 0], 20_000) for _ in range(2))
    config = Config(4 * KIB, 16 * KIB, policy)
    assert make_plan(one, config).digest == make_plan(other, config).digest


@pytest.mark.parametrize("policy", POLICIES.names())
def test_the_sizes_that_a_policy_names_change_its_plan(policy: str) -> None:
    """That the others do not is in the contract of policies."""
    job = model_job("resnet50")
    plain = Config(8 * MIB, 16 * MIB, policy)
    others = {"partition": replace(plain, partition_bytes=2 * MIB), "credit": replace(plain, credit_bytes=MIB)}
    for name in POLICIES[policy].sizes:
        assert make_plan(job, others[name]).digest != make_plan(job, plain).digest


@pytest.mark.parametrize("policy", POLICIES.names())
def test_sizes_that_a_policy_does_not_have_are_refused(policy: str) -> None:
    job, sizes = model_job("alexnet"), POLICIES[policy].sizes
    given = [Config(MIB, 2 * MIB, policy), Config(2 * MIB, 2 * MIB, policy)]
    refused = [config for config in given if _refuses(check_sizes, config)]
    assert refused == {2: [], 1: given[:1], 0: given}[len(sizes)]
    ranges = [Space((MIB, MIB), (1.0, 2.0)), Space((MIB, 2 * MIB), (1.0, 1.0))]
    refused_ranges = [space for space in ranges if _refuses(check_ranges, policy, space)]
    assert refused_ranges == {2: [], 1: ranges[:1], 0: ranges}[len(sizes)]
    space = POLICIES[policy]().space(job)
    check_sizes(space.default)
    check_sizes(Config(1, 1, policy))
    check_ranges(policy, space)


@pytest.mark.parametrize(
    ("config", "label"),
    [
        (Config(MIB, 4 * MIB), "⟨1 MiB, 4x⟩"),
        (Config(4 * MIB, 4 * MIB, "usbyte", {"fusion": 1}), "⟨4 MiB, 1x, fusion=1⟩"),
        (Config(MIB, MIB, "ddp"), "⟨1 MiB⟩"),
        (Config(MIB, MIB, "horovod", {"cycle_ms": 1}), "⟨1 MiB, cycle_ms=1⟩"),
        (Config(MIB, MIB, "fifo"), ""),
        (Config(MIB, 2 * MIB, "of-another-package"), "⟨1 MiB, 2x⟩"),
    ],
)
def test_a_label_has_the_sizes_that_its_policy_looks_at(config: Config, label: str) -> None:
    assert label_of(config) == label


def _refuses(check: Callable[..., None], *given: Any) -> bool:
    try:
        check(*given)
    except InputError as error:
        assert str(error).startswith("policy '")
        return True
    return False


@pytest.mark.parametrize("policy", POLICIES.names())
def test_a_space_holds_its_own_default_and_grid(policy: str) -> None:
    space = POLICIES[policy]().space(model_job("alexnet"))
    assert space.default.policy == policy
    assert space.default in space
    assert all(config in space for config in space.grid())


def test_what_has_nothing_to_tune_is_one_point() -> None:
    for policy in ("fifo", "wfbp"):
        space = POLICIES[policy]().space(make_job(1))
        assert space.grid() == [space.default]


@pytest.mark.parametrize("policy", POLICIES.names())
def test_a_model_without_gradients_gives_an_empty_plan(policy: str) -> None:
    for job in (make_job([], []), make_job(0, [0, 0])):
        assert len(make_plan(job, default(policy, job)).tiling) == 0


@pytest.mark.parametrize("policy", POLICIES.names())
def test_odd_jobs_are_planned_and_end(policy: str) -> None:
    """One layer, one giant, nothing to compute, an infinitely fast link, one worker."""
    giant = [(f"l{i}", [(f"w{i}", n)], 0.01, 0.02) for i, n in enumerate((10, 50_000_000, 10))]
    idle = [(f"l{i}", [(f"w{i}", 1000)], 0.0, 0.0) for i in range(3)]
    clusters = [Cluster.uniform(*of) for of in ((8, 1.25e9), (8, math.inf), (1, 1e9))]
    for rows, cluster in itertools.product((giant[:1], giant, idle), clusters):
        job = Job(Model.build("odd", rows, batch_size=1), cluster)
        config = POLICIES[policy]().space(job).default
        assert covers_exactly(make_plan(job, config).tiling)
        assert job.model.compute_s * (1 - 1e-9) <= step_s(job, config) < math.inf


def tiny_tensors(count: int) -> Job:
    rows = [(f"l{i}", [(f"w{i}", 64)], 1e-5, 2e-5) for i in range(count)]
    return Job(Model.build("many", rows, batch_size=1), Cluster.uniform(8, 1.25e9))


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("policy", POLICIES.names())
def test_thousands_of_tiny_tensors_are_planned_in_a_moment(policy: str) -> None:
    job = tiny_tensors(5000)
    config = POLICIES[policy]().space(job).default
    make_plan(job, config)  # compiles
    again = replace(config, partition_bytes=config.partition_bytes + 4)
    began = time.thread_time()
    plan = make_plan(job, again)
    assert time.thread_time() - began < 1.0
    assert plan.tiling.nbytes.sum() == job.gradients.total_bytes * (2 if policy == "dear" else 1)  # both halves


@pytest.mark.parametrize("policy", ["ddp", "megatron", "dear"])
def test_buckets_of_thousands_of_tensors_set_off_no_garbage_collection_each(policy: str) -> None:
    """An object for each tensor would, and each collection looks at all that a training has in memory."""
    job = tiny_tensors(5000)
    config = default(policy, job)
    assert job.gradients.total_bytes
    before = gc.get_stats()[0]["collections"]
    make_plan(job, replace(config, partition_bytes=8 * MIB, credit_bytes=8 * MIB))
    assert gc.get_stats()[0]["collections"] - before <= 3
