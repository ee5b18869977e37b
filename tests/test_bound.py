"""The bound against closed forms and against its own definition, written out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import BARE, jobs, make_job, make_model

from autobyte.bound import bound_s, gap_closed, wire_s
from autobyte.config import Config
from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.simulator.simulate import simulate
from autobyte.units import KIB

FOUR = Cluster(4, up_bytes_per_s=(1.5,), down_bytes_per_s=(1.5,))  # 1 s per byte: 1.5 bytes cross it at 1.5 bytes/s
SERVED = replace(FOUR, servers=4)


@pytest.mark.parametrize("cluster", [FOUR, SERVED])
def test_wire_time_is_bytes_over_the_slowest_link(cluster: Cluster) -> None:
    job = make_job(2, (3, 0), cluster=cluster)
    assert wire_s(job) == 20
    assert wire_s(job, 7) == 7
    assert wire_s(replace(job, wire_dtype="float16")) == 10
    slow = replace(cluster, down_bytes_per_s=(1.5, 1.5, 0.75, 1.5))
    assert wire_s(replace(job, cluster=slow)) == 40


@pytest.mark.parametrize("cluster", [FOUR, SERVED])
def test_one_layer_cannot_overlap_with_itself(cluster: Cluster) -> None:
    assert bound_s(make_job(5, cluster=cluster)) == 1 + 2 + 20


@pytest.mark.parametrize("cluster", [FOUR, SERVED])
def test_little_to_send_is_bound_by_compute_and_the_last_gradient(cluster: Cluster) -> None:
    assert bound_s(make_job([], [], [], cluster=cluster)) == 9
    assert bound_s(make_job(1, [], [], cluster=cluster)) == 9 + 4  # the first layer's gradient comes last of all
    assert bound_s(make_job([], [], 1, cluster=cluster)) == 9  # beside layers 1 and 0, and back


@pytest.mark.parametrize("cluster", [FOUR, SERVED])
def test_much_to_send_is_bound_by_the_wire(cluster: Cluster) -> None:
    assert (
        bound_s(make_job([], [], 100, cluster=cluster)) == 3 + 400
    )  # only the last layer's own compute is left over
    idle = Job(make_model(100, 100, forward_s=0.0, backward_s=0.0), cluster)
    assert bound_s(idle) == 800


@pytest.mark.parametrize("cluster", [FOUR, SERVED])
def test_accumulation_adds_passes_that_send_nothing(cluster: Cluster) -> None:
    job = make_job(1, 100, cluster=cluster)
    assert bound_s(job) == 3 + 404
    assert bound_s(replace(job, accumulation=3)) == 2 * 6 + 3 + 404


def test_the_slowest_worker_counts() -> None:
    slow = make_job(1, [], cluster=replace(FOUR, slowdown=(1.0, 1.0, 10.0, 1.0)))
    assert bound_s(slow) == 10 * 6 + 4  # a ring moves nothing before the slowest has it
    served = replace(slow, cluster=replace(slow.cluster, servers=4))
    assert bound_s(served) == 10 * 6 + 2  # 3 of its 4 bytes leave it at 1.5 bytes/s; the others' have gone before


def test_one_worker_sends_nothing() -> None:
    for servers in (0, 1):
        assert bound_s(make_job(1000, 1000, cluster=Cluster(1, servers))) == 6


def written_out(job: Job) -> float:
    """The definition, for workers that are alike."""
    compute = [(layer.forward_s + layer.backward_s) * job.cluster.slowdown[0] for layer in job.model.layers]
    nbytes = [sum(job.gradients.nbytes[job.gradients.layer == m]) for m in range(len(compute))]
    every = sum(compute)
    exposed = [
        sum(compute[m:]) + (job.accumulation - 1) * every + wire_s(job, sum(nbytes[: m + 1]))
        for m in range(len(compute))
    ]
    return max(job.accumulation * every, wire_s(job, sum(nbytes)), *exposed)


@given(jobs(most=10**6), st.booleans(), st.floats(1e5, 1e10))
def test_it_is_the_largest_of_its_terms(job: Job, served: bool, rate: float) -> None:
    alike = Cluster.uniform(job.cluster.workers, rate, architecture="ps" if served else "allreduce", slowdown=1.5)
    job = replace(job, cluster=alike)
    assert bound_s(job) == pytest.approx(written_out(job))


@given(jobs(most=10**6), st.floats(1, 10), st.data())
def test_more_to_do_never_takes_less_time(job: Job, factor: float, data: st.DataObject) -> None:
    cluster, worker = job.cluster, data.draw(st.integers(0, job.cluster.workers - 1))

    def changed(name: str, by: float) -> Cluster:
        values = getattr(cluster, name)
        return replace(cluster, **{name: tuple(v * by if i == worker else v for i, v in enumerate(values))})

    harder = {
        "size": replace(job, model=job.model.scaled(size=factor)),
        "time": replace(job, model=job.model.scaled(time=factor)),
        "accumulation": replace(job, accumulation=job.accumulation + 1),
        "slowdown": replace(job, cluster=changed("slowdown", factor)),
        "up": replace(job, cluster=changed("up_bytes_per_s", 1 / factor)),
        "down": replace(job, cluster=changed("down_bytes_per_s", 1 / factor)),
    }
    least = bound_s(job) * (1 - 1e-12)
    assert [what for what, other in harder.items() if bound_s(other) < least] == []


def test_clipping_lets_half_of_the_bytes_cross_the_step() -> None:
    fast = replace(FOUR, up_bytes_per_s=(150.0,), down_bytes_per_s=(150.0,))  # 0.01 s per byte
    job = Job(make_model([], 100, forward_s=3.0, backward_s=1.0), fast)  # the last layer is on the wire for 4 s
    assert bound_s(job) == 3 + 1 + 4, "all bytes may travel beside the first layer, back and forth"
    clipped = replace(job, clips=True)
    assert bound_s(clipped) == 1 + 2 + 6, "half of them before the norm, and then the whole forward pass"
    served = replace(clipped, cluster=replace(fast, servers=4))
    assert bound_s(served) == 1 + 2 + 6, "pushes before the norm, pulls behind it"
    slow = replace(served.cluster, down_bytes_per_s=(150.0, 150.0, 50.0, 150.0))
    assert bound_s(replace(served, cluster=slow)) == 1 + 6 + 6, "a server takes in 3/4 of all bytes at 50 a second"
    assert bound_s(replace(clipped, accumulation=2)) == 4 * 2 + 1 + 2 + 6
    front = Job(make_model(100, [], forward_s=3.0, backward_s=1.0), fast, clips=True)
    assert bound_s(front) == bound_s(replace(front, clips=False)) == 8 + 4, "the first layer's follow on everything"


def test_overheads_and_latency_are_not_in_it() -> None:
    job = make_job(5, 7)
    assert bound_s(replace(job, cluster=replace(BARE, latency_s=1.0, overhead_s=(1.0, 1.0)))) == bound_s(job)


def test_the_gap_closed_runs_from_the_reference_to_the_bound() -> None:
    assert gap_closed(2.0, 2.0, 1.0) == 0
    assert gap_closed(1.0, 2.0, 1.0) == 1
    assert gap_closed(1.25, 2.0, 1.0) == 0.75
    assert gap_closed(2.5, 2.0, 1.0) == -0.5


def test_there_is_no_gap_within_5_percent() -> None:
    assert gap_closed(1.0, 1.049, 1.0) is None
    assert gap_closed(1.0, 1.051, 1.0) == 1
    assert gap_closed(0.0, 0.0, 0.0) is None


@pytest.mark.parametrize("servers", [0, 4])
@pytest.mark.parametrize("model", ["vgg16", "gpt2", "resnet50", "densenet121"])
def test_where_gradients_are_clipped_a_schedule_of_free_blocks_comes_close_to_it(model: str, servers: int) -> None:
    rate = (1e8,)
    free = Cluster(4, servers, up_bytes_per_s=rate, down_bytes_per_s=rate, latency_s=0.0, overhead_s=(0.0, 0.0))
    small = load(model).scaled(size=0.02)
    alike = small.scaled(time=wire_s(Job(small, free)) / 1.1 / small.compute_s)
    job = Job(alike, free, clips=True)
    step_s = min(
        simulate(job, Config(size, size, knobs={"fusion": fusion})).step_s[-1]
        for size in (32 * KIB, 128 * KIB)
        for fusion in (0, 1)
    )
    assert bound_s(job) <= step_s * (1 + 1e-9)
    assert step_s <= 1.04 * bound_s(job)
