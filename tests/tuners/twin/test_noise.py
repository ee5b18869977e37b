"""What is usual in a job says how sure its shortest windows are."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autobyte.config import Config
from autobyte.trace import Measurement
from autobyte.tuners.twin.noise import Noise
from autobyte.tuners.twin.windows import broken

CONFIG = Config(1 << 20, 1 << 22)


def window(count: int, *, spread: float, seed: int = 0) -> Measurement:
    """So many steps of 1 s, and two before them that do not count."""
    steps = 1.0 + spread * np.random.default_rng(seed).standard_normal(2 + count)
    return Measurement(CONFIG, 0, tuple(steps.tolist()), 2)


def test_the_first_window_is_taken_at_its_word() -> None:
    first = window(3, spread=0.02)
    assert Noise().error(first) == pytest.approx(first.error)


def test_three_steps_that_are_alike_by_chance_are_not_believed() -> None:
    noise = Noise()
    for seed in range(8):
        noise.error(window(8, spread=0.05, seed=seed))
    lucky = Measurement(CONFIG, 0, (1.0, 1.0, 1.0, 1.0001, 1.0), 2)
    assert lucky.error < 1e-4
    assert noise.error(lucky) == pytest.approx(0.05 * math.sqrt(4 / 6 / 3), rel=0.3)


def test_over_many_windows_it_is_nearer_to_the_truth_than_windows_are() -> None:
    noise, truth = Noise(), 0.05 / math.sqrt(3)
    windows = [window(3, spread=0.05, seed=seed) for seed in range(200)]
    mixed = [noise.error(each) for each in windows]
    off, alone = (
        np.median(np.abs(np.log(np.array(errors) / truth))) for errors in (mixed, [w.error for w in windows])
    )
    assert off < 0.5 * alone


def test_a_window_in_which_the_job_changed_does_not_tell_what_is_usual() -> None:
    noise, steady = Noise(), window(8, spread=0.01)
    usual = noise.error(steady)
    torn = replace(steady, step_s=(*steady.step_s[:6], *(3 * value for value in steady.step_s[6:])))
    assert noise.error(torn) > 10 * usual
    assert noise.error(steady) == pytest.approx(usual)


def test_one_step_has_the_error_that_is_usual() -> None:
    noise, single = Noise(), Measurement(CONFIG, 0, (1.0, 1.0, 1.0), 2)
    assert noise.error(single) == 0
    for seed in range(8):
        noise.error(window(8, spread=0.05, seed=seed))
    assert noise.error(single) == pytest.approx(0.05, rel=0.3)


def test_noise_is_no_change_of_the_job() -> None:
    noise = Noise()
    windows = [window(3, spread=0.1, seed=seed) for seed in range(400)]
    for each in windows:
        noise.error(each)
    alone = sum(broken(each.step_s) > 0 for each in windows)
    assert alone > 10
    assert sum(noise.broken(each.step_s) > 0 for each in windows) < alone / 5


def test_a_change_beyond_the_noise_is_seen() -> None:
    noise = Noise()
    for seed in range(8):
        noise.error(window(8, spread=0.05, seed=seed))
    first, then = window(2, spread=0.05, seed=9).step_s, window(2, spread=0.05, seed=10).step_s
    assert noise.broken((*first, *(2 * value for value in then))) == 4


def test_what_is_left_of_a_window_is_not_believed_for_being_even() -> None:
    noise = Noise()
    for seed in range(8):
        noise.error(window(8, spread=0.05, seed=seed))
    assert noise.error_of((1.0, 1.0, 1.0001), otherwise=0.0) == pytest.approx(0.05 * math.sqrt(4 / 6 / 3), rel=0.3)
    assert noise.error_of((1.0,), otherwise=0.2) == 0.2
