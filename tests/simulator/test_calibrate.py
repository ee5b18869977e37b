"""A calibration finds the costs behind its samples, predicts another job from them, and comes back from its file."""

import json
from pathlib import Path

import pytest

from autobyte.config import Config
from autobyte.errors import FileError, InputError
from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.simulator.calibrate import BUSY, PROBE, EngineCalibration, EngineCosts, Sample, fit
from autobyte.units import KIB

RATE = 8e7
SIZES = [64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, 1024 * KIB]
RING, PS = Cluster.uniform(4, RATE), Cluster.uniform(4, RATE, architecture="ps")
SLOW_WHEN_SMALL = [(64.0 * KIB, 2e-3), (128.0 * KIB, 5e-4), (256.0 * KIB, 0.0)]
TRUE = {
    "ring": (RING, EngineCosts(rate_share=0.97, latency_s=4e-5, overhead_s=3e-4, step_s=2e-3)),
    "shared": (RING, EngineCosts(rate_share=0.99, latency_s=1e-5, overhead_s=8e-5, step_s=1e-3, sharing=8)),
    "table": (
        RING,
        EngineCosts(rate_share=1, latency_s=1e-5, overhead_s=1e-4, step_s=1e-3, size_overhead_s=SLOW_WHEN_SMALL),
    ),
    "servers": (PS, EngineCosts(rate_share=0.95, latency_s=3e-4, overhead_s=4e-4, step_s=1e-3)),
}


def samples(cluster: Cluster, costs: EngineCosts) -> list[Sample]:
    """What an engine with these costs shows."""
    job = Job(PROBE, cluster)
    pairs = [(size, size * count) for size in SIZES for count in (1, 2, 4, 8)]
    return [Sample(size, credit, costs.seconds(job, Config(size, credit))) for size, credit in pairs]


@pytest.mark.parametrize("name", TRUE)
def test_predicts_another_job_at_another_rate_from_the_probe(name: str) -> None:
    cluster, true = TRUE[name]
    found = fit(samples(cluster, true), cluster, sharing=true.sharing)
    assert found.error < 0.01
    other = Cluster(4, cluster.servers, (2 * RATE,), (2 * RATE,))
    job = Job(load("vgg16").scaled(size=0.02, time=1.2), other)
    for size in (64 * KIB, 200 * KIB, 1024 * KIB, 4096 * KIB):
        for count in (1, 4):
            config = Config(size, size * count, knobs={"fusion": 1})
            assert found.seconds(job, config) == pytest.approx(true.seconds(job, config), rel=0.03), config.label


def test_finds_what_a_tensor_costs_its_rank() -> None:
    cluster, plain = TRUE["ring"]
    true, job = plain.model_copy(update={"tensor_s": 2e-4}), Job(BUSY, cluster)
    pairs = [(256 * KIB, 256 * KIB), (256 * KIB, 1024 * KIB), (512 * KIB, 512 * KIB)]
    busy = [Sample(*pair, true.seconds(job, Config(*pair, knobs={"fusion": 1}))) for pair in pairs]
    found = fit(samples(cluster, true), cluster, sharing=1, busy=busy)
    assert found.tensor_s == pytest.approx(true.tensor_s, rel=0.1)


def test_one_disturbed_sample_does_not_matter() -> None:
    cluster, true = TRUE["ring"]
    seen = samples(cluster, true)
    seen[9] = Sample(seen[9].block_bytes, seen[9].credit_bytes, 2 * seen[9].step_s)
    found = fit(seen, cluster, sharing=1)
    job, config = Job(load("vgg16").scaled(size=0.02, time=1.2), cluster), Config(512 * KIB, 1024 * KIB)
    assert found.seconds(job, config) == pytest.approx(true.seconds(job, config), rel=0.02)


def test_needs_large_blocks_alone_and_in_flight() -> None:
    with pytest.raises(InputError, match="4 samples of blocks of at least 256 KiB, got 3"):
        fit([Sample(1 << 20, 1 << size, 0.1) for size in (20, 21, 22)], RING, sharing=1)
    with pytest.raises(InputError, match="alone and several in flight, got windows of 1 only"):
        fit([Sample(1 << 20, 1 << 20, 0.1)] * 5, RING, sharing=1)


def test_the_file_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    made = EngineCalibration(
        provenance={"hosts": 4}, engines={"allreduce": TRUE["table"][1]}, samples={"allreduce": []}
    )
    made.save(path)
    assert EngineCalibration.load(path) == made
    assert made.of(Job(PROBE, RING)) == TRUE["table"][1]
    with pytest.raises(FileError, match="exists already"):
        made.save(path)
    with pytest.raises(InputError, match="says nothing of 'ps'"):
        made.of(Job(PROBE, PS))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "profile"}, "make one with `autobyte calibrate`"),
        ({"schema": 2}, "has schema 2; this version reads 1"),
        ({"engines": {"allreduce": {"rate_share": -1}}}, "engines.allreduce"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    path = tmp_path / "calibration.json"
    EngineCalibration(provenance={}, engines={}).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(FileError, match=message):
        EngineCalibration.load(path)
