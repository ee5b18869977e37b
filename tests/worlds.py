"""Random plans and worlds, for properties that must hold in all of them."""

import math
from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from autobyte.config import Config
from autobyte.job import Cluster, Job, Model
from autobyte.scenario import Change, Scenario
from autobyte.scheduler.plan import CreditRule, Overlap, Plan
from autobyte.scheduler.policies import POLICIES, make_plan
from autobyte.simulator.effects import Effects
from autobyte.units import KIB, MIB

NUMEL = st.sampled_from([0, 1, 7, 1000, 50_000, 300_000, 1_000_000])
TIMES = st.sampled_from([0.0, 0.001, 0.002, 0.003, 0.01])
RATES = st.sampled_from([1.25e8, 5e8, 1.25e9, math.inf])
PLANNED_BY = ["bytescheduler", "bytescheduler", "p3", "dear", *POLICIES.names()]  # some more often than others
MOST_BLOCKS = 400  # the reference is slow


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Up to 6 layers of up to 3 tensors each; layers without tensors and tensors without elements among them."""
    layers = draw(st.lists(st.tuples(st.lists(NUMEL, max_size=3), TIMES, TIMES), min_size=1, max_size=6))
    rows = [
        (f"layer {i}", [(f"tensor {i}.{j}", numel) for j, numel in enumerate(tensors)], forward_s, backward_s)
        for i, (tensors, forward_s, backward_s) in enumerate(layers)
    ]
    return Model.build("random", rows, batch_size=8)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """A ring or servers; links and workers alike or not; with and without overheads."""
    workers = draw(st.sampled_from([1, 2, 3, 4, 8]))
    servers = draw(st.sampled_from([0, 0, workers, max(1, workers // 2)]))

    def per_worker(values: st.SearchStrategy[float]) -> tuple[float, ...]:
        alike = st.tuples(values)
        return draw(alike | st.tuples(*[values] * workers))

    up = per_worker(RATES)
    down = draw(st.sampled_from([up, per_worker(RATES)]))
    slowdown = per_worker(st.sampled_from([1.0, 1.0, 1.5, 2.0]))
    latency_s = draw(st.sampled_from([0.0, 30e-6, 1e-3]))
    overhead_s = draw(st.sampled_from([(0.0, 0.0), (500e-6, 30e-6)]))
    gpus = 1 if servers else draw(st.sampled_from([g for g in (1, 1, 2, 4) if workers % g == 0]))
    return Cluster(workers, servers, up, down, slowdown, latency_s, overhead_s, gpus)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A random model on a random cluster."""
    accumulation, wire_dtype = draw(st.sampled_from([1, 1, 3])), draw(st.sampled_from([None, None, "bfloat16"]))
    return Job(draw(models()), draw(clusters()), accumulation, wire_dtype, clips=draw(st.booleans()))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Every policy, with either credit rule, any overlap, and sometimes a fixed sequence."""
    job = draw(jobs())
    policy = draw(st.sampled_from(PLANNED_BY))
    assume(policy != "dear" or not job.cluster.servers)
    partition = draw(st.sampled_from([4 * KIB, 100_000, MIB, 4 * MIB]))
    knobs = {"fusion": 1.0} if policy == "bytescheduler" and draw(st.booleans()) else {}
    plan = make_plan(job, Config(partition, partition * draw(st.sampled_from([1, 2, 4, 16])), policy, knobs))
    assume(len(plan.tiling) <= MOST_BLOCKS)
    plan = replace(plan, rule=draw(st.sampled_from(CreditRule)))
    if draw(st.booleans()):
        least = [Overlap.NONE, Overlap.BACKWARD, plan.overlap]  # more may not be, where gradients are clipped
        plan = replace(plan, overlap=draw(st.sampled_from(least if job.clips else Overlap)))
    if draw(st.integers(0, 2)) == 0:
        order = draw(st.permutations(range(len(plan.tiling))))
        plan = plan.with_sequence(_scattered_first(plan, order))
    elif (policy == "dear" or plan.barrier) and draw(st.booleans()):
        plan = plan.with_sequence(None)
    return plan


def _scattered_first(plan: Plan, order: list[int]) -> list[int]:
    """The same order, every all-gather behind its reduce-scatter."""
    gathers = plan.tiling.gathers
    return order if gathers is None else sorted(order, key=lambda block: gathers[block] >= 0)


@st.composite
def scenarios(draw: st.DrawFn, workers: int) -> Scenario:
    """Up to 3 changes of rates or speed, on one worker or all, once or again and again."""
    changes = st.builds(
        Change,
        at=st.integers(0, 4),
        every=st.sampled_from([None, 2]),
        worker=st.sampled_from([None, *range(workers)]),
        up=st.sampled_from([None, "30%", 2e9]),
        down=st.sampled_from([None, "200%"]),
        slowdown=st.sampled_from([None, 3.0]),
    )
    return Scenario("random", tuple(draw(st.lists(changes, max_size=3))))


EFFECTS = st.just(Effects()) | st.builds(
    Effects,
    size_efficiency=st.sampled_from([(), ((1e4, 0.3), (1e6, 1.0), (1e7, 0.5))]),
    size_overhead_s=st.sampled_from([(), (), ((1e4, 3e-3), (1e6, 0.0))]),
    inflight_bytes=st.sampled_from([math.inf, 4e6]),
    sharing=st.sampled_from([1, 1, 2, 8]),
    incast=st.sampled_from([0.0, 0.02]),
    cross_traffic=st.sampled_from([0.0, 0.2]),
    jitter=st.sampled_from([0.0, 0.1]),
    compute_slowdown=st.sampled_from([0.0, 0.126]),
    wire_slowdown=st.sampled_from([0.0, 0.126]),
)
