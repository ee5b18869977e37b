"""Calibration on real links: what is measured becomes costs, and a file that is read again."""

from pathlib import Path

import pytest
from beds import needs_namespaces

from autobyte.bench.bench import Cell
from autobyte.bench.calibration import Engine, calibrate
from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.simulator.calibrate import EngineCalibration
from autobyte.simulator.steady import step_s
from autobyte.units import KIB, MIB

RATE = 5e7  # bytes/s


@needs_namespaces
@pytest.mark.parametrize("engine", ["allreduce", "ordered"])
def test_a_calibration_explains_what_it_was_measured_on(engine: Engine, tmp_path: Path) -> None:
    seen: list[str] = []

    def progress(what: str):
        seen.append(what)
        return lambda done, total, part: None

    made = calibrate(
        hosts=2, rate=RATE, engines=(engine,), sizes=(MIB, 512 * KIB, 256 * KIB), steps=2, progress=progress
    )
    assert seen == [engine, f"{engine}, beside compute"]
    assert len(made.samples[f"{engine} probe"]) == 12
    assert [*made.engines] == ["allreduce"]
    path = tmp_path / "calibration.json"
    made.save(path)
    assert EngineCalibration.load(path) == made
    cell = Cell("vgg16", 2, RATE, compute_s=0.1, size_scale=0.01)
    job = cell.job(servers=False, wire_dtype=None)
    costs = made.of(job)
    assert 0.5 < costs.rate_share < 1.1
    whole_s = job.gradients.total_bytes / RATE  # two ranks: every byte goes once in either direction
    assert step_s(costs.price(job), Config(MIB, MIB), effects=costs.effects) == pytest.approx(0.1 + whole_s, rel=0.5)


def test_a_calibration_has_one_all_reduce() -> None:
    with pytest.raises(InputError, match="one all-reduce, not several: allreduce, ordered"):
        calibrate(hosts=2, rate=RATE, engines=("allreduce", "ordered"))
