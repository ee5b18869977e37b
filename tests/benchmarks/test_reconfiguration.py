"""What it costs to reconfigure a job that trains, and to find out what to: `pytest --benchmark -s`.

Times come from pytest-benchmark, and so do its JSON and its comparison; each test prints the ratio that it asks for.
"""

import statistics
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ranks import free_port, on_ranks

from autobyte.comparison.judge import TOLERANCE, judge
from autobyte.config import Config, Space
from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.simulator.effects import Effects
from autobyte.simulator.landscape import survey
from autobyte.simulator.steady import step_s
from autobyte.simulator.world import World
from autobyte.tuners import TUNERS
from autobyte.tuning import WARMUP, WINDOW, make_tuner, tune

HERE = Path(__file__).parent
SEARCHING = [name for name in TUNERS.names() if name not in ("default", "p3")]
LEARNING = [name for name in SEARCHING if name.startswith("metanet")]
VGG16 = Job(load("vgg16"), Cluster.uniform(8, 1.25e9))
JITTER = Effects(jitter=0.087)
CONFIGS = [Config(size << 20, size << 22, knobs={"fusion": 1.0}) for size in (1, 4)]
SETTLE = 15  # steps until a plan on measured times is in force
AFTER = 3  # steps after a switch in which its cost may show
DECIDING_S = 15e-3 / 5  # of CPU a step: 15 ms a decision, and one in five steps at most


class Clock:
    """A timer for pytest-benchmark that stands still, but for what other processes have measured."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


CLOCK = Clock()
replayed = pytest.mark.benchmark(timer=CLOCK)


def replay(benchmark: Any, seconds: list[float]) -> None:
    """Hand pytest-benchmark times that were measured elsewhere."""
    left = iter(seconds)

    def advance() -> None:
        CLOCK.now_s += next(left)

    benchmark.pedantic(advance, rounds=len(seconds), iterations=1, warmup_rounds=0)


def ranks_module() -> Any:
    """`two_ranks.py`, which is no test and on no path."""
    sys.path.insert(0, str(HERE))
    try:
        import two_ranks  # noqa: PLC0415
    finally:
        sys.path.pop(0)
    return two_ranks


def switch_often(rank: int, switches: int) -> tuple[list[float], list[float]]:
    """Steps without a switch, and `AFTER` steps with one before them, reconfiguring included (s)."""
    training = ranks_module().Ranks(CONFIGS[0])
    training.train(SETTLE)
    usual, switched = [], []
    for k in range(switches):
        began = time.time()
        training.optimizer.reconfigure(CONFIGS[(k + 1) % 2])
        switched.append(training.train(AFTER)[-1] - began)
        usual += [after - before for before, after in pairwise(training.train(WINDOW))]
    training.optimizer.close()
    return usual, switched


@replayed
def test_a_hot_switch_costs_less_than_a_step(benchmark: Any) -> None:
    usual, switched = on_ranks(switch_often, 2, 8, timeout_s=200)[0]
    step = statistics.median(usual)
    cost = statistics.median(switched) - AFTER * step
    replay(benchmark, switched)
    benchmark.extra_info |= {"step_s": step, "cost_s": cost}
    print(f"\nhot switch: {1e3 * cost:.1f} ms, {cost / step:.2f} of a step of {1e3 * step:.0f} ms (at most 1)")
    assert cost < step


def launch(folder: Path, config: Config, steps: int) -> list[float]:
    """Train on two fresh processes; when rank 0's steps ended (s since the epoch)."""
    port, size, credit = str(free_port()), str(config.partition_bytes), str(config.credit_bytes)
    commands = [
        [sys.executable, HERE / "two_ranks.py", folder, str(rank), port, size, credit, str(steps)] for rank in (0, 1)
    ]
    processes = [subprocess.Popen(command) for command in commands]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    return [float(line) for line in (folder / "ends").read_text().split()]


@replayed
def test_a_hot_switch_is_a_tenth_of_checkpoint_and_restart(benchmark: Any, tmp_path: Path) -> None:
    usual, switched = on_ranks(switch_often, 2, 4, timeout_s=200)[0]
    hot = max(0.0, statistics.median(switched) - AFTER * statistics.median(usual))
    restarts = []
    before = launch(tmp_path, CONFIGS[0], SETTLE)
    for k in range(3):
        after = launch(tmp_path, CONFIGS[(k + 1) % 2], SETTLE)
        step = statistics.median(b - a for a, b in pairwise(after))
        restarts.append(after[AFTER - 1] - before[-1] - AFTER * step)
        before = after
    replay(benchmark, restarts)
    benchmark.extra_info |= {"hot_switch_s": hot}
    cold = statistics.median(restarts)
    print(
        f"\ncheckpoint and restart: {cold:.2f} s, as the paper switches; hot switch {hot:.3f} s ({hot / cold:.3f}x)"
    )
    assert hot < cold / 10


def after_ten_windows(name: str) -> tuple[Any, Any]:
    """A tuner that has been told of ten windows, and the eleventh."""
    world, space = World(VGG16, effects=JITTER), Space()
    tuner, config = make_tuner(name, space, job=VGG16, budget=30), space.default
    for _ in range(10):
        tuner.tell(world.measure(config, iterations=WINDOW, warmup=WARMUP))
        config = tuner.ask() or space.default
    return tuner, world.measure(config, iterations=WINDOW, warmup=WARMUP)


