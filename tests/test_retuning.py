"""A search that begins again when the job changes, and not before."""

import numpy as np
import pytest

from autobyte.config import Config, Space
from autobyte.retuning import Retuned
from autobyte.trace import Measurement, RuntimeStats
from autobyte.tuners import Tuner

START, A, B = (Config(size, size) for size in (100, 200, 300))
SPACE = Space((100, 1600), (1.0, 4.0), START)


class Search(Tuner):
    """Asks for A, then B, then rests."""

    def __init__(self, space: Space, number: int) -> None:
        self.space, self.number, self.told, self.asks = space, number, [], [A, B]  # type: ignore[var-annotated]

    def ask(self) -> Config | None:
        return self.asks.pop(0) if self.asks else None

    def tell(self, measurement: Measurement) -> None:
        self.told.append(measurement.config)


def window(
    config: Config, step_s: float, *, rate: float = 1e9, workers: int = 2, compute_s: float = 0.1
) -> Measurement:
    times, rates = np.full((workers, 3), compute_s), np.full(workers, rate)
    return Measurement(config, 0, (step_s,) * 10, 2, RuntimeStats(times, times, rates, rates, rates))


def drive(retuned: Retuned, windows: list[dict[str, float]]) -> list[Config | None]:
    """What it asks for after windows of the config that it asked for, each with its step time and other facts."""
    running, asked = START, []
    for facts in windows:
        retuned.tell(window(running, **facts))  # type: ignore[arg-type]
        config = retuned.ask()
        asked.append(config)
        running = config or running
    return asked


def make() -> tuple[Retuned, list[Search]]:
    made: list[Search] = []

    def search(space: Space, number: int) -> Search:
        made.append(Search(space, number))
        return made[-1]

    return Retuned(search, SPACE, budget=4), made


def test_nothing_changes_nothing_is_searched() -> None:
    retuned, made = make()
    assert drive(retuned, [{"step_s": 1.0}, {"step_s": 1.05}, {"step_s": 0.97}]) == [START] * 3
    assert made == []


@pytest.mark.parametrize("change", [{"step_s": 2.0}, {"rate": 5e8}, {"workers": 3}, {"compute_s": 0.12}])
def test_a_change_starts_a_search_from_where_it_is_and_its_best_stays(change: dict[str, float]) -> None:
    retuned, made = make()
    windows = [{"step_s": 1.0}, {"step_s": 1.0} | change, change | {"step_s": 0.5}, change | {"step_s": 0.7}]
    asked = drive(retuned, [*windows, change | {"step_s": 0.5}])
    assert asked == [START, A, B, A, A]
    assert [(search.space.default, search.number) for search in made] == [(START, 1)]
    assert made[0].told == [START, A, B]


def test_every_change_starts_another_from_what_is_known() -> None:
    retuned, made = make()
    drive(retuned, [{"step_s": s} for s in (1.0, 2.0, 0.5, 0.7, 0.5, 3.0)])
    assert [(search.space.default, search.number) for search in made] == [(START, 1), (A, 2)]


def test_a_change_during_a_search_starts_another_and_what_was_measured_before_is_forgotten() -> None:
    retuned, made = make()
    for config, step_s in [(START, 1.0), (START, 2.0), (A, 0.1), (A, 5.0), (B, 3.0)]:
        retuned.tell(window(config, step_s))
    assert [search.told for search in made] == [[START, A], [A, B]]
    assert [retuned.ask() for _ in range(3)] == [A, B, B]  # not A, whose 0.1 s are gone


def test_a_search_that_never_rests_ends_with_its_budget() -> None:
    retuned, made = make()
    retuned.tell(window(START, 1.0))
    retuned.tell(window(START, 2.0))
    made[0].asks = [A] * 100
    for step_s in (0.5, 0.5, 0.5):
        assert retuned.ask() == A
        retuned.tell(window(A, step_s))
    assert retuned.ask() == A
    assert len(made[0].asks) == 97


def test_windows_of_different_configs_are_not_compared() -> None:
    retuned, made = make()
    retuned.tell(window(START, 1.0))
    retuned.tell(window(B, 5.0, rate=1e7))
    assert made == []


def test_noise_is_not_a_change() -> None:
    retuned, made = make()
    random = np.random.default_rng(1)
    for _ in range(50):
        retuned.tell(Measurement(START, 0, tuple(random.normal(1, 0.2, size=10)), 2))
    assert made == []
