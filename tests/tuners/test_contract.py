"""Every tuner of the table keeps the contract, and asks what it asked before."""

import json
from pathlib import Path

import pytest

from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.job import Model
from autobyte.testing import TunerContract
from autobyte.trace import Measurement
from autobyte.tuners import TUNERS
from autobyte.tuners.bayesian import Bayesian, BayesianPublished
from autobyte.tuners.descent import Descent
from autobyte.tuners.fixed import Default, FixedP3
from autobyte.tuners.grid import Grid
from autobyte.tuners.metanet import Metanet, MetanetPublished
from autobyte.tuners.optuna import Optuna, OptunaGP, OptunaRandom
from autobyte.tuners.optuna_cmaes import OptunaCmaEs
from autobyte.tuners.random import Random
from autobyte.tuners.twin import Twin

MODEL = Model.build("toy", [("layer", [("weight", 1 << 20)], 0.01, 0.02)], batch_size=32)
NAMES = [
    *("default", "p3", "grid", "random", "descent", "twin", "metanet", "metanet-published"),
    *("bayesian", "bayesian-published", "optuna", "optuna-gp", "optuna-cmaes", "optuna-random"),
]
ASKS = Path(__file__).parent.parent / "data" / "asks.json"  # make record


class TestDefault(TunerContract):
    tuner = Default


class TestP3(TunerContract):
    tuner = FixedP3


class TestGrid(TunerContract):
    tuner = Grid


class TestRandom(TunerContract):
    tuner = Random


class TestBayesian(TunerContract):
    tuner = Bayesian


class TestBayesianPublished(TunerContract):
    tuner = BayesianPublished


class TestOptuna(TunerContract):
    tuner = Optuna


class TestOptunaGP(TunerContract):
    tuner = OptunaGP


class TestOptunaCmaEs(TunerContract):
    tuner = OptunaCmaEs


class TestOptunaRandom(TunerContract):
    tuner = OptunaRandom


class TestDescent(TunerContract):
    tuner = Descent


class TestTwin(TunerContract):
    tuner = Twin  # without a predictor it measures only; see test_twin.py


class TestMetanet(TunerContract):
    tuner = Metanet  # without statistics it measures only; see test_metanet.py


class TestMetanetPublished(TunerContract):
    tuner = MetanetPublished


def test_every_tuner_of_the_table_has_its_contract_test() -> None:
    tested = {cls.tuner for cls in TunerContract.__subclasses__() if cls.__module__ == __name__}
    assert tested == {TUNERS[name] for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_asks_what_was_recorded(name: str) -> None:
    assert asks(name) == json.loads(ASKS.read_text())[name]


def test_the_whole_grid_is_304_windows_and_a_budget_spreads_them() -> None:
    space = Space()
    assert [config for config in _all(Grid(space, model=MODEL)) if config] == space.grid()
    some = [config for config in _all(Grid(space, model=MODEL, budget=31)) if config]
    assert 20 <= len(some) <= 30
    assert {some[0].partition_bytes, some[-1].partition_bytes} == {4096, 1 << 30}
    assert {c.credit_bytes // c.partition_bytes for c in some} >= {1, 16}
    assert len(set(some)) == len(some)
    assert len([config for config in _all(Grid(space, model=MODEL, budget=1)) if config]) == 1


def test_a_tuner_of_ones_own_is_found_by_name() -> None:
    @Default.register("default-again")
    class Mine(Default):
        """Another name for the same."""

    assert TUNERS["default-again"] is Mine
    with pytest.raises(InputError, match="'grid' exists already"):
        Default.register("grid")(Mine)


def asks(name: str) -> list[dict[str, int] | None]:
    """What a tuner asks for in 12 windows on a fixed landscape with a fixed seed."""
    space = Space()
    tuner = TUNERS[name](space, model=MODEL, seed=5, budget=13)
    running, asked = space.default, []
    for number in range(12):
        step_s = 0.1 + abs(running.partition_bytes - (2 << 20)) * 1e-9 + running.credit_bytes * 1e-10
        tuner.tell(Measurement(running, 10 * number, (step_s,) * 10, warmup=2))
        config = tuner.ask()
        asked.append(None if config is None else config.to_json())
        running = config or running
    return asked


def _all(tuner: Grid) -> list[Config | None]:
    return [tuner.ask() for _ in range(400)]


if __name__ == "__main__":
    ASKS.write_text(json.dumps({name: asks(name) for name in NAMES}, indent=1) + "\n")
