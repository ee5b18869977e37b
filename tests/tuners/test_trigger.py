"""A gain must clear the bar; a noisy flat optimum makes no one change to and fro; decisions become rarer."""

import numpy as np
import pytest

from autobyte.errors import InputError
from autobyte.tuners.trigger import OURS, PAPER, Backoff, Misses, Trigger


def test_the_paper_asks_for_five_percent() -> None:
    assert PAPER.fires(1.05, 1.0)
    assert not PAPER.fires(1.049, 1.0)
    assert PAPER.fires(1.06, 1.0, error=0.5)


def test_ours_asks_for_one_percent_or_twice_the_error() -> None:
    assert OURS.fires(1.01, 1.0)
    assert not OURS.fires(1.009, 1.0)
    assert OURS.fires(1.1, 1.0, error=0.05)
    assert not OURS.fires(1.1, 1.0, error=0.051)


def test_nothing_fires_for_a_time_that_cannot_be() -> None:
    for then_s in (0.0, -1.0, float("nan"), float("inf")):
        assert not OURS.fires(1.0, then_s)
    assert not OURS.fires(float("nan"), 1.0)


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03, 0.1])
def test_a_noisy_flat_optimum_makes_no_one_oscillate(noise: float) -> None:
    switches = {}
    for name, trigger, most in (("without", Trigger(0.0, 0.0), 1), ("with", OURS, 16)):
        random, misses, pace = np.random.default_rng(1), Misses(unknown=noise), Backoff(most=most)
        running, changes, changed = 0, 0, False
        for _ in range(400):
            predicted = 1 + noise * random.normal(size=2) / np.sqrt(2)  # two configs, equally good
            due = pace.due(changed=changed)
            changed = due and trigger.fires(predicted[running], predicted[1 - running], error=misses.error)
            running, changes = (1 - running if changed else running), changes + changed
            misses.note(predicted_s=predicted[running], observed_s=1 + noise * random.normal() / np.sqrt(2))
        switches[name] = changes
    assert switches["with"] <= 4, switches
    assert switches["without"] > 150, switches


def test_decisions_become_rarer_and_a_change_starts_over() -> None:
    pace = Backoff(most=8, first=3)
    due = [window for window in range(42) if pace.due()]
    assert due == [0, 1, 2, 3, 5, 9, 17, 25, 33, 41]
    assert pace.due(changed=True)
    assert [pace.due() for _ in range(3)] == [True, False, True]


def test_misses_are_relative_and_only_the_latest_count() -> None:
    misses = Misses(keep=2, unknown=0.2)
    assert misses.error == misses.last == 0.2
    misses.note(predicted_s=2.0, observed_s=1.0)
    misses.note(predicted_s=1.1, observed_s=1.0)
    misses.note(predicted_s=0.9, observed_s=1.0)
    misses.note(predicted_s=float("nan"), observed_s=1.0)
    misses.note(predicted_s=1.0, observed_s=0.0)
    assert misses.last == pytest.approx(-0.1)
    assert misses.error == pytest.approx(0.1)


def test_a_miss_within_its_noise_is_no_error() -> None:
    misses = Misses()
    misses.note(predicted_s=1.05, observed_s=1.0, noise=0.03)
    assert misses.error == 0.0
    misses.note(predicted_s=1.2, observed_s=1.0, noise=0.03)
    assert misses.error == pytest.approx(np.sqrt((0.05**2 + 0.2**2) / 2 - (2 * 0.03) ** 2))


def test_one_noisy_window_hides_no_misses_of_others() -> None:
    misses = Misses()
    for noise in (0.0, 0.2, 0.0):
        misses.note(predicted_s=1.1, observed_s=1.0, noise=noise)
    assert misses.error == pytest.approx(0.1)


def test_bad_settings_are_told() -> None:
    for make in (lambda: Trigger(-0.1), lambda: Trigger(errors=float("inf")), lambda: Backoff(most=0)):
        with pytest.raises(InputError, match="must be"):
            make()
