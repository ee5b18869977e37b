"""DeAR, and the halves of an all-reduce that it is made of."""

from dataclasses import replace

import pytest
from jobs import make_job, segments, spelled

from autobyte.bound import bound_s
from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.job import Cluster, Job, Model
from autobyte.models import load
from autobyte.scheduler.block import Collective, Tiling
from autobyte.scheduler.core import BlockState, Core
from autobyte.scheduler.plan import Overlap, Plan
from autobyte.scheduler.policies import POLICIES, make_plan
from autobyte.simulator.simulate import simulate
from autobyte.simulator.steady import step_s
from autobyte.units import MIB

N, RATE, LATENCY, OVERHEAD = 4, 1e8, 1e-4, (1e-3, 1e-4)
RING = Cluster.uniform(N, RATE, latency_s=LATENCY, overhead_s=OVERHEAD)
SCATTER, GATHER = Collective.REDUCE_SCATTER, Collective.ALL_GATHER


def half_s(nbytes: float) -> float:
    """How long a reduce-scatter or an all-gather holds the ring (s)."""
    return OVERHEAD[0] + (N - 1) * OVERHEAD[1] + (N - 1) / N * nbytes / RATE


def test_halves_go_backward_then_forward() -> None:
    plan = make_plan(make_job(10, 20, 30), Config(100, 100, "dear"))
    assert spelled(plan.tiling) == [[(2, 0, 30)], [(1, 0, 20), (0, 0, 10)], [(1, 0, 20), (0, 0, 10)], [(2, 0, 30)]]
    assert [block.op for block in plan.tiling.blocks] == [SCATTER, SCATTER, GATHER, GATHER]
    assert plan.overlap is Overlap.STEP
    assert plan.sequence is not None
    assert plan.sequence.tolist() == [0, 1, 2, 3]


def test_a_half_costs_a_start_up_and_half_the_bytes() -> None:
    """One layer of 10 + 20 ms and 1 MB: both halves follow the backward pass."""
    job = Job(Model.build("one", [("layer", [("weight", 250_000)], 0.01, 0.02)], batch_size=1), RING)
    halves = 2 * (half_s(1e6) + (N - 1) * LATENCY)
    assert simulate(make_plan(job, Config(MIB, MIB, "dear"))).mean_s == pytest.approx(0.03 + halves, rel=1e-12)


def test_two_layers_by_hand() -> None:
    """Scatters of 1 MB take 7.8 … ms after 20 ms each of backward; gathers go in forward order."""
    rows = [(f"l{i}", [(f"w{i}", 250_000)], 0.01, 0.02) for i in range(2)]
    job = Job(Model.build("two", rows, batch_size=1), RING)
    run = simulate(make_plan(job, Config(1, 1, "dear")))
    hold, way = half_s(1e6), (N - 1) * LATENCY
    scattered = 0.04 + hold + way  # the second one's, at the end of backward
    front = scattered + hold + way
    back = scattered + 2 * hold + way  # its scatter was in place long ago
    assert run.done_s[1] == pytest.approx(scattered, rel=1e-12)
    assert run.done_s[2] == pytest.approx(front, rel=1e-12)
    assert run.mean_s == pytest.approx(max(front + 0.01, back) + 0.01, rel=1e-12)


def test_clipping_halves_every_policy_that_crosses_the_step() -> None:
    """Two layers by hand: forward begins when both scatters are over, gathers go as the forward pass needs them."""
    rows = [(f"l{i}", [(f"w{i}", 250_000)], 0.01, 0.02) for i in range(2)]
    job = Job(Model.build("two", rows, batch_size=1), RING, clips=True)
    plan = make_plan(job, Config(MIB, 2 * MIB))
    assert [(block.op, block.segments[0].tensor) for block in plan.tiling.blocks] == [
        (SCATTER, 0), (SCATTER, 1), (GATHER, 0), (GATHER, 1),
    ]  # fmt: skip
    hold, way = half_s(1e6), (N - 1) * LATENCY
    run = simulate(plan)
    assert run.order.tolist() == [1, 3, 0, 2], "the second gather travels in the gap before the first gradient"
    scattered = 0.04 + hold + way
    assert run.done_s[0] == pytest.approx(scattered, rel=1e-12)
    assert run.mean_s == pytest.approx(scattered + hold + way + 0.02, rel=1e-12), "the first layer waits for its own"
    assert run.mean_s >= bound_s(job)


