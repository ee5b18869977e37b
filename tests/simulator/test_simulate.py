"""The reference against closed forms, and against a brute force that shares no code with it."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.job import Cluster, Job, Model
from autobyte.scenario import Change, Scenario
from autobyte.scheduler.block import Segment, Tiling
from autobyte.scheduler.plan import CreditRule, Overlap, Plan
from autobyte.scheduler.policies import make_plan
from autobyte.simulator.effects import Effects
from autobyte.simulator.simulate import simulate

N, RATE, LATENCY, OVERHEAD = 4, 1e8, 1e-4, (1e-3, 1e-4)
RING = Cluster.uniform(N, RATE, latency_s=LATENCY, overhead_s=OVERHEAD)
PS = Cluster.uniform(N, RATE, architecture="ps", latency_s=LATENCY, overhead_s=OVERHEAD)
HOPS = 2 * (N - 1)
PIECE = 250_000  # elements, 1 MB


def ring_hold(nbytes: float) -> float:
    """How long a block keeps the ring busy (s)."""
    return OVERHEAD[0] + HOPS * OVERHEAD[1] + HOPS / N * nbytes / RATE


def half_hold(nbytes: float) -> float:
    """How long a push or a pull keeps a link busy (s)."""
    return OVERHEAD[0] / 2 + (N - 1) * OVERHEAD[1] + (N - 1) / N * nbytes / RATE


def one_layer(pieces: int, cluster: Cluster, *, credit: int | None, rule: CreditRule = CreditRule.SOFT) -> Plan:
    """A layer of 10 + 20 ms whose tensor is cut into pieces of 1 MB."""
    model = Model.build("one", [("layer", [("weight", pieces * PIECE)], 0.01, 0.02)], batch_size=1)
    job = Job(model, cluster)
    blocks = [[Segment(0, i * PIECE, (i + 1) * PIECE)] for i in range(pieces)]
    return Plan(job, Tiling.of(job.gradients, blocks), credit, rule)


def test_one_block_on_a_ring() -> None:
    step = simulate(one_layer(1, RING, credit=None)).mean_s
    assert step == pytest.approx(0.03 + ring_hold(1e6) + HOPS * LATENCY, rel=1e-12)


def test_one_block_on_a_ring_of_two_levels() -> None:
    """4 hosts of 2 workers: among hosts as a ring of 4, within them a ring of 2 at its own rate, both hops paid."""
    nodes = Cluster(2 * N, 0, (RATE,), (RATE,), (1.0,), LATENCY, OVERHEAD, gpus_per_node=2, local=(1e9, 1e-5))
    within = 2 * 1e-5 + 2 * 1 / 2 * 1e6 / 1e9
    step = simulate(one_layer(1, nodes, credit=None)).mean_s
    assert step == pytest.approx(0.03 + ring_hold(1e6) + within + HOPS * LATENCY, rel=1e-12)
    alone = Cluster(2, 0, (RATE,), (RATE,), (1.0,), LATENCY, OVERHEAD, gpus_per_node=2, local=(1e9, 1e-5))
    assert simulate(one_layer(1, alone, credit=None)).mean_s == pytest.approx(0.03 + OVERHEAD[0] + within, rel=1e-12)


def test_one_block_through_servers() -> None:
    step = simulate(one_layer(1, PS, credit=None)).mean_s
    assert step == pytest.approx(0.03 + 2 * (half_hold(1e6) + LATENCY), rel=1e-12)


def test_a_credit_of_one_block_is_stop_and_wait() -> None:
    step = simulate(one_layer(5, RING, credit=1_000_000)).mean_s
    assert step == pytest.approx(0.03 + 5 * (ring_hold(1e6) + HOPS * LATENCY), rel=1e-12)


def test_two_blocks_of_credit_hide_the_latency() -> None:
    step = simulate(one_layer(5, RING, credit=2_000_000)).mean_s
    assert step == pytest.approx(0.03 + 5 * ring_hold(1e6) + HOPS * LATENCY, rel=1e-12)


def test_all_reduces_that_share_the_wire_end_together() -> None:
    """Two at once: both blocks of a pair are there when their bytes are, instead of one after the other."""
    plan = one_layer(4, RING, credit=None)
    shared = simulate(plan, effects=Effects(sharing=4))
    assert shared.mean_s == pytest.approx(0.03 + 4 * ring_hold(1e6) + HOPS * LATENCY, rel=1e-12)
    np.testing.assert_allclose(shared.done_s, shared.done_s[0], rtol=1e-12)
    pairs = simulate(plan, effects=Effects(sharing=2)).done_s
    assert pairs[[0, 2]] == pytest.approx([0.02 + k * ring_hold(1e6) + HOPS * LATENCY for k in (2, 4)], rel=1e-12)


def test_a_small_all_reduce_takes_as_long_as_a_large_one_beside_it() -> None:
    model = Model.build("two", [("layer", [("small", PIECE // 10), ("large", PIECE)], 0.01, 0.02)], batch_size=1)
    job = Job(model, RING)
    blocks = [[Segment(0, 0, PIECE // 10)], [Segment(1, 0, PIECE)]]
    run = simulate(Plan(job, Tiling.of(job.gradients, blocks)), effects=Effects(sharing=8))
    both = ring_hold(1e5) + ring_hold(1e6)
    assert run.done_s == pytest.approx([0.02 + both + HOPS * LATENCY] * 2, rel=1e-12)


def test_sizes_may_cost_extra() -> None:
    run = simulate(one_layer(5, RING, credit=None), effects=Effects(size_overhead_s=((1e6, 2e-3), (2e6, 0.0))))
    assert run.mean_s == pytest.approx(0.03 + 5 * (ring_hold(1e6) + 2e-3) + HOPS * LATENCY, rel=1e-12)


def test_soft_credit_overshoots_and_hard_credit_does_not() -> None:
    soft = simulate(one_layer(4, RING, credit=1_500_000)).mean_s
    hard = simulate(one_layer(4, RING, credit=1_500_000, rule=CreditRule.HARD)).mean_s
    assert soft == pytest.approx(0.03 + 4 * ring_hold(1e6) + HOPS * LATENCY, rel=1e-12)
    assert hard == pytest.approx(0.03 + 4 * (ring_hold(1e6) + HOPS * LATENCY), rel=1e-12)


def test_servers_push_everything_then_pull_everything() -> None:
    """With an unlimited credit all pushes are queued before the first pull, on links that both share."""
    step = simulate(one_layer(3, PS, credit=None)).mean_s
    assert step == pytest.approx(0.03 + 6 * half_hold(1e6) + LATENCY, rel=1e-12)


def test_credit_returns_with_the_push() -> None:
    """At 1X the second push goes as soon as the first has arrived, behind the first pull on the uplink."""
    step = simulate(one_layer(2, PS, credit=1_000_000)).mean_s
    hold = half_hold(1e6)
    second_push = hold + LATENCY + hold + hold  # push 1, its way, pull 1 and push 2 on the uplink
    assert step == pytest.approx(0.03 + second_push + LATENCY + hold + LATENCY, rel=1e-12)


def test_nothing_overlaps_under_fifo() -> None:
    layers = [(f"layer {i}", [(f"weight {i}", PIECE)], 0.01, 0.02) for i in range(3)]
    plan = make_plan(Job(Model.build("three", layers, batch_size=1), RING), Config(1, 1, "fifo"))
    assert simulate(plan).mean_s == pytest.approx(0.09 + 3 * ring_hold(1e6) + HOPS * LATENCY, rel=1e-12)


def test_compute_bound() -> None:
    fast = Cluster.uniform(8, float("inf"), latency_s=0.0, overhead_s=(0.0, 0.0))
    layers = [(f"layer {i}", [(f"weight {i}", PIECE)], 0.01, 0.02) for i in range(3)]
    plan = make_plan(Job(Model.build("three", layers, batch_size=1), fast, accumulation=4), Config(4096, 4096))
    assert simulate(plan).mean_s == pytest.approx(4 * 0.09, rel=1e-12)


def test_communication_bound() -> None:
    bare = Cluster.uniform(N, RATE, latency_s=0.0, overhead_s=(0.0, 0.0))
    layers = [(f"layer {i}", [(f"weight {i}", PIECE)], 0.0, 0.0) for i in range(3)]
    plan = make_plan(Job(Model.build("three", layers, batch_size=1), bare), Config(4096, 4096))
    assert simulate(plan).mean_s == pytest.approx(HOPS / N * 3e6 / RATE, rel=1e-12)


def test_one_worker_does_not_communicate() -> None:
    for servers in (0, 1):
        alone = Cluster(1, servers, (RATE,), (RATE,), (1.0,), LATENCY, OVERHEAD)
        run = simulate(one_layer(5, alone, credit=1_000_000), iterations=2)
        assert run.step_s.tolist() == pytest.approx([0.03, 0.03], rel=1e-12)
        assert run.utilisation.tolist() == [0.0]


def test_a_tensor_without_elements_arrives_at_once() -> None:
    layers = [("a", [("none", 0)], 0.01, 0.02), ("b", [("some", 8 * PIECE)], 0.01, 0.02)]
    for cluster in (RING, PS):
        plan = make_plan(Job(Model.build("two", layers, batch_size=1), cluster), Config(1 << 20, 1 << 20))
        run = simulate(plan, iterations=2)
        assert run.wait_s[0, 0] == 0.0
        assert run.wait_s[0, 1] > 0.0


def test_a_change_stretches_what_is_in_flight() -> None:
    """The rate halves when iteration 1 begins, at the end of the backward pass: the whole block is still to go."""
    plan = one_layer(1, RING, credit=None)
    halved = Scenario("half", (Change(at=1, up="50%", down="50%"),))
    plain, changed = simulate(plan, iterations=2), simulate(plan, iterations=2, scenario=halved)
    twice = HOPS / N * 1e6 / (RATE / 2)
    assert changed.step_s[1] == pytest.approx(plain.step_s[1] + twice / 2, rel=1e-12)
    late = simulate(plan, iterations=2, scenario=Scenario("late", (Change(at=2, up="50%", down="50%"),)))
    assert late.step_s[0] == plain.step_s[0]
    assert late.step_s[1] > plain.step_s[1]


def test_the_slowest_worker_sets_the_pace() -> None:
    slow = Cluster(N, 0, (RATE,), (RATE,), (1.0, 1.0, 3.0, 1.0), LATENCY, OVERHEAD)
    step = simulate(one_layer(1, slow, credit=None), iterations=3)
    assert step.step_s == pytest.approx([3 * 0.03 + ring_hold(1e6) + HOPS * LATENCY] * 3, rel=1e-12)
    assert step.wait_s[1, 0] < step.wait_s[0, 0]  # the slow class hardly waits


def test_statistics_are_what_was_modelled() -> None:
    run = simulate(one_layer(4, RING, credit=None), iterations=3)
    assert run.stats.up_bytes_per_s == pytest.approx([HOPS / N * 1e6 / ring_hold(1e6)] * N, rel=1e-12)
    assert run.stats.backward_s == pytest.approx(np.full((N, 1), 0.02), rel=1e-12)
    assert run.samples_per_s == pytest.approx(N / run.mean_s, rel=1e-12)


def test_refuses_to_run_for_no_time() -> None:
    with pytest.raises(InputError, match="iterations must be at least 1, got 0"):
        simulate(one_layer(1, RING, credit=None), iterations=0)


def brute_force(plan: Plan, order: tuple[int, ...]) -> float:
    """The step of a ring with unlimited credit, from the definition: one pipe, blocks in this order."""
    model, cluster = plan.job.model, plan.job.cluster
    end_of_backward = {}
    now = 0.0
    for index in reversed(range(len(model.layers))):
        now += model.layers[index].backward_s
        end_of_backward[index] = now
    free, started, arrival = 0.0, 0.0, {}
    for block in order:
        layers = [int(plan.job.gradients.layer[s.tensor]) for s in plan.tiling.blocks[block].segments]
        started = max(started, *(end_of_backward[layer] for layer in layers))  # strictly one after the other
        nbytes = plan.tiling.blocks[block].nbytes
        free = max(free, started) + cluster.overhead_s[0] + HOPS * cluster.overhead_s[1] + HOPS / N * nbytes / RATE
        for layer in layers:
            arrival[layer] = max(arrival.get(layer, 0.0), free + HOPS * cluster.latency_s)
    for index, layer in enumerate(model.layers):
        now = max(now, arrival.get(index, 0.0)) + layer.forward_s
    return now


@settings(max_examples=60, deadline=None)
@given(
    layers=st.lists(
        st.tuples(st.integers(1, 600_000), st.floats(0, 0.02), st.floats(0, 0.02)), min_size=1, max_size=4
    )
)
def test_every_sequence_takes_what_brute_force_says(layers: list[tuple[int, float, float]]) -> None:
    rows = [(f"layer {i}", [(f"weight {i}", numel)], f, b) for i, (numel, f, b) in enumerate(layers)]
    job = Job(Model.build("small", rows, batch_size=1), RING)
    plan = make_plan(job, Config(1, 1, "wfbp"))
    for order in permutations(range(len(rows))):
        sequenced = Plan(job, plan.tiling, overlap=Overlap.STEP).with_sequence(order)
        assert simulate(sequenced).mean_s == pytest.approx(brute_force(sequenced, order), rel=1e-9)


def test_returns_the_order_of_a_steady_step() -> None:
    layers = [(f"layer {i}", [(f"weight {i}", 3 * PIECE)], 0.01, 0.001) for i in range(3)]
    job = Job(Model.build("three", layers, batch_size=1), RING)
    plan = make_plan(job, Config(1_000_000, 1_000_000))
    run = simulate(plan, iterations=3)
    assert sorted(run.order.tolist()) == list(range(9))
    assert run.order[0] == 6  # the last layer's first piece is alone when it is ready
    replayed = simulate(plan.with_sequence(run.order), iterations=3)
    assert replayed.step_s.tolist() == run.step_s.tolist()
    assert run.inversions == 0  # at 1X nothing less urgent goes onto the wire behind a ready block's back
    assert simulate(make_plan(job, Config(1_000_000, 16_000_000))).inversions > 0


def test_figure_2_a_window_too_large_defeats_priority() -> None:
    """ByteScheduler's trade-off (AutoByte, fig. 2): neither stop-and-wait nor a huge window is best."""
    layers = [(f"layer {i}", [(f"weight {i}", 4 * PIECE)], 0.03, 0.02) for i in range(3)]
    far = Cluster.uniform(N, RATE, latency_s=1e-3, overhead_s=OVERHEAD)
    job = Job(Model.build("three", layers, batch_size=1), far)
    steps = {x: simulate(make_plan(job, Config(1_000_000, x * 1_000_000))).mean_s for x in (1, 2, 16)}
    assert steps[2] < steps[1]
    assert steps[2] < steps[16]


@pytest.mark.parametrize(
    ("job", "config"), [("vgg16", Config(1, 1)), (one_layer(1, RING, credit=None).job, "usbyte")]
)
def test_a_name_for_a_job_or_a_config_is_refused(job: Any, config: Any) -> None:
    with pytest.raises(InputError, match=r"^say simulate\(Job\(…\), Config\(…\)\), got "):
        simulate(job, config)
