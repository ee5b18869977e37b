"""What tied configs lose after a change, beside a brute force over the grid."""

from dataclasses import replace

import pytest
from contests import TOY

from autobyte.comparison.carried import TIES, carry, largest, ratio, say
from autobyte.comparison.contest import Contest
from autobyte.comparison.truth import SteadyTruth, Truth
from autobyte.config import Config, Space
from autobyte.job import Cluster, Job
from autobyte.scenario import STEADY, Change, Scenario
from autobyte.simulator.effects import PLAIN
from autobyte.simulator.landscape import contenders
from autobyte.simulator.steady import step_s

SPACE = Space((1 << 16, 1 << 22), (1.0, 4.0), Config(1 << 20, 1 << 22))
FAST, SLOW = (Job(TOY, Cluster.uniform(4, rate)) for rate in (1.25e9, 1.25e8))


def contest(*changes: Change) -> Contest:
    return Contest(FAST, ("default",), 6, 1, SPACE, Scenario("some", changes) if changes else STEADY)


def test_the_loss_is_that_of_all_that_are_tied() -> None:
    before, after = ({config: step_s(job, config) for config in SPACE.grid()} for job in (FAST, SLOW))
    carried = carry(*(SteadyTruth(job, SPACE.grid(), PLAIN) for job in (FAST, SLOW)))
    tied = {config for config, took in before.items() if took <= (1 + TIES) * min(before.values())}
    assert set(carried.configs) == tied
    assert carried.configs[0] == min(before, key=lambda config: before[config])
    lost = [1 - min(after.values()) / after[config] for config in carried.configs]
    assert carried.loss.tolist() == pytest.approx(lost)
    assert carried.mean == pytest.approx(sum(lost) / len(lost))


def test_ties_that_the_search_for_the_fastest_leaves_out_count() -> None:
    """Small blocks cost more than the fastest step can hide, but less than TIES; whichever state is asked first."""
    cluster = Cluster.uniform(4, 1.25e7, overhead_s=(2.5e-4, 0.0))
    before = Job(TOY.scaled(time=0.1), cluster)
    after = replace(before, cluster=replace(cluster, up_bytes_per_s=(1.25e9,), down_bytes_per_s=(1.25e9,)))
    took = {config: step_s(before, config) for config in SPACE.grid()}
    tied = {config for config in took if took[config] <= (1 + TIES) * min(took.values())}
    assert len(contenders(before, SPACE.grid()).configs) < len(tied)
    one, other = ([SteadyTruth(job, SPACE.grid(), PLAIN) for job in (before, after)] for _ in range(2))
    back_first = carry(other[1], other[0]), carry(*other)
    for there, back in ((carry(*one), carry(one[1], one[0])), back_first[::-1]):
        assert set(there.configs) == tied
        assert back.loss.tolist() == pytest.approx([max(0, 1 - min(took.values()) / took[c]) for c in back.configs])


def test_the_ratio_is_bytes_by_compute() -> None:
    seconds = 2 * 3 / 4 * FAST.gradients.total_bytes / 1.25e9  # a ring of four
    assert ratio(FAST) == pytest.approx(seconds / TOY.compute_s)
    slowed = replace(FAST, accumulation=2, cluster=replace(FAST.cluster, slowdown=(1.0, 1.0, 3.0, 1.0)))
    assert ratio(slowed) == pytest.approx(ratio(FAST) / 6)
    assert ratio(replace(FAST, model=TOY.scaled(time=0.0))) == float("inf")


def test_the_change_that_costs_most_is_told() -> None:
    slower = Change(at=20, every=40, up="10%", down="10%"), Change(at=40, every=40, up="100%", down="100%")
    found = largest(contest(*slower), Truth(contest(*slower), []))
    states = [SteadyTruth(job, SPACE.grid(), PLAIN) for job in (FAST, SLOW)]
    there, back = carry(*states), carry(*reversed(states))
    assert found is not None
    assert found["loss"] == pytest.approx(max(there.mean, back.mean))
    assert found["iteration"] == (20 if there.mean >= back.mean else 40)
    assert (found["ratio_before"] < found["ratio_after"]) == (found["iteration"] == 20)
    assert largest(contest(), Truth(contest(), [])) is None


def test_a_line_says_whether_it_matters() -> None:
    place = {"iteration": 20, "ratio_before": 0.681, "ratio_after": 2.27, "configs": 31}
    line = "iteration 20: communication / compute 0.68 → 2.3; tied configs (31) then lose"
    assert say(place | {"loss": 0.121}) == f"{line} 12.1 % on average: it matters which of them a search keeps"
    assert say(place | {"loss": 0.004}) == f"{line} 0.4 % on average: it matters little which of them a search keeps"
