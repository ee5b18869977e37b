"""Policies that merge whole tensors, and one that only orders them, against their papers."""

import itertools

import numpy as np
import pytest
from jobs import make_job, spelled, typed_job
from small import small_job

from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.job import Cluster, Job, Model
from autobyte.models import load
from autobyte.scheduler.alpha_beta import AlphaBeta, Timetable
from autobyte.scheduler.block import Segment, Tiling
from autobyte.scheduler.plan import Overlap, Plan
from autobyte.scheduler.policies import POLICIES, make_plan
from autobyte.scheduler.policies.ddp import BUCKETS
from autobyte.simulator.steady import steady_s, step_s
from autobyte.units import MIB

PUBLISHED = Config(1, 1, "mgwfbp", {"published": 1})


def tensors(plan: Plan) -> list[list[int]]:
    return [[s.tensor for s in block.segments] for block in plan.tiling.blocks]


def default(policy: str, job: Job) -> Config:
    return POLICIES[policy]().space(job).default


def merged_again_and_again(job: Job) -> list[list[int]]:
    """MG-WFBP as its paper has it: from the last layer to the first, all begins worked out anew after every merge."""
    table, cost = Timetable.of(job), AlphaBeta.of(job.cluster)
    groups = [[k] for k in reversed(range(len(table.tensor)))]

    def begins() -> list[float]:
        now, made = 0.0, []
        for group in groups:
            made.append(max(now, table.ready_s[group[-1]]))
            now = made[-1] + cost.seconds(table.nbytes[group].sum())
        return made

    at = 0
    while at + 1 < len(groups):
        begin, ready = begins()[at], table.ready_s[groups[at + 1][0]]
        end = begin + cost.seconds(table.nbytes[groups[at]].sum())
        if ready < end and (begin > ready or ready - begin < cost.start_s):
            groups[at : at + 2] = [groups[at] + groups[at + 1]]
        else:
            at += 1
    return groups


def test_mgwfbp_as_published_merges_as_if_all_were_worked_out_anew() -> None:
    rng = np.random.default_rng(0)
    for layers in (1, 2, 5, 12, 40):
        for _ in range(10):
            job = small_job(rng, layers)
            assert tensors(make_plan(job, PUBLISHED)) == merged_again_and_again(job)


def test_mgwfbp_is_the_best_of_all_mergings() -> None:
    """Of all 2^(L-1) ways to merge neighbours; the published rule looks one layer ahead, and takes one within 5 %."""
    rng = np.random.default_rng(1)
    optimal, published = [], []
    for _ in range(30):
        job = small_job(rng, 6)
        plan = make_plan(job, default("mgwfbp", job))
        best = min(simulated(plan, joins) for joins in itertools.product((0, 1), repeat=5))
        optimal.append(step_s(job, default("mgwfbp", job)) / best)
        published.append(step_s(job, PUBLISHED) / best)
    assert max(optimal) <= 1 + 1e-9
    assert min(optimal) >= 1 - 1e-9
    assert np.median(published) <= 1.001
    assert 1 - 1e-9 <= max(published) <= 1.05


def test_mgwfbp_keeps_overlapping_where_gradients_follow_each_other_within_a_start_up() -> None:
    """On 32 workers the published rule merges ResNet50 into one message, slower than DDP's buckets."""
    job = Job(load("resnet50"), Cluster.uniform(32, 25 * 1.25e8))
    assert len(tensors(make_plan(job, PUBLISHED))) == 1
    best_s = step_s(job, default("mgwfbp", job))
    assert best_s < min(step_s(job, bucket) for bucket in BUCKETS) < step_s(job, PUBLISHED)


def simulated(plan: Plan, joins: tuple[int, ...]) -> float:
    numel = plan.job.gradients.numel.tolist()
    rows = [[5]]
    for tensor, join in zip(reversed(range(5)), joins, strict=True):
        if join:
            rows[-1].append(tensor)
        else:
            rows.append([tensor])
    tiling = Tiling.of(plan.job.gradients, [[Segment(t, 0, numel[t]) for t in row] for row in rows])
    return steady_s(Plan(plan.job, tiling, overlap=Overlap.BACKWARD, sequence=tiling.order))


def test_mgwfbp_beats_wfbp_where_tensors_are_many() -> None:
    for name in ("resnet50", "densenet121", "bert-base"):
        job = Job(load(name), Cluster.uniform(8, 1.25e9))
        assert step_s(job, default("mgwfbp", job)) < step_s(job, default("wfbp", job))


def test_mgwfbp_keeps_dtypes_apart() -> None:
    job = typed_job((300, "float32"), (300, "float16"), (300, "float16"))
    assert all(
        len(set(job.gradients.kind[row].tolist())) == 1 for row in tensors(make_plan(job, default("mgwfbp", job)))
    )


def in_a_row(*layers: tuple[int, float]) -> Job:
    """Layers (elements, backward time), the last computed first."""
    rows = [(f"l{i}", [(f"w{i}", numel)], 0.0, backward_s) for i, (numel, backward_s) in enumerate(layers)]
    return Job(Model.build("row", rows, batch_size=1), Cluster.uniform(8, 1e9))


