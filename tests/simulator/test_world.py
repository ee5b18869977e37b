"""Windows in a world that changes."""

import numpy as np
import pytest

from autobyte.config import Config
from autobyte.job import Cluster, Job, Model
from autobyte.scenario import Change, Scenario
from autobyte.simulator.effects import Effects
from autobyte.simulator.steady import step_s
from autobyte.simulator.world import World

LAYERS = [(f"layer {i}", [(f"weight {i}", 500_000)], 0.002, 0.004) for i in range(6)]
JOB = Job(Model.build("six", LAYERS, batch_size=32), Cluster.uniform(4, 1.25e8))
A, B = Config(1 << 20, 4 << 20), Config(4 << 20, 4 << 20)


def test_windows_follow_each_other_and_switches_cost() -> None:
    world = World(JOB, switch_s=0.5)
    first, second, third = (world.measure(c, iterations=10, warmup=2) for c in (A, A, B))
    assert [m.iteration for m in (first, second, third)] == [0, 10, 20]
    assert first.step_s == second.step_s
    assert third.step_s[0] == pytest.approx(third.step_s[1] + 0.5)
    assert third.mean_s == pytest.approx(step_s(JOB, B))


def test_what_all_plans_share_in_a_window_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, draw = list[int](), Effects.compute_factors
    monkeypatch.setattr(Effects, "compute_factors", lambda self, **of: drawn.append(of["first"]) or draw(self, **of))
    worlds = {config: World(JOB, effects=Effects(jitter=0.1), seed=17) for config in (A, B)}
    for _ in range(2):
        for config, world in worlds.items():
            world.measure(config, iterations=10)
    assert drawn == [0, 10]


def test_a_slower_link_shows_at_its_iteration() -> None:
    world = World(JOB, scenario=Scenario("slow", (Change(at=5, up="25%", down="25%"),)))
    steps = world.measure(A, iterations=10).step_s
    assert max(steps[:4]) < steps[4] < steps[5]  # the change falls into the step that ends with forward 5
    assert steps[6] == pytest.approx(steps[9])
    assert world.job_at(4).cluster.up_bytes_per_s[0] == 1.25e8
    assert world.job_at(5).cluster.up_bytes_per_s[0] == 1.25e8 / 4


def test_workers_may_join_within_a_window() -> None:
    grown = Scenario("grown", (Change(at=4, workers=8),))
    world = World(JOB, scenario=grown)
    window = world.measure(A, iterations=10)
    assert len(window.step_s) == 10
    assert window.step_s[9] == pytest.approx(step_s(world.job_at(9), A))
    assert window.stats is not None
    assert window.stats.backward_s.shape == (8, 6)


def test_noise_depends_on_seed_and_iteration_alone() -> None:
    def steps(seed: int, first: int) -> np.ndarray:
        world = World(JOB, effects=Effects(jitter=0.1), seed=seed)
        world.skip(A, iterations=first)
        return np.array(world.measure(A, iterations=5).step_s)

    assert steps(1, 10).tolist() == steps(1, 10).tolist()
    assert steps(1, 10).tolist() != steps(2, 10).tolist()
    assert steps(1, 10).tolist() != steps(1, 20).tolist()


def test_jitter_has_the_asked_for_variation() -> None:
    factors = Effects(jitter=0.1).compute_factors(seed=0, first=0, iterations=200, workers=50)
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert factors.std() == pytest.approx(0.1, abs=0.005)
