"""Weights of speed, waiting and searching: what they score, and where they lead tuners."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
from contests import TOY, small_contest

import autobyte
from autobyte import Cluster, Config, Job, Model, Scenario, Space
from autobyte.cli import run
from autobyte.comparison.contest import Contest, hold
from autobyte.comparison.preference import Preference, Rewards
from autobyte.comparison.thrift import Thrift
from autobyte.comparison.truth import Truth
from autobyte.comparison.verdict import rewards_of
from autobyte.errors import InputError
from autobyte.models import load
from autobyte.results import Results
from autobyte.scenario import Change
from autobyte.simulator.effects import PLAIN, Effects
from autobyte.simulator.simulate import simulate
from autobyte.trace import Measurement
from autobyte.tuners.random import Random

MIB = 1 << 20
SPEED, CALM, EVEN = Preference(1, 0, 0), Preference(0, 1, 0), Preference(0.5, 0.5, 0)
JOB = Job(TOY, Cluster.uniform(4, 1.25e8))
WISH = {"throughput": 0.7, "latency": 0.2, "cost": 0.1}


def rewards(job: Job = JOB) -> Rewards:
    return Rewards(lambda iteration: job, PLAIN)


def test_one_layer_waits_for_what_is_no_compute() -> None:
    """A closed form: with one layer nothing overlaps, so a step is compute and the wait for the one block."""
    model = Model.build("one", [("a", [("a.w", 500_000)], 0.01, 0.02)], batch_size=1)
    cluster = Cluster(2, overhead_s=(0.001, 0.0), latency_s=0.0)
    wire_s = 2e6 / 1.25e9  # a ring of two moves every byte once
    throughput, latency = rewards(Job(model, cluster)).of(Config(4 * MIB, 4 * MIB), 0)
    assert throughput == pytest.approx((0.03 + wire_s) / (0.03 + wire_s + 0.001))
    assert latency == pytest.approx((0.03 + wire_s) / (0.03 + wire_s + wire_s + 0.001))


def test_the_first_quarter_of_the_layers_waits_as_the_reference_simulator_says() -> None:
    model = load("resnet50")
    job, config = Job(model, Cluster.uniform(4, 2.5e8)), Config(4 * MIB, 8 * MIB)
    reference = simulate(job, config)
    wait_s = reference.wait_s[:, : math.ceil(len(model.layers) / 4)].sum(axis=1).max()
    throughput, latency = rewards(job).of(config, 0)
    assert 0 < wait_s < reference.wait_s.sum()
    assert latency == pytest.approx(reference.bound_s / (reference.bound_s + wait_s))
    assert throughput == pytest.approx(reference.bound_s / reference.mean_s)


def test_windows_are_as_they_were_where_only_speed_is_wished() -> None:
    window = Measurement(Config(MIB, MIB), 0, (0.1, 0.12, 0.11), 1)
    assert rewards().wished(window, SPEED).step_s == pytest.approx(window.step_s)
    calm = rewards().wished(window, CALM)
    least_s, latency = rewards().bound_s(0), rewards().of(window.config, 0)[1]
    assert calm.step_s == pytest.approx([least_s / latency] * 3)  # however fast the steps were
    half = rewards().wished(window, EVEN)
    assert half.step_s[1] == pytest.approx(least_s / (0.5 * least_s / 0.12 + 0.5 * latency))
    assert (half.config, half.iteration, half.warmup) == (window.config, 0, 1)


@pytest.mark.parametrize("wish", [SPEED, CALM, EVEN])
def test_the_best_is_that_of_a_brute_force(wish: Preference) -> None:
    grid, known = Space().grid(), rewards()
    worth = {config: wish.worth(*known.of(config, 0)) for config in grid}
    assert worth[rewards().best(grid, wish)] == max(worth.values())


def test_a_tuner_is_led_to_what_is_wished(tmp_path: Path) -> None:
    """Of the same trials the one that waits least is left in force, or the fastest: they differ here."""
    left = {}
    for name, wish in (("speed", None), ("calm", CALM)):
        contest = Contest(JOB, ("random",), 12, 1, Space(), objective=wish)
        with Results.open(tmp_path / f"{name}.sqlite", run=contest.to_json()) as results:
            (held,) = hold(contest, results, progress=lambda *_: None)
        tried = [decision.measurement.config for decision in held.decisions]
        left[name] = held.decisions[-1].config
        measured = {d.measurement.config: d.measurement.mean_s for d in held.decisions}
        known = {config: contest.rewards.of(config, 0) for config in tried}
        if wish is None:
            assert measured[left[name]] == pytest.approx(min(measured.values()))
        else:
            assert known[left[name]][1] == pytest.approx(max(latency for _, latency in known.values()))
            assert all(  # what is kept and judged is what was measured, not what was told
                measured[config] == pytest.approx(contest.rewards.bound_s(0) / known[config][0], rel=0.2)
                for config in tried
            )
    assert left["speed"] != left["calm"]


def test_cost_is_what_trials_took_beyond_the_config_that_was_left(tmp_path: Path) -> None:
    contest = small_contest(tuners=("default", "grid"))
    with Results.open(tmp_path / "r.sqlite", run=contest.to_json()) as results:
        runs = hold(contest, results, progress=lambda *_: None)
    truth = Truth(contest, [d.measurement.config for one in runs for d in one.decisions])
    for one in runs:
        cost = rewards_of(contest, one, truth)[2]
        ran, left = [d.measurement.config for d in one.decisions], one.decisions[-1].config
        took_s = sum(10 * truth.step_s(config, 0) for config in ran)
        took_s += contest.switch_s * sum(a != b for a, b in pairwise(ran))
        assert cost == pytest.approx(min(1, 30 * truth.step_s(left, 0) / took_s))
        assert cost == 1 if one.tuner == "default" else cost < 1


def searched(*, cost: float, steps: list[float]) -> int:
    """Windows until a search ends whose trials take these steps; as many as there are if it does not end."""
    space = Space()
    tuner = Thrift(Random(space, model=TOY, budget=30), cost=cost, budget=30)
    config: Config | None = space.default
    for number, seconds in enumerate(steps):
        assert config is not None
        tuner.tell(Measurement(config, 10 * number, (seconds,) * 10, 2))
        config = tuner.ask()
        if config is None:
            return number + 1
    return len(steps)


def test_a_search_ends_when_a_trial_costs_more_than_it_promises() -> None:
    """Worked out by hand: after three trials of 1, 1.1 and 1.5 s one more promises (1 - 1/1.1) / 3, and costs 0.0141.

    The weights are equal at a weight of cost of 0.0303 / (0.0303 + 0.0141) = 0.682.
    """
    steps = [1.1, 1.0, 1.5]
    price, gain = (1 - 1 / 1.1 + 1 - 1 / 1.5) / 3 / 30, (1 - 1 / 1.1) / 3
    edge = gain / (gain + price)
    assert searched(cost=edge - 0.01, steps=[*steps, 1.2]) == 4
    assert searched(cost=edge + 0.01, steps=[*steps, 1.2]) == 3
    assert searched(cost=0.0, steps=steps * 4) == 12
    assert searched(cost=1.0, steps=steps) == 3


def test_a_search_goes_on_when_the_job_changes() -> None:
    tuner = Thrift(Random(Space(), model=TOY, budget=30), cost=1.0, budget=30)
    for number, seconds in enumerate((1.1, 1.0, 1.5)):
        tuner.tell(Measurement(Config(MIB << number, MIB << number), 10 * number, (seconds,) * 10, 2))
    assert tuner.ask() is None
    tuner.tell(Measurement(Config(MIB << 1, MIB << 1), 30, (2.0,) * 10, 2))
    assert tuner.ask() is not None


def test_scores_are_weighted_sums_and_reach_the_data_frame() -> None:
    found = autobyte.compare(JOB, ["default", "random"], budget=3, seeds=1, objective=WISH)
    frame = found.to_frame()
    names = [f"reward_{name}" for name in WISH]
    assert frame["score"].tolist() == pytest.approx((frame[names] * list(WISH.values())).sum(axis=1).tolist())
    assert (frame[names] > 0).all(axis=None)
    assert (frame[names] <= 1).all(axis=None)
    assert frame.loc["default", "reward_cost"] == 1
    best = found.outcome["objective_best"]
    assert best["score"] >= frame["score"].max()
    assert found.outcome["objective"] == WISH
    assert "score" not in autobyte.compare(JOB, ["default"], budget=1, seeds=1).rows[0]


def test_the_command_prints_scores_and_goes_on_with_the_same_weights_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = str(Path(__file__).parents[1] / "data" / "small_vgg.json")
    words = ["compare", "--model", profile, "--bandwidth", "300Mbit", "--budget", "2", "--seeds", "1"]
    words += ["--tuners", "default,random", "--out", str(tmp_path / "out")]
    assert run([*words, "--objective", "cost=0.1,latency=0.2,throughput=0.7"]) == 0
    printed = capsys.readouterr().out
    assert "scores by throughput 0.7, latency 0.2, cost 0.1" in printed
    kept = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert f"{kept['tuners'][1]['score']:.3f}" in printed
    assert run(["report", str(tmp_path / "out")]) == 0
    assert run([*words, "--objective", "0.6,0.3,0.1"]) == 2
    assert "holds another run" in capsys.readouterr().err


def test_a_world_that_changes_is_scored_over_the_whole_run(tmp_path: Path) -> None:
    changes = Scenario("slower", (Change(10, up="20%", down="20%"),))
    contest = small_contest(tuners=("default",), scenario=changes)
    with Results.open(tmp_path / "r.sqlite", run=contest.to_json()) as results:
        held = hold(contest, results, progress=lambda *_: None)[0]
    throughput, latency, cost = rewards_of(contest, held, Truth(contest, [Space().default]))
    first, late = (contest.rewards.of(Space().default, iteration) for iteration in (0, 10))
    assert first != late
    assert throughput == pytest.approx((10 * first[0] + 20 * late[0]) / 30)
    assert latency == pytest.approx((10 * first[1] + 20 * late[1]) / 30)
    assert cost == 1


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ("throughput=0.7,latency=0.2,cost=0.2", "weights must sum to 1, got ⟨0.7, 0.2, 0.2⟩ with sum 1.1; write"),
        ("throughput=1.2,latency=-0.1,cost=-0.1", "weight of latency must be a number from 0 to 1, got -0.1"),
        ("throughput=nan,latency=0.5,cost=0.5", "weight of throughput must be a number from 0 to 1, got nan"),
        ("throughput=0.7,latency=0.3", "cannot read objective 'throughput=0.7,latency=0.3'; write it like"),
        ("fast", "cannot read objective 'fast'; write it like throughput=0.7,latency=0.2,cost=0.1"),
        ({"throughput": "a", "latency": 0, "cost": 0}, "weight of throughput must be a number from 0 to 1, got a"),
        ({"throughput": 1}, "cannot read objective '{'throughput': 1}'; write it like throughput=0.7,latency=0.2"),
    ],
)  # fmt: skip
def test_bad_weights_are_one_clear_line(wish: object, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        autobyte.compare(JOB, ["default"], objective=wish)  # type: ignore[arg-type]


def test_policies_have_no_objective(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"leave objective= out$"):
        autobyte.compare(JOB, policies=["ddp"], objective=WISH)
    assert run(["compare", "--model", "vgg16", "--policies", "ddp", "--objective", "1,0,0"]) == 2
    assert "leave --objective out" in capsys.readouterr().err


def test_noise_reaches_what_a_tuner_is_told() -> None:
    world = small_contest().world()
    noisy = Contest(JOB, ("random",), 1, 1, Space(), effects=Effects(jitter=0.1), objective=EVEN)
    window = noisy.world(1).measure(Space().default, iterations=10, warmup=2)
    told = noisy.rewards.wished(window, EVEN)
    assert len(set(told.step_s)) == 10
    still = world.measure(Space().default, iterations=10, warmup=2)
    assert len({round(step_s, 12) for step_s in noisy.rewards.wished(still, EVEN).step_s}) == 1