def test_horovod_fuses_what_a_cycle_collects() -> None:
    """Ready at 0.5, 0.9, 1.1 and 3.0 ms: cycles of 1 ms collect two, one and one."""
    job = in_a_row((10, 1.9e-3), (10, 0.2e-3), (10, 0.4e-3), (10, 0.5e-3))
    assert tensors(make_plan(job, Config(MIB, MIB, "horovod"))) == [[3, 2], [1], [0]]
    assert tensors(make_plan(job, Config(MIB, MIB, "horovod", {"cycle_ms": 10.0}))) == [[3, 2, 1, 0]]


def test_horovod_fuses_up_to_its_threshold_and_passes_over_other_dtypes_alone() -> None:
    """As `FuseResponses` in its controller.cc does."""
    job = in_a_row((10, 0.0), (50, 0.0), (10, 0.0), (200, 0.0))
    plan = make_plan(job, Config(240, 240, "horovod"))
    assert tensors(plan) == [[3], [2, 1], [0]]
    assert tensors(make_plan(job, Config(100, 100, "horovod"))) == [[3], [2], [1], [0]]
    mixed, cycle = typed_job((10, "float32"), (10, "float16"), (10, "float32")), {"cycle_ms": 1e6}
    assert tensors(make_plan(mixed, Config(100, 100, "horovod", cycle))) == [[2, 0], [1]]
    assert tensors(make_plan(mixed, Config(50, 50, "horovod", cycle))) == [[2], [1], [0]]


def test_horovod_as_shipped() -> None:
    job = Job(load("vgg16"), Cluster.uniform(8, 1.25e9))
    config = default("horovod", job)
    assert (config.partition_bytes, config.knobs) == (128 * MIB, {"cycle_ms": 1.0})
    assert make_plan(job, config).overlap is Overlap.BACKWARD
    with pytest.raises(InputError, match=r"^knob 'cycle_ms' must be positive, got 0$"):
        make_plan(job, Config(MIB, MIB, "horovod", {"cycle_ms": 0}))


def test_tictac_orders_whole_tensors() -> None:
    job = make_job(10, [300_000_000, 4], 5)
    plan = make_plan(job, default("tictac", job))
    assert spelled(plan.tiling) == [[(0, 0, 10)], [(1, 0, 300_000_000)], [(2, 0, 4)], [(3, 0, 5)]]
    assert (plan.credit_bytes, plan.overlap) == (1, Overlap.STEP)


def tac_order(transfer_s: list[float], layer: list[int], forward_s: list[float]) -> list[int]:
    """TAC as TicTac's algorithm 3 has it, on layers that follow each other: pick the least, work out anew."""
    left, order = set(range(len(transfer_s))), []
    while left:
        needs = {op: [r for r in left if layer[r] <= op] for op in range(len(forward_s))}
        alone = {r: sum(forward_s[op] for op, rs in needs.items() if rs == [r]) for r in left}
        plus = {
            r: min((sum(transfer_s[i] for i in rs) for rs in needs.values() if r in rs and len(rs) > 1), default=1e9)
            for r in left
        }

        def before(a: int, b: int, alone: dict[int, float] = alone, plus: dict[int, float] = plus) -> bool:
            one, other = min(alone[b], transfer_s[a]), min(alone[a], transfer_s[b])
            return (one, plus[a], a) < (other, plus[b], b)

        order.append(next(a for a in sorted(left) if all(before(a, b) for b in left if b != a)))
        left.remove(order[-1])
    return order


def test_tac_is_the_forward_order_on_a_chain_of_layers() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        layers = int(rng.integers(1, 6))
        layer = sorted([*range(layers), *rng.integers(0, layers, 2).tolist()])
        order = tac_order(rng.uniform(0.1, 2, len(layer)).tolist(), layer, rng.uniform(0.1, 2, layers).tolist())
        assert [layer[r] for r in order] == layer


def test_tic_agrees_with_the_order_of_the_plan() -> None:
    """TIC is M+ alone, with unit times: nothing in the plan goes before what has a smaller one."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        job = make_job(
            *([int(n) for n in rng.integers(1, 99, rng.integers(1, 3))] for _ in range(rng.integers(1, 6)))
        )
        layer = job.gradients.layer.tolist()
        needs = [[r for r, own in enumerate(layer) if own <= op] for op in range(max(layer) + 1)]
        plus = [
            min((len(rs) for rs in needs if r in rs and len(rs) > 1), default=len(layer)) for r in range(len(layer))
        ]
        plan = make_plan(job, default("tictac", job))
        sent = [plan.tiling.blocks[index].segments[0].tensor for index in plan.tiling.order]
        assert [plus[r] for r in sent] == sorted(plus)


@pytest.mark.parametrize(("workers", "parameters"), [(8, 40_000_000), (64, 64_000_000), (1024, 1_024_000_000)])
def test_megatrons_buckets_grow_with_the_workers(workers: int, parameters: int) -> None:
    job = Job(load("bert-large"), Cluster.uniform(workers, 1.25e9))
    config = default("megatron", job)
    assert config.partition_bytes == 4 * parameters
    blocks = make_plan(job, config).tiling
    assert len(blocks) == -(-job.gradients.total_bytes // config.partition_bytes) or len(blocks) > 1
    assert (blocks.nbytes[:-1] >= config.partition_bytes).all()
