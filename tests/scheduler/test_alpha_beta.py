"""The linear cost model: from a cluster, and fitted."""

import numpy as np
import pytest

from autobyte.errors import InputError
from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.scheduler.alpha_beta import AlphaBeta, Timetable

SIZES = np.geomspace(1e3, 1e7, 12)


def test_of_a_ring_and_of_servers() -> None:
    ring = AlphaBeta.of(Cluster.uniform(8, 1e9, latency_s=1e-5, overhead_s=(1e-3, 1e-4)))
    assert (ring.start_s, ring.s_per_byte, ring.latency_s) == pytest.approx((1e-3 + 14e-4, 14 / 8 / 1e9, 14e-5))
    ps = AlphaBeta.of(Cluster.uniform(8, 1e9, architecture="ps", latency_s=1e-5, overhead_s=(1e-3, 1e-4)))
    assert (ps.start_s, ps.s_per_byte, ps.latency_s) == pytest.approx((1e-3 + 14e-4, 14 / 8 / 1e9, 1e-5))
    assert AlphaBeta.of(Cluster(1)) == AlphaBeta(0.0, 0.0)
    waits = AlphaBeta.of(Cluster.uniform(2, 1e9, latency_s=1.0), waits=True)
    assert waits.start_s == pytest.approx(2.0 + 560e-6)


def test_of_a_ring_of_two_levels() -> None:
    cluster = Cluster(8, up_bytes_per_s=(1e9,), down_bytes_per_s=(1e9,), gpus_per_node=4, local=(1e10, 1e-6))
    cost = AlphaBeta.of(cluster)
    assert (cost.start_s, cost.s_per_byte) == pytest.approx((500e-6 + 60e-6 + 6e-6, 1 / 1e9 + 6 / 4 / 1e10))
    assert cost.latency_s == pytest.approx(60e-6)


def test_fits_what_made_the_messages() -> None:
    rng = np.random.default_rng(0)
    noisy = (5e-4 + SIZES * 2e-9) * rng.normal(1, 0.02, len(SIZES))
    cost = AlphaBeta.fit(SIZES, noisy)
    assert (cost.start_s, cost.s_per_byte) == pytest.approx((5e-4, 2e-9), rel=0.05)
    assert AlphaBeta.fit(SIZES, SIZES * 2e-9 - 1e-12).start_s == 0.0


def test_refuses_to_fit_too_little() -> None:
    with pytest.raises(InputError, match=r"^a cost model needs 8 messages at least, got 3; measure more$"):
        AlphaBeta.fit(SIZES[:3], SIZES[:3])
    with pytest.raises(InputError, match=r"needs messages of different sizes, got 1000000 to 1000000 bytes"):
        AlphaBeta.fit([1e6] * 20, [1e-3] * 20)
    with pytest.raises(InputError, match=r"^message 2 has .* not positive$"):
        AlphaBeta.fit(SIZES, [1.0, 1.0, -1.0, *[1.0] * 9])
    with pytest.raises(InputError, match="each message needs a size and a time, got 12 sizes and 2 times"):
        AlphaBeta.fit(SIZES, [1.0, 2.0])
    with pytest.raises(InputError, match="larger messages took no more time"):
        AlphaBeta.fit(SIZES, 1 / SIZES)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_refuses_costs_that_cannot_be(bad: float) -> None:
    with pytest.raises(InputError, match="start_s must be a finite number of at least 0"):
        AlphaBeta(bad, 1e-9)


def test_a_timetable_is_the_slowest_workers() -> None:
    job = Job(load("alexnet"), Cluster(2, slowdown=(1.0, 2.0)))
    table = Timetable.of(job)
    assert table.ready_s[0] == pytest.approx(2 * job.model.backward_s.sum())
    assert table.tail_s[0] == pytest.approx(2 * job.model.forward_s.sum())
    assert (np.diff(table.ready_s) <= 0).all() and (np.diff(table.tail_s) <= 0).all()
