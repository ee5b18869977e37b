"""No steady step lies below the bound, and the bound can be reached."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import EFFECTS, plans

from autobyte.bound import bound_s
from autobyte.config import Config
from autobyte.job import Cluster, Job, Model
from autobyte.scheduler.policies import make_plan
from autobyte.simulator.effects import Effects
from autobyte.simulator.steady import gap_closed_by, reference_s, steady_s


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(plan=plans(), effects=EFFECTS)
def test_no_steady_step_lies_below_the_bound(plan, effects: Effects) -> None:
    assert steady_s(plan, effects=effects) >= bound_s(plan.job) * (1 - 1e-9)


LAYER = st.tuples(st.integers(0, 2_000_000), st.floats(0, 0.01), st.floats(0, 0.02))


@settings(max_examples=300, deadline=None)
@given(
    layers=st.lists(LAYER, min_size=1, max_size=12).filter(lambda rows: sum(row[0] for row in rows) > 1000),
    rate=st.sampled_from([1e8, 3e8, 1e9, 3e9]),
    accumulation=st.sampled_from([1, 2]),
)
def test_free_preemption_comes_within_2_percent_of_it(layers, rate: float, accumulation: int) -> None:
    rows = [(f"layer {i}", [(f"weight {i}", numel)], f, b) for i, (numel, f, b) in enumerate(layers)]
    bare = Cluster.uniform(8, rate, latency_s=0.0, overhead_s=(0.0, 0.0))
    job = Job(Model.build("random", rows, batch_size=1), bare, accumulation)
    size = max(4, job.gradients.total_bytes // 3000)
    best = min(steady_s(make_plan(job, Config(size, size * credit))) for credit in (1, 4))
    assert best <= bound_s(job) * 1.02


def test_gap_is_null_where_there_is_nothing_to_gain() -> None:
    model = Model.build("tiny", [("layer", [("weight", 10)], 0.1, 0.2)], batch_size=1)
    fast, slow = (Job(model, Cluster.uniform(8, rate)) for rate in (1.25e9, 1e3))
    assert gap_closed_by(fast, 0.3) is None
    assert gap_closed_by(slow, reference_s(slow)) is None
    model = Model.build("large", [(f"layer {i}", [("weight", 10**6)], 0.01, 0.02) for i in range(4)], batch_size=1)
    even = Job(model, Cluster.uniform(8, 1.25e8))
    assert gap_closed_by(even, reference_s(even)) == 0
    assert gap_closed_by(even, bound_s(even)) == pytest.approx(1)
