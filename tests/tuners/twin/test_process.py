"""The Gaussian processes over windows, beside the textbook's formulas in plain NumPy."""

import numpy as np
import pytest

from autobyte.job import Floats
from autobyte.tuners.twin.process import KNEE, TREND, Process, Processes, misfit

DRIFTS = Process(regime=3.0, drift=0.05, block=0.02, flight=0.2, crowding=(0.4, 0.2))
FADES = Process(common=0.5, regime=3.0, drift=0.03, trend=1.2, block=0.15, flight=0.02)


def make_rows(count: int, *, seed: int) -> Floats:
    """Windows of three regimes; rows that share a time, a block or a window in flight are among them."""
    random = np.random.default_rng(seed)
    columns = [(0.0, 1.0, 2.0), np.arange(6.0), (18.0, 20.5, 22.0), (16.0, 24.0, 27.5, 30.0)]
    return np.column_stack([random.choice(values, count) for values in columns])


def covariance(process: Process, one: Floats, other: Floats) -> Floats:
    """As the docstring of `Process` has it."""
    regime, windows, block, flight = (one[:, None, k] - other[None, :, k] for k in range(4))
    alike = regime == 0
    crowds = [np.log1p(2 ** (rows[:, 3] - KNEE)) for rows in (one, other)]
    within: Floats = (
        process.common**2
        + alike * (process.regime**2 + process.drift**2 * np.exp(-np.abs(windows) / 4))
        + alike * process.trend**2 * np.exp(-((windows / TREND) ** 2) / 2)
        + process.block**2 * np.exp(-((block / process.octaves) ** 2) / 2)
        + process.flight**2 * np.exp(-((flight / process.octaves) ** 2) / 2)
        + process.crowding[1] ** 2 * np.outer(*crowds)
    )
    return within


@pytest.mark.parametrize("process", [DRIFTS, FADES])
@pytest.mark.parametrize("seed", range(3))
def test_covariances_are_sums_over_the_parts(process: Process, seed: int) -> None:
    one, other = make_rows(40, seed=seed), make_rows(17, seed=seed + 100)
    for first, second in ((one, other), (one[:1], other), (one, one)):
        (found,) = Processes.of([process]).covariance(first, second)
        np.testing.assert_allclose(found, covariance(process, first, second), rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_of_several_processes_the_mixture_is_believed(seed: int) -> None:
    """Mean and covariance of a mixture of the posteriors, each by the textbook's formula, (2.25) and (2.26)."""
    random, likely, kinds = np.random.default_rng(seed), np.array([0.3, 0.7]), [DRIFTS, FADES]
    rows, at, values = make_rows(12, seed=seed), make_rows(9, seed=seed + 100), random.normal(size=12)
    noise = np.diag(random.uniform(0.01, 0.1, size=12) ** 2)
    noise[0, 1] = noise[1, 0] = 0.5 * np.sqrt(noise[0, 0] * noise[1, 1])
    means, within = [], []
    for process in kinds:
        before = [process.crowding[0] * np.log1p(2 ** (some[:, 3] - KNEE)) for some in (rows, at)]
        gain = covariance(process, at, rows) @ np.linalg.inv(covariance(process, rows, rows) + noise)
        means.append(before[1] + gain @ (values - before[0]))
        within.append(covariance(process, at, at) - gain @ covariance(process, rows, at))
    mean, some = likely @ np.array(means), np.array([7, 2, 2, 5])
    together = sum(w * (c + np.outer(m - mean, m - mean)) for w, c, m in zip(likely, within, means, strict=True))
    told = Processes.of(kinds).posterior(rows, values, noise, at=at, likely=likely)
    np.testing.assert_allclose(told.mean, mean, atol=1e-9)
    np.testing.assert_allclose(told.variance, np.diag(together), atol=1e-9)
    np.testing.assert_allclose(told.together(some), together[np.ix_(some, some)], atol=1e-9)
    of_many = told.of(np.arange(9) * 3, 27)
    assert of_many.mean[21] == told.mean[7]
    np.testing.assert_array_equal(of_many.together(some * 3), told.together(some))


def test_how_likely_values_are_is_what_numpy_makes_of_it() -> None:
    rows, random = make_rows(20, seed=0), np.random.default_rng(0)
    seen = Processes.of([DRIFTS, FADES]).covariance(rows, rows) + 0.01 * np.eye(20)
    beyond = random.normal(size=(2, 20, 5))
    squares = np.einsum("krc,krs,ksc->kc", beyond, np.linalg.inv(seen), beyond)
    np.testing.assert_allclose(misfit(seen, beyond), squares + np.linalg.slogdet(seen)[1][:, None], rtol=1e-9)


def test_what_fades_fades_on() -> None:
    """A window ahead, after a fade of a twentieth in each of eight; what only drifts is expected back."""
    windows = np.arange(9.0)
    rows = np.column_stack([np.zeros(9), windows, np.full((9, 2), 22.0)])
    missed = []
    for trend in (1.2, 0.0):
        process = Process(regime=3.0, drift=0.05, trend=trend)
        told = process.posterior(rows[:8], 0.05 * windows[:8], np.full(8, 0.01), at=rows[8:])
        missed.append(abs(float(told.mean[0]) - 0.05 * windows[8]))
    assert missed[0] <= 0.02 <= missed[1]


def test_what_was_seen_leaves_a_covariance() -> None:
    """Its diagonal is the posterior's variance; where one noise-free value is known, nothing is left."""
    process = Process(common=0.1, drift=0.1, trend=0.2, block=0.05, flight=0.03, octaves=2.0)
    rows = np.array([[0.0, 0.0, 20.0, 22.0], [0.0, 1.0, 24.0, 24.0]])
    at = np.array([[0.0, 2.0, place, place + 1] for place in (18.0, 20.0, 23.0)] + [rows[0].tolist()])
    noise = np.array([1e-6, 0.02])
    told = process.posterior(rows, np.array([0.1, -0.1]), noise, at=at)
    left = told.together(np.arange(4))
    assert np.diag(left) == pytest.approx(told.variance, abs=1e-9)
    assert left[3] == pytest.approx(np.zeros(4), abs=1e-9)
    assert left == pytest.approx(left.T)
    assert np.linalg.eigvalsh(left).min() >= -1e-9
