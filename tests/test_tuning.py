"""The loop, told as a story to a scripted tuner and a scripted trainer."""

import logging
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import make_model

from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.trace import Measurement, RuntimeStats
from autobyte.tuners import TUNERS, Tuner
from autobyte.tuning import BRIEF, WARMUP, WINDOW, Decision, Tuning, tune

DEFAULT, A, B, C = (Config(size, size) for size in (100, 200, 300, 400))
SPACE = Space((100, 1600), (1.0, 4.0), DEFAULT)


class Script(Tuner):
    """Asks for what it was told to, and notes what happens; an exception in the script is raised."""

    def __init__(self, *answers: Config | BaseException | None, fail_tell_at: int = -1) -> None:
        self._answers: Iterator[Config | BaseException | None] = iter(answers)
        self._fail_tell_at = fail_tell_at
        self.story: list[str] = []

    def ask(self) -> Config | None:
        self.story.append("ask")
        answer = next(self._answers, None)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def tell(self, measurement: Measurement) -> None:
        self.story.append(f"tell {measurement.config.partition_bytes}")
        if len([line for line in self.story if line != "ask"]) == self._fail_tell_at:
            raise RuntimeError("tell")


class Trainer:
    """Takes as long for a step as is written, window after window, and notes what it ran."""

    def __init__(self, step_s: Callable[[Config, int], float]) -> None:
        self._step_s = step_s
        self.ran: list[Config] = []

    def measure(self, config: Config, *, iterations: int, warmup: int) -> Measurement:
        first = len(self.ran) * iterations
        self.ran.append(config)
        return Measurement(config, first, (self._step_s(config, first),) * iterations, warmup)


SPEED = {DEFAULT: 5.0, A: 4.0, B: 2.0, C: 9.0}


def trainer() -> Trainer:
    return Trainer(lambda config, _: SPEED[config])


def test_the_default_runs_first_then_what_is_asked_and_the_best_at_the_end() -> None:
    tuner, world = Script(A, B, C, C), trainer()
    decisions = tune(tuner, world, SPACE, budget=4)
    assert world.ran == [DEFAULT, A, B, C]
    assert [decision.config for decision in decisions] == [A, B, C, B]
    assert [decision.measurement.config for decision in decisions] == world.ran
    assert tuner.story == ["tell 100", "ask", "tell 200", "ask", "tell 300", "ask", "tell 400", "ask"]


def test_windows_are_the_papers() -> None:
    decisions = tune(Script(A), trainer(), SPACE, budget=2)
    assert [(len(d.measurement.step_s), d.measurement.warmup) for d in decisions] == [(WINDOW, WARMUP)] * 2
    assert [d.measurement.iteration for d in decisions] == [0, WINDOW]


class Hasty(Script):
    """Wants half a window before each of its first three answers."""

    @property
    def brief(self) -> bool:  # type: ignore[override]
        return self.story.count("ask") < 3


def test_a_brief_tuner_has_half_windows_and_as_many_iterations_as_others() -> None:
    decisions = tune(Hasty(A, B, C, C), trainer(), SPACE, budget=4)
    lengths = [len(decision.measurement.step_s) for decision in decisions]
    assert lengths == [BRIEF, BRIEF, BRIEF, WINDOW, WINDOW, BRIEF]  # the last is what is left
    assert sum(lengths) == 4 * WINDOW
    assert decisions[-1].config == B  # the best, for nothing comes after it


def test_nothing_to_try_runs_the_best_so_far_and_is_asked_again() -> None:
    world = trainer()
    tune(Script(B, A, None, None, C), world, SPACE, budget=7)
    assert world.ran == [DEFAULT, B, A, B, B, C, B]


def test_a_budget_of_one_keeps_the_default() -> None:
    assert [d.config for d in tune(Script(A), trainer(), SPACE, budget=1)] == [DEFAULT]


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_that_cannot_be_is_refused(budget: int) -> None:
    with pytest.raises(InputError, match=f"^budget must be at least 1, got {budget}$"):
        tune(Script(), trainer(), SPACE, budget=budget)


