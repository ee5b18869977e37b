"""The searching tuners on a bowl: what is published, what is repaired, what is kept."""

import importlib
import sqlite3
import sys
from pathlib import Path

import numpy as np
import optuna
import pytest
from skopt.learning import GaussianProcessRegressor as Process

from autobyte.config import Config, Space
from autobyte.errors import InputError, MissingExtra
from autobyte.job import Model
from autobyte.trace import Measurement
from autobyte.tuners import Tuner
from autobyte.tuners.bayesian import Bayesian, BayesianPublished
from autobyte.tuners.descent import Descent
from autobyte.tuners.optuna import Optuna
from autobyte.tuners.optuna_cmaes import OptunaCmaEs
from autobyte.units import MIB

MODEL = Model.build("toy", [("layer", [("weight", 1 << 20)], 0.01, 0.02)], batch_size=32)
SPACE = Space()
BEST = Config(2 * MIB, 6 * MIB)


def bowl_s(config: Config) -> float:
    """Least at 2 MiB and 3X: 0.1 s."""
    partition, credit = np.log2(config.partition_bytes / (2 * MIB)), config.credit_bytes / config.partition_bytes / 3
    return float(0.1 * (1 + 0.02 * partition**2 + 0.1 * np.log2(credit) ** 2))


def drive(tuner: Tuner, *, windows: int, scale: float = 1.0, space: Space = SPACE) -> list[Config | None]:
    """Ask and tell in turn, the default first."""
    running, asked = space.default, []
    for number in range(windows):
        tuner.tell(Measurement(running, 10 * number, (scale * bowl_s(running),) * 10, warmup=2))
        config = tuner.ask()
        asked.append(config)
        running = config or running
    return asked


def best_s(asked: list[Config | None]) -> float:
    return min(bowl_s(config) for config in asked if config is not None)


def test_the_repaired_search_does_not_mind_the_unit_of_time() -> None:
    asked = [drive(Bayesian(SPACE, model=MODEL, seed=1), windows=8, scale=scale) for scale in (1.0, 1024.0)]
    assert asked[0] == asked[1]


def test_the_repaired_search_finds_more_than_the_published_one() -> None:
    repaired, published = (
        np.median([best_s(drive(kind(SPACE, model=MODEL, seed=seed), windows=16)) for seed in range(5)])
        for kind in (Bayesian, BayesianPublished)
    )
    assert repaired <= 0.104
    assert repaired < published


def test_searches_rest_after_fifteen_trials() -> None:
    for tuner in (Bayesian(SPACE, model=MODEL), Optuna(SPACE, model=MODEL)):
        asked = drive(tuner, windows=20)
        assert [config is None for config in asked] == [False] * 14 + [True] * 6
    published = drive(BayesianPublished(SPACE, model=MODEL), windows=20)
    assert [config is None for config in published] == [False] * 15 + [True] * 5  # the first window was dropped


