"""Calibration on real links: what is measured becomes costs, and a file that is read again."""

from dataclasses import replace
from pathlib import Path

import pytest
from beds import needs_namespaces

from autobyte.bench.bench import PAYLOAD, Cell
from autobyte.bench.calibration import Engine, calibrate
from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.simulator.calibrate import PROBE, EngineCalibration
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
    assert 0.95 < costs.rate_share < 1.05
    assert costs.error < 0.02
    probe_s = 4 * PROBE.parameters / (RATE * PAYLOAD)  # two ranks: every byte goes once in either direction
    ratios = [measured_s / probe_s for *_, measured_s in made.samples[f"{engine} probe"]]
    assert min(ratios) > 1
    free = replace(job, cluster=replace(job.cluster, latency_s=0.0, overhead_s=(0.0, 0.0)))
    least_s = step_s(free, Config(MIB, MIB), effects=costs.effects)  # on such links if blocks cost nothing
    priced_s = step_s(costs.price(job), Config(MIB, MIB), effects=costs.effects)
    assert least_s < priced_s < max(ratios) * least_s  # a busy machine makes both slower, the probe and its price


def test_a_calibration_has_one_all_reduce() -> None:
    with pytest.raises(InputError, match="one all-reduce, not several: allreduce, ordered"):
        calibrate(hosts=2, rate=RATE, engines=("allreduce", "ordered"))
