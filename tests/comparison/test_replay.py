"""A recorded grid as a world: what was recorded is what comes back, at the nearest config."""

import pytest
from contests import TOY

from autobyte.comparison.replay import GridReplay, Recorded, nearest, space_of
from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.job import Cluster, Job
from autobyte.simulator.calibrate import EngineCosts
from autobyte.tuners.grid import Grid
from autobyte.tuning import tune

JOB = Job(TOY, Cluster.uniform(4, 1.25e8))
COSTS = EngineCosts(rate_share=0.9, latency_s=1e-4, overhead_s=5e-4, step_s=1e-3)
RECORDING = {
    Config(size << 10, (size << 10) * ratio): Recorded(step_s, 0.9 * step_s, 1.3 * step_s)
    for (size, ratio), step_s in {(128, 1): 0.4, (128, 4): 0.3, (1024, 1): 0.2, (1024, 4): 0.25}.items()
}
DEFAULT = Config(4_000_000, 16_000_000)


def replay(seed: int = 0) -> GridReplay:
    return GridReplay(JOB, RECORDING, costs=COSTS, seed=seed)


def test_an_ask_snaps_to_the_nearest_recorded_point() -> None:
    for asked, (size, ratio) in {
        (4_000_000, 16_000_000): (1024, 4),
        (200_000, 210_000): (128, 1),
        (400_000, 500_000): (1024, 1),
        (4_096, 40_960): (128, 4),
    }.items():
        assert nearest(Config(*asked), RECORDING) == Config(size << 10, (size << 10) * ratio)


def test_knobs_of_the_policys_own_are_matched_where_they_were_recorded() -> None:
    fused = Config(128 << 10, 128 << 10, knobs={"fusion": 1.0})
    both = RECORDING | {fused: Recorded(0.1, 0.1, 0.1)}
    assert nearest(Config(1 << 20, 1 << 20, knobs={"fusion": 1.0}), both) == fused
    assert nearest(Config(1 << 20, 1 << 20), both) == Config(1 << 20, 1 << 20)


def test_steps_are_drawn_from_what_was_recorded_and_a_switch_costs() -> None:
    world = replay()
    steps = world.measure(Config(1 << 20, 1 << 20), iterations=2000).step_s
    assert 0.18 <= min(steps) < 0.19
    assert 0.25 < max(steps) <= 0.26
    assert sorted(steps)[1000] == pytest.approx(0.2, rel=0.02)
    after = world.measure(DEFAULT, iterations=10, warmup=2)
    assert (after.config, after.iteration, after.warmup) == (DEFAULT, 2000, 2)
    assert after.step_s[0] >= 0.225 + 0.01
    assert replay(1).measure(DEFAULT, iterations=5).step_s != replay(2).measure(DEFAULT, iterations=5).step_s


def test_statistics_are_those_of_the_calibrated_simulator() -> None:
    stats = replay().measure(Config(1 << 20, 1 << 20), iterations=10).stats
    assert stats is not None
    assert stats.forward_s.shape == (4, len(TOY.layers))
    slower = 0.9 * 1.25e8  # of which blocks take some, too
    assert (stats.up_bytes_per_s < slower).all()
    assert (stats.up_bytes_per_s > 0.5 * slower).all()


def test_a_search_finds_the_best_of_the_recording() -> None:
    space = space_of(RECORDING, DEFAULT)
    assert (space.partition_bytes, space.credit_ratio) == ((128 << 10, 1024 << 10), (1.0, 4.0))
    decisions = tune(Grid(space, model=TOY), replay(), space, budget=40)
    assert nearest(decisions[-1].config, RECORDING) == Config(1 << 20, 1 << 20)


def test_nothing_recorded_is_refused() -> None:
    with pytest.raises(InputError, match="at least one config"):
        GridReplay(JOB, {}, costs=COSTS)