def test_clipping_lets_pulls_wait_until_they_are_needed() -> None:
    """Three layers of 1 MB by hand, two workers with servers: a push, or a pull, keeps each link busy for 0.5 s."""
    rows = [(f"l{i}", [(f"w{i}", 250_000)], 0.6, 0.2) for i in range(3)]
    rate = (1e6,)
    served = Cluster(2, 2, rate, rate, latency_s=0.0, overhead_s=(0.0, 0.0))
    job = Job(Model.build("three", rows, batch_size=1), served, clips=True)
    run = simulate(make_plan(job, Config(1_000_000, 1_000_000)))
    assert run.done_s[:3] == pytest.approx([1.7, 1.2, 0.7], rel=1e-12), "pushes are more urgent than pulls"
    assert run.done_s[3:] == pytest.approx([2.7, 2.2, 3.2], rel=1e-12), "credit is back before the last sum is there"
    assert run.mean_s == pytest.approx(4.5, rel=1e-12), "the last pull travels beside the first layer"
    assert bound_s(job) == pytest.approx(3.0 + 0.8, rel=1e-12)


def test_what_waits_for_everything_is_not_halved() -> None:
    job = replace(make_job(10, 20), clips=True)
    for policy in ("ddp", "wfbp", "fifo"):
        plan = make_plan(job, Config(100, 100, policy))
        assert plan.digest == make_plan(replace(job, clips=False), Config(100, 100, policy)).digest
    assert make_plan(job, Config(100, 100, "dear")).awaited_scatters == 1
    served = replace(job, cluster=Cluster(2, servers=2))
    assert make_plan(served, Config(100, 100, "ddp")).tiling.gathers is None


def test_a_gather_waits_for_its_scatter_only() -> None:
    job = make_job(4, 4)
    blocks = segments([(0, 0, 4)], [(1, 0, 4)], [(0, 0, 4)])
    core = Core(Plan(job, Tiling.of(job.gradients, blocks, gathers=[-1, -1, 0])))
    first, *rest = core.ready(0)
    assert (first.index, rest) == (0, [])
    assert core.state(2) is BlockState.WAITING
    assert [block.index for block in core.sent(first)] == [2]
    core.done(first)
    assert [block.index for block in core.ready(1)] == [1]


def test_a_pull_waits_until_all_have_pushed() -> None:
    job = replace(make_job(4, 4), cluster=Cluster(2, servers=2))
    blocks = segments([(0, 0, 4)], [(1, 0, 4)], [(0, 0, 4)], [(1, 0, 4)])
    core = Core(Plan(job, Tiling.of(job.gradients, blocks, gathers=[-1, -1, 0, 1]), credit_bytes=1))
    (first,) = core.ready(0)
    assert core.sent(first) == [], "its credit is back, and others' parts may be missing"
    assert [block.index for block in core.ready(1)] == [1]
    assert core.done(first) == [], "no credit"
    assert [block.index for block in core.sent(core.plan.tiling.blocks[1])] == [2]


def test_hides_both_halves_where_there_is_room() -> None:
    job = Job(load("vgg16"), Cluster.uniform(8, 1.25e9))
    dear, wfbp = (step_s(job, POLICIES[name]().space(job).default) for name in ("dear", "wfbp"))
    assert bound_s(job) <= dear < wfbp


@pytest.mark.parametrize(
    ("gathers", "what"),
    [
        ([-1, -1], r"^3 blocks need as many entries of gathers, got 2$"),
        ([-1, -1, 1], r"^all-gather 2 carries other segments than its reduce-scatter 1$"),
        ([-1, -1, 5], r"^every all-gather needs a reduce-scatter of its own$"),
        ([-1, 0, 0], r"^every all-gather needs a reduce-scatter of its own$"),
        ([-1, 0, 1], r"^every all-gather needs a reduce-scatter of its own$"),
        (None, r"tile every tensor exactly"),
    ],
)
def test_refuses_halves_that_do_not_match(gathers: list[int] | None, what: str) -> None:
    job = make_job(4, 4)
    with pytest.raises(InputError, match=what):
        Tiling.of(job.gradients, segments([(0, 0, 4)], [(1, 0, 4)], [(0, 0, 4)]), gathers=gathers)


def test_refuses_what_cannot_be() -> None:
    plan = make_plan(make_job(10, 20), Config(1, 1, "dear"))
    with pytest.raises(InputError, match=r"^a sequence names no all-gather before its reduce-scatter$"):
        plan.with_sequence([2, 0, 1, 3])
    servers = make_job(10, cluster=Cluster(2, 2))
    with pytest.raises(InputError, match=r"^policy 'dear' halves all-reduces: it needs --arch allreduce"):
        make_plan(servers, Config(1, 1, "dear"))


def test_the_digest_tells_halves_apart() -> None:
    job = make_job(4)
    rows = segments([(0, 0, 4)], [(0, 0, 4)])
    one, other = (Tiling.of(job.gradients, rows, gathers=gathers) for gathers in ([-1, 0], [1, -1]))
    assert one.digest != other.digest