@pytest.mark.parametrize(("kind", "fits"), [(Bayesian, 10), (BayesianPublished, 5)])  # of 15 trials
def test_no_process_is_fitted_that_nobody_asks(kind: type[Tuner], fits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = list[int]()
    fit = Process.fit
    monkeypatch.setattr(
        Process, "fit", lambda self, points, values: fitted.append(len(values)) or fit(self, points, values)
    )
    drive(kind(SPACE, model=MODEL, seed=1), windows=20)
    assert fitted == list(range(15 - fits, 15))


def test_the_published_search_drops_its_first_measurement_and_keeps_to_its_ranges() -> None:
    one, other = (BayesianPublished(SPACE, model=MODEL, seed=2) for _ in range(2))
    one.tell(Measurement(SPACE.default, 0, (1e-3,)))
    other.tell(Measurement(SPACE.default, 0, (1e3,)))
    for number in range(14):
        config = one.ask()
        assert config == other.ask()
        assert config is not None
        assert 8_000_000 <= config.partition_bytes <= 128_000_000
        assert config.partition_bytes <= config.credit_bytes <= 256_000_000
        for tuner in (one, other):
            tuner.tell(Measurement(config, 10 * number, (bowl_s(config),)))


def test_the_published_margin_is_in_seconds() -> None:
    """With steps of 100 s a margin of 0.1 s is nothing; with steps of 0.1 s it is everything."""
    fast, slow = (
        drive(BayesianPublished(SPACE, model=MODEL, seed=3), windows=15, scale=scale) for scale in (1.0, 1000.0)
    )
    assert fast[:10] == slow[:10]  # at random
    assert fast != slow


def test_a_knob_of_the_policy_is_searched_too() -> None:
    space = Space(knobs={"fusion": (0.0, 1.0)})
    for tuner in (Bayesian(space, model=MODEL), Optuna(space, model=MODEL), Descent(space, model=MODEL)):
        asked = [config for config in drive(tuner, windows=12, space=space) if config]
        assert all(config in space for config in asked)
        assert len({config.knobs.get("fusion") for config in asked}) > 1, tuner


def test_descent_reaches_the_bottom_and_rests() -> None:
    asked = drive(Descent(SPACE, model=MODEL), windows=40)
    assert asked[-1] is not None
    assert bowl_s(asked[-1]) <= 0.102
    assert len(set(asked[-5:])) == 1


def test_descent_begins_again_when_steps_take_longer() -> None:
    tuner = Descent(SPACE, model=MODEL)
    rest = drive(tuner, windows=40)[-1]
    assert rest is not None
    tuner.tell(Measurement(rest, 400, (bowl_s(rest),) * 10))
    assert tuner.ask() == rest
    tuner.tell(Measurement(rest, 410, (2 * bowl_s(rest),) * 10))
    assert tuner.ask() != rest


def test_descent_takes_noise_for_noise() -> None:
    """On a flat landscape with 5 % of noise it changes its best at most now and then."""
    tuner, random, running, rests = Descent(SPACE, model=MODEL), np.random.default_rng(4), SPACE.default, []
    for number in range(60):
        tuner.tell(Measurement(running, 10 * number, tuple(0.1 * random.normal(1, 0.05, size=10)), warmup=2))
        running = tuner.ask() or running
        rests.append(running)
    assert len(set(rests[40:])) == 1


def test_a_study_is_kept_and_goes_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    first = Optuna(SPACE, model=MODEL, storage=url, study="mine")
    drive(first, windows=6)
    drive(Optuna(SPACE, model=MODEL, storage=url, study="mine", sampler="GPSampler", seed=1), windows=6)
    study = optuna.load_study(storage=url, study_name="mine")
    done = [trial for trial in study.trials if trial.value is not None]
    assert len(done) == 12
    assert done[0].value == pytest.approx(bowl_s(SPACE.default))
    assert study.best_value == min(trial.value for trial in done if trial.value)


def test_a_window_under_a_config_of_someone_else_is_a_trial_of_its_own() -> None:
    tuner = Optuna(SPACE, model=MODEL)
    asked = tuner.ask()
    tuner.tell(Measurement(BEST, 0, (0.1,)))
    assert tuner.ask() == asked  # still to be tried


def test_a_window_that_was_given_up_is_a_pruned_trial(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    tuner = Optuna(SPACE, model=MODEL, storage=url, study="mine")
    for steps in (10, 4, 10):
        config = tuner.ask()
        assert config is not None
        tuner.tell(Measurement(config, 0, (0.1,) * steps, warmup=2))
    trials = optuna.load_study(storage=url, study_name="mine").trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert trials[1].intermediate_values == {4: pytest.approx(0.1)}


def test_an_unknown_sampler_is_told() -> None:
    with pytest.raises(InputError, match="unknown Optuna sampler 'tpf'; did you mean 'tpe'"):
        Optuna(SPACE, model=MODEL, sampler="tpf")


@pytest.mark.parametrize("url", ["sqlite:////nowhere/at/all.db", "nonsense://"])
def test_a_storage_that_is_not_there_is_told(url: str) -> None:
    with pytest.raises(InputError, match=f"storage '{url}' cannot be used"):
        Optuna(SPACE, model=MODEL, storage=url)


def test_a_storage_that_someone_else_holds_is_told(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    tuner = Optuna(SPACE, model=MODEL, storage=f"sqlite:///{path}?timeout=0.1")
    with sqlite3.connect(path) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(InputError, match=r"cannot be used .*locked.*; check that"):
            tuner.tell(Measurement(SPACE.default, 0, (0.1,)))
    tuner.tell(Measurement(SPACE.default, 0, (0.1,)))


def test_a_sampler_whose_package_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(MissingExtra, match=r"^Optuna's sampler 'cmaes' needs cmaes: pip install 'autobyte"):
        OptunaCmaEs(SPACE, model=MODEL)


def test_without_optuna_cmaes_names_its_own_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `tune` would bring Optuna, and the next try would miss `cmaes`."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "autobyte.tuners.optuna_cmaes")
    with pytest.raises(
        MissingExtra, match=r"^Optuna's sampler 'cmaes' needs optuna: pip install 'autobyte\[cmaes\]'$"
    ):
        importlib.import_module("autobyte.tuners.optuna_cmaes")


def test_a_storage_whose_driver_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(InputError, match=r"needs a package that is not there \(.*psycopg2.*\); install it$"):
        Optuna(SPACE, model=MODEL, storage="postgresql+psycopg2://nobody@127.0.0.1:9/none")