@pytest.mark.parametrize(
    ("tuner", "told"),
    [
        (Script(B, A, RuntimeError("ask")), ["tell 100", "ask", "tell 300", "ask", "tell 200", "ask"]),
        (Script(B, A, C, fail_tell_at=3), ["tell 100", "ask", "tell 300", "ask", "tell 200"]),
    ],
)
def test_a_tuner_that_fails_is_left_alone_and_the_best_goes_on(
    tuner: Script, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    world = trainer()
    with caplog.at_level(logging.ERROR):
        decisions = tune(tuner, world, SPACE, budget=6)
    assert world.ran == [DEFAULT, B, A, B, B, B]
    assert decisions[-1].config == B
    assert tuner.story == told
    assert caplog.messages == ["the tuner failed after 3 windows (Script); the best config so far stays"]
    assert caplog.records[0].exc_info is not None


def test_a_tuner_that_fails_at_once_leaves_the_default() -> None:
    world = trainer()
    tune(Script(fail_tell_at=1), world, SPACE, budget=3)
    assert world.ran == [DEFAULT] * 3


@pytest.mark.parametrize("asked", [Config(99, 99), Config(200, 200, "p3"), "200"])
def test_to_ask_for_what_is_not_in_the_space_is_a_failure(asked: Config, caplog: pytest.LogCaptureFixture) -> None:
    world = trainer()
    with caplog.at_level(logging.ERROR):
        decisions = tune(Script(B, asked, A), world, SPACE, budget=4)
    assert world.ran == [DEFAULT, B, B, B]
    assert [bool(decision.failure) for decision in decisions] == [False, True, False, False]
    assert decisions[1].failure.startswith("InputError: a tuner asks for configs of its space, not for ")
    said = decisions[1].failure.removeprefix("InputError: ")
    assert caplog.messages == [f"the tuner failed after 2 windows (Script); the best config so far stays: {said}"]
    assert not caplog.records[0].exc_info  # the line says it all


def test_to_stop_is_not_a_failure_of_the_tuner() -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(Script(KeyboardInterrupt()), trainer(), SPACE, budget=3)


def test_the_best_is_by_the_mean_over_all_its_windows() -> None:
    lucky = {0: 5.5, WINDOW: 3.2, 2 * WINDOW: 3.0, 3 * WINDOW: 2.9}  # A: 3.2 and then 2.9
    world = Trainer(lambda _, first: lucky[first])
    tuning = Tuning(Script(A, B, A), SPACE)
    for _ in range(4):
        tuning.observe(world.measure(tuning.config, iterations=WINDOW, warmup=WARMUP))
    assert world.ran == [DEFAULT, A, B, A]
    assert tuning.best == B


def test_what_is_best_is_forgotten_when_the_job_changes_and_not_for_statistics_that_jitter() -> None:
    """C runs twice at the end; where that was on the same job, it is known to be the slowest."""
    for slower, jump, last in ((1.0, 1.35, B), (1.5, 1.0, C), (1.0, 1.5, C)):
        tuning = Tuning(Script(B, C, C, C), SPACE)
        for number in range(4):
            config = tuning.config
            times, rates = np.full((2, 3), jump if number == 3 else 1.0), np.full(2, 1e9)
            stats = RuntimeStats(times, times, rates, rates, np.ones(2))
            second = SPEED[config] * (slower if number == 3 else 1.0)
            tuning.observe(Measurement(config, 10 * number, (second,) * 10, 2, stats), last=number == 3)
        assert tuning.config == last


@pytest.mark.parametrize(
    ("asks", "slowest", "ran"),
    [
        ((A, C), 5.0, [DEFAULT, A, C, C, DEFAULT, DEFAULT]),
        ((A, C), 12.0, [DEFAULT, A, C, C, DEFAULT, C, C]),
        ((C, A), 5.0, [DEFAULT, C, A, C, DEFAULT, A, A]),  # A ran after C, and so may tell of the job as it is
    ],
)
def test_on_a_changed_job_the_default_runs_again_before_any_other_is_best(
    asks: tuple[Config, ...], slowest: float, ran: list[Config]
) -> None:
    """C was the best, and is so no more when it runs for the second time."""
    after = {DEFAULT: slowest, A: 4.0, C: 9.0}
    world = Trainer(lambda config, first: after[config] if first >= 30 else {DEFAULT: 5.0, A: 4.0, C: 3.0}[config])
    tune(Script(*asks), world, SPACE, budget=len(ran))
    assert world.ran == ran


def test_the_warm_up_does_not_count_for_the_best() -> None:
    tuning = Tuning(Script(), SPACE)
    tuning.observe(Measurement(A, 0, (100.0, 1.0), 1))
    tuning.observe(Measurement(B, 2, (1.0, 2.0), 1))
    assert tuning.best == A


def test_of_equals_the_first_is_kept() -> None:
    tuning = Tuning(Script(), SPACE)
    for config in (B, A):
        tuning.observe(Measurement(config, 0, (1.0,)))
    assert tuning.best == B


def test_without_a_budget_no_decision_is_the_last() -> None:
    tuning = Tuning(Script(A, B, C), SPACE)
    assert tuning.config == tuning.best == DEFAULT
    asked = [tuning.observe(Measurement(tuning.config, 0, (1.0,))) for _ in range(4)]
    assert asked == [A, B, C, DEFAULT]


def test_progress_is_told_of_every_decision() -> None:
    seen: list[Decision] = []
    assert tune(Script(A, B), trainer(), SPACE, budget=3, progress=seen.append) == seen
    assert all(decision.cpu_s >= 0 for decision in seen)


MODEL = make_model(100, 200)


@pytest.mark.parametrize("name", ["default", "p3", "grid", "random"])
def test_asked_twice_with_one_seed_a_tuner_says_the_same_and_stays_in_the_space(name: str) -> None:
    def asked() -> list[Config | None]:
        tuner = TUNERS[name](Space(), model=MODEL, seed=7, budget=30)
        return [tuner.ask() for _ in range(30)]

    configs = asked()
    assert configs == asked()
    assert all(config in Space() for config in configs if config is not None)


def test_default_and_p3_never_change_their_mind() -> None:
    default, p3 = (TUNERS[name](Space(), model=MODEL, budget=5) for name in ("default", "p3"))
    assert {default.ask() for _ in range(5)} == {Config(4_000_000, 16_000_000)}
    assert {p3.ask() for _ in range(5)} == {Config(160_000, 160_000)}
    narrow = TUNERS["p3"](SPACE, model=MODEL, budget=5)
    assert narrow.ask() == Config(1600, 1600)  # the nearest that there is


def test_grid_tries_each_config_once_and_rests() -> None:
    tuner = TUNERS["grid"](Space(), model=MODEL, budget=None)
    assert [tuner.ask() for _ in range(304)] == Space().grid()
    assert tuner.ask() is None


@given(st.integers(1, 400), st.integers(0, 19), st.integers(1, 16))
def test_grid_under_a_budget_tries_an_even_part(budget: int, doublings: int, ratios: int) -> None:
    space = Space((4096, 4096 << doublings), (1.0, float(ratios)))
    tuner, asked = TUNERS["grid"](space, model=MODEL, budget=budget), []
    while (config := tuner.ask()) is not None:
        asked.append(config)
    trials = max(1, budget - 1)
    assert len(set(asked)) == len(asked) <= trials
    assert set(asked) <= set(space.grid())
    assert len(asked) >= min(trials, len(space.grid())) / 2
    sizes = {config.partition_bytes for config in asked}
    if len(sizes) > 1:  # a single one is the middle
        assert {space.partition_bytes[0], space.partition_bytes[1]} <= sizes


def test_random_spreads_over_the_logarithm_of_both() -> None:
    tuner = TUNERS["random"](Space(), model=MODEL, seed=1)
    places = [Space().locate(tuner.ask()) for _ in range(400)]
    for axis in range(2):
        counts = [sum(k / 4 <= place[axis] <= (k + 1) / 4 for place in places) for k in range(4)]
        assert all(60 <= count <= 140 for count in counts)  # 100 each, and five standard deviations
    one, other = (TUNERS["random"](Space(), model=MODEL, seed=seed) for seed in (1, 2))
    assert one.ask() != other.ask()
