"""The speed that the rest relies on: each test prints the ratio it asks for, both sides taken in one run."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autobyte.config import Config, Space
from autobyte.job import Cluster, Job, Model
from autobyte.models import load
from autobyte.scheduler.core import Core
from autobyte.scheduler.policies import make_plan
from autobyte.simulator import kernel
from autobyte.simulator.landscape import survey
from autobyte.simulator.simulate import simulate
from autobyte.units import KIB, MIB

VGG16 = Job(load("vgg16"), Cluster.uniform(8, 1.25e9))


def seconds(action: Callable[[], object], *, repeats: int) -> float:
    """The median time of an action, after one that does not count (s)."""
    action()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def test_the_kernel_is_100_times_the_reference() -> None:
    plan = make_plan(VGG16, Config(256 * KIB, MIB))
    compiled = seconds(lambda: kernel.simulate(plan, iterations=10), repeats=15)
    readable = seconds(lambda: simulate(plan, iterations=10), repeats=3)
    print(f"\nVGG16, 256 KiB, 10 steps: {readable / compiled:.0f}x the reference (at least 100x)")
    assert readable / compiled >= 100


def test_the_kernel_moves_20_million_blocks_a_second() -> None:
    plan = make_plan(VGG16, Config(4 * KIB, 16 * KIB))
    spent = seconds(lambda: kernel.simulate(plan, iterations=10), repeats=9)
    rate = 10 * len(plan.tiling) / spent / 1e6
    print(f"\nVGG16, 4 KiB: {rate:.0f} million blocks/s on one core (at least 20)")
    assert rate >= 20


@pytest.mark.parametrize("architecture", ["allreduce", "ps"])
def test_many_runs_of_one_job_take_half_the_time(architecture: str) -> None:
    """Every config of a state, as a twin asks for them; beside each planned and simulated by itself."""
    job = Job(load("vgg16"), Cluster.uniform(8, 1.25e9, architecture=architecture))
    configs = [config for config in Space().grid() if config.partition_bytes >= MIB]
    plans, layers_s = (
        [make_plan(job, config) for config in configs],
        np.array([job.model.forward_s, job.model.backward_s]),
    )

    def alone() -> list[float]:
        return [kernel.simulate(make_plan(job, config)).step_s[-1] for config in configs]

    def together() -> list[float]:
        runs = kernel.Repeated(job, layers_s, iterations=1)
        return [runs.step_s(plan) for plan in plans]

    assert together() == pytest.approx(alone())
    ratios = [seconds(alone, repeats=3) / seconds(together, repeats=3) for _ in range(3)]
    print(
        f"\n{len(configs)} configs, {architecture}: {statistics.median(ratios):.1f}x as fast together (at least 2x)"
    )
    assert statistics.median(ratios) >= 2


def test_whole_grids_take_less_than_a_minute() -> None:
    kernel.simulate(make_plan(VGG16, Config(MIB, MIB)))  # compiled before the clock starts
    began = time.perf_counter()
    for name in ("resnet50", "vgg16", "alexnet"):
        for gbit in (0.5, 1, 5, 10, 25):
            for architecture in ("allreduce", "ps"):
                job = Job(load(name), Cluster.uniform(8, gbit * 1.25e8, architecture=architecture))
                survey(job, Space().grid())
    spent = time.perf_counter() - began
    print(f"\n304 configs x 5 bandwidths x 3 models x 2 architectures: {spent:.1f} s (less than 60 s)")
    assert spent < 60


@pytest.mark.parametrize("architecture", ["allreduce", "ps"])
def test_many_identical_workers_cost_no_more_than_few(architecture: str) -> None:
    few, many = (
        make_plan(Job(load("vgg16"), Cluster.uniform(n, 1.25e9, architecture=architecture)), Config(256 * KIB, MIB))
        for n in (8, 1024)
    )
    ratios = []
    for _ in range(5):
        spent = [seconds(lambda plan=plan: kernel.simulate(plan, iterations=10), repeats=9) for plan in (few, many)]
        ratios.append(spent[1] / spent[0])
    print(f"\n1024 workers, {architecture}: {statistics.median(ratios):.2f}x the time of 8 (at most 1.2x)")
    assert statistics.median(ratios) <= 1.2


def core_s_per_block(queued: int) -> float:
    """Time of the core alone for a block's whole life, with so many in the queue (s)."""
    model = Model.build("many", [("layer", [("weight", queued)], 0.0, 0.0)], batch_size=1)
    plan = replace(make_plan(Job(model, Cluster.uniform(8, 1e9)), Config(4, 16)), credit_bytes=16)
    core = Core(plan)

    def step() -> None:
        flying = core.ready(0)
        flying += core.end_step()
        while flying:
            block = flying.pop(0)
            flying += core.sent(block)
            flying += core.done(block)

    return seconds(step, repeats=3) / queued


def test_the_core_takes_10_microseconds_a_block() -> None:
    few, many, most = (core_s_per_block(queued) for queued in (1_000, 10_000, 100_000))
    print(f"\ncore: {many * 1e6:.1f} µs a block at 10,000 queued (at most 10), {most * 1e6:.1f} µs at 100,000")
    assert many <= 10e-6
    assert most <= few * (5 / 3) * 1.5  # log 100,000 / log 1,000, and half of that for noise


def test_importing_and_helping_is_fast() -> None:
    binary = Path(sys.executable).parent / "autobyte"
    imported = seconds(lambda: subprocess.run([sys.executable, "-c", "import autobyte"], check=True), repeats=5)
    helped = seconds(lambda: subprocess.run([binary, "--help"], check=True, capture_output=True), repeats=5)
    print(f"\nimport autobyte: {imported:.2f} s (less than 0.3 s); autobyte --help: {helped:.2f} s (less than 0.6 s)")
    assert imported < 0.3
    assert helped < 0.6


def test_importing_loads_no_framework() -> None:
    code = "import autobyte, sys; print(*(m for m in ('torch', 'numpy', 'numba', 'pydantic') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