def compare_with_a_window(benchmark: Any, what: str) -> None:
    """Print a benchmark's median, which is less than a window of training takes."""
    window = WINDOW * step_s(VGG16, Space().default)
    taken = benchmark.stats.stats.median
    print(f"\n{what}: {1e3 * taken:.2f} ms, {taken / window:.4f} of a window of {window:.1f} s (at most 1)")
    assert taken < window


@pytest.mark.parametrize("name", SEARCHING)
def test_one_decision_takes_less_than_a_window(benchmark: Any, name: str) -> None:
    def decide(tuner: Any, measurement: Any) -> None:
        tuner.tell(measurement)
        tuner.ask()

    benchmark.pedantic(decide, setup=lambda: (after_ten_windows(name), {}), rounds=5)
    compare_with_a_window(benchmark, f"one decision of {name}")


@pytest.mark.parametrize("name", LEARNING)
def test_one_adaptation_takes_less_than_a_window(benchmark: Any, name: str) -> None:
    """A lesson from the job's own windows and remembered ones; it is learned beside training."""

    def learn(tuner: Any) -> None:
        tuner.work() if name == "metanet" else tuner._net.learn()

    def taught() -> tuple[tuple[Any], dict[str, Any]]:
        tuner, measurement = after_ten_windows(name)
        tuner.tell(measurement)
        tuner.ask()
        tuner._wrong = True
        return (tuner,), {}

    benchmark.pedantic(learn, setup=taught, rounds=5)
    compare_with_a_window(benchmark, f"one lesson of {name}")


@replayed
@pytest.mark.parametrize("name", SEARCHING)
def test_a_search_ends_no_worse_than_it_began(benchmark: Any, name: str) -> None:
    space, cpu, best = Space(), [], survey(VGG16, Space().grid()).best_s
    searches = []
    for seed in range(3):
        tuner = make_tuner(name, space, job=VGG16, seed=seed, budget=31)
        decisions = tune(tuner, World(VGG16, effects=JITTER, seed=seed), space, budget=31)
        ran = {decision.measurement.config for decision in decisions} | {decisions[-1].config}
        true_s = {config: step_s(VGG16, config) for config in ran}
        found_s = min(best, *true_s.values())
        search = judge(decisions, true_step_s=lambda c, _, t=true_s: t[c], best_step_s=lambda _, f=found_s: f)
        searches.append(search)
        until = max(WINDOW, search.iterations)
        cpu.append(sum(decision.cpu_s for decision in decisions if decision.measurement.iteration < until))
        assert true_s[decisions[-1].config] <= true_s[space.default]
    replay(benchmark, cpu)
    middle = sorted(searches, key=lambda search: search.iterations)[1]
    within = sum(search.regret[-1] <= TOLERANCE for search in searches)
    benchmark.extra_info |= {"iterations": middle.iterations, "lost_s": middle.cost_s, "within_3_percent": within}
    print(
        f"\n{name}: {middle.iterations} iterations to within 3 % ({within} of 3 runs get there), "
        f"{middle.cost_s:.1f} s of training lost (simulated), {statistics.median(cpu):.2f} s of CPU (measured)"
    )


def cpu_of(rank: int, tuner: str | None, steps: int) -> tuple[float, float]:
    """CPU time per step of this rank (s): of all threads, and of those that decide."""
    training = ranks_module().Ranks(CONFIGS[1], tuner=tuner)
    training.train(SETTLE)
    began, decided = time.process_time(), deciding_s()
    training.train(steps)
    spent, deciding = time.process_time() - began, deciding_s() - decided
    training.optimizer.close()
    return spent / steps, deciding / steps


def deciding_s() -> float:
    """CPU time of the threads that decide, so far."""
    named = [thread for thread in threading.enumerate() if thread.name in ("autobyte tuner", "autobyte-adviser")]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in named)


@replayed
def test_tuning_adds_little_cpu_to_a_fixed_config(benchmark: Any) -> None:
    tuner = "metanet" if "metanet" in TUNERS.names() else "default"
    steps, fixed, tuned, deciding = 60, [], [], []
    for _ in range(3):  # in turn, so that what else the machine does meets both
        fixed.append(sum(all_s for all_s, _ in on_ranks(cpu_of, 2, None, steps)))
        ranks = on_ranks(cpu_of, 2, tuner, steps)
        tuned.append(sum(all_s for all_s, _ in ranks))
        deciding.append(sum(own_s for _, own_s in ranks))
    replay(benchmark, tuned)
    least, most, own = statistics.median(fixed), statistics.median(tuned), statistics.median(deciding)
    more = most / least - 1
    print(
        f"\n{tuner}: {1e3 * most:.1f} ms of CPU a step, {1e3 * least:.1f} with a fixed config: {100 * more:+.1f} %; "
        f"{1e3 * own:.2f} ms of it by threads that decide"
    )
    assert 0 < own < DECIDING_S
