"""Measures the probe on the testbed: blocks of several sizes, alone and several in flight, on a running engine."""

import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from autobyte.bench.bench import PAYLOAD, Cell, Progress, measure
from autobyte.bench.priority import undisturbed
from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.internals import THREADS
from autobyte.job import Cluster, Model
from autobyte.models.profile import Profile
from autobyte.simulator.calibrate import BUSY, PROBE, EngineCalibration, EngineCosts, Sample, fit
from autobyte.testbed.gpu import find_gpu
from autobyte.units import KIB

SIZES = (1024 * KIB, 512 * KIB, 256 * KIB, 128 * KIB, 64 * KIB)
IN_FLIGHT = (1, 2, 4, 8)
BUSY_SIZES, BUSY_IN_FLIGHT = (512 * KIB, 256 * KIB, 128 * KIB), (1, 4)
STEPS = 5  # of every config
#: Blocks that share the wire: gloo takes turns; the servers' connections, and streams, keep their order.
SHARING = {"allreduce": THREADS, "ps": 1, "ordered": 1, "nccl": 1}

Engine = Literal["allreduce", "ps", "ordered", "nccl"]
Architecture = Literal["allreduce", "ps"]
ON_GPU: frozenset[Engine] = frozenset({"nccl"})


def calibrate(
    *,
    hosts: int,
    rate: float,
    engines: Sequence[Engine] = ("allreduce", "ps"),
    sizes: Sequence[int] = SIZES,
    steps: int = STEPS,
    progress: Callable[[str], Progress] = lambda what: lambda done, total, part: None,
) -> EngineCalibration:
    """Measure each engine on the testbed, and fit the simulator's costs to it.

    Args:
        hosts: one rank on each.
        rate: of every link in both directions, nominal (bytes/s).
        engines: to be calibrated.
        sizes: of blocks.
        steps: measured, of every config.
        progress: given the engine, shows how far it is.

    Raises:
        TestbedError: there can be no testbed, or a rank failed.
        InputError: too few sizes, or two engines of one architecture.
    """
    if sum(engine != "ps" for engine in engines) > 1:
        raise InputError(f"a calibration has one all-reduce, not several: {', '.join(engines)}")
    fitted: dict[Architecture, EngineCosts] = {}
    kept = {}
    for engine in engines:
        architecture: Architecture = "ps" if engine == "ps" else "allreduce"
        configs = [Config(size, size * count) for size in sizes for count in IN_FLIGHT]
        samples = samples_of(PROBE, configs, engine, hosts, rate, steps, progress(engine))
        configs = [Config(s, s * count, knobs={"fusion": 1}) for s in BUSY_SIZES for count in BUSY_IN_FLIGHT]
        busy = samples_of(BUSY, configs, engine, hosts, rate, steps, progress(f"{engine}, beside compute"))
        cluster = Cluster.uniform(hosts, rate * PAYLOAD, architecture=architecture)
        fitted[architecture] = fit(samples, cluster, sharing=SHARING[engine], busy=busy)
        for name, of_probe in ((PROBE.name, samples), (BUSY.name, busy)):
            kept[f"{engine} {name}"] = [(each.block_bytes, each.credit_bytes, each.step_s) for each in of_probe]
    provenance: dict[str, str | float | int] = {
        "what": "probe of 4 MiB on a testbed of network namespaces, links shaped",
        "engines": ", ".join(engines),
        "hosts": hosts,
        "rate_bytes_per_s": rate,
        "steps": steps,
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
    }
    if ON_GPU & {*engines}:
        card, driver = find_gpu()
        provenance |= {"card": card, "driver": driver, "ranks_on_card": hosts}
    return EngineCalibration(provenance=provenance, engines=fitted, samples=kept)


def samples_of(
    probe: Model, configs: Sequence[Config], engine: Engine, hosts: int, rate: float, steps: int, progress: Progress
) -> list[Sample]:
    """A probe's step times on one engine."""
    first, *more = [config.to_json() for config in configs]
    run: dict[str, Any] = {
        "name": "probe", "scheduler": "autobyte", "policy": "bytescheduler", "engine": engine, "wire_dtype": None,
        "config": first, "more": more,
    }  # fmt: skip
    with TemporaryDirectory() as folder, undisturbed():
        path = Path(folder) / "probe.json"
        Profile.of(probe, provenance={}).save(path)
        cell = Cell(str(path), hosts, rate, probe.compute_s, 1.0)
        rows = measure(cell, [run], steps=steps, gpu=engine in ON_GPU, progress=progress)
    return [
        Sample(config.partition_bytes, config.credit_bytes, float(np.median(row["steps_s"])))
        for config, row in zip(configs, rows, strict=True)
    ]
