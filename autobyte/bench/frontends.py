"""Front ends beside their framework's own way to average gradients: the same emulated model on the same links."""

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from autobyte.bench.bench import BUCKETS_MIB, Cell, Progress, entry, measure
from autobyte.bench.front_rank import told_by
from autobyte.bound import bound_s
from autobyte.errors import MissingExtra, unknown
from autobyte.exchange.arguments import SERVED
from autobyte.scheduler.policies.ddp import DEFAULT_MIB
from autobyte.testbed import Testbed
from autobyte.testbed.launch import LaunchError
from autobyte.testbed.load import MOST_CORES, OtherLoad
from autobyte.testbed.validity import measure_links
from autobyte.units import format_rate

WARMUP = 20  # steps that do not count: AutoByte measures layers and plans in them
SEARCHED = 13  # steps of a window of a search, the switch to its config included
TIMEOUT_S, TIMEOUT_PER_STEP_S = 120.0, 5.0  # of a launch; a step may take ten times the bound, too
TRIES = 2  # of a launch
PORT = 29600  # where TensorFlow's workers listen
NEEDED = {
    "tensorflow": "TensorFlow: pip install 'autobyte[keras]' tensorflow",
    "mxnet": "MXNet: `make mxnet` makes .venv-mxnet; run .venv-mxnet/bin/python -m autobyte bench",
    "byteps": "BytePS: `make byteps` makes .venv-byteps; run .venv-byteps/bin/python -m autobyte bench",
    "horovod": "Horovod: `make horovod` makes .venv-horovod; run .venv-horovod/bin/python -m autobyte bench",
}


Run = dict[str, Any]  # `steps_s`, and AutoByte's `config` and `exposed_s` in them


class FrontWay(NamedTuple):
    """How gradients are averaged.

    Args:
        title: for people.
        own: whether it is the framework's own, without AutoByte.
        served: whether parameter servers do it; None is as the engine has it.
    """

    title: str
    own: bool = False
    served: bool | None = None


class FrontEnd(NamedTuple):
    """A framework, and what is measured of it.

    Args:
        package: that it needs.
        program: one rank of it; None is `autobyte.bench.cell`.
        ways: by the names that the program knows.
    """

    package: str
    program: str | None
    ways: Mapping[str, FrontWay]


FRONT_ENDS = {
    "torch": FrontEnd(
        "torch",
        None,
        {
            "ddp-default": FrontWay("DistributedDataParallel, its default", own=True, served=False),
            "ddp-best": FrontWay("DistributedDataParallel, best of 1, 4, 25, 100 MiB", own=True, served=False),
            "autobyte": FrontWay("AutoByte"),
        },
    ),
    "keras-tf": FrontEnd(
        "tensorflow",
        "autobyte.bench.keras_rank",
        {
            "after": FrontWay("averaging after backward", own=True, served=False),
            "strategy": FrontWay("MultiWorkerMirroredStrategy", own=True, served=False),
            "autobyte": FrontWay("AutoByte"),
            "crossing": FrontWay("AutoByte, cross_step"),
        },
    ),
    "mxnet": FrontEnd(
        "mxnet",
        "autobyte.bench.mxnet_rank",
        {
            "dist_sync": FrontWay("MXNet's dist_sync", own=True, served=True),
            "p3": FrontWay("MXNet's dist_sync with P3's slices", own=True, served=True),
            "autobyte": FrontWay("AutoByte"),
        },
    ),
    "byteps": FrontEnd(
        "byteps",
        "autobyte.bench.byteps_rank",
        {
            "byteps": FrontWay("BytePS's DistributedOptimizer, partitions of 4 MB", own=True, served=True),
            "byteps-1mib": FrontWay("BytePS's DistributedOptimizer, partitions of 1 MiB", own=True, served=True),
            "autobyte": FrontWay("AutoByte"),
        },
    ),
    "horovod": FrontEnd(
        "horovod",
        "autobyte.bench.horovod_rank",
        {
            "horovod": FrontWay("Horovod's DistributedOptimizer", own=True, served=False),
            "autobyte": FrontWay("AutoByte"),
        },
    ),
}
ENGINES = ("allreduce", *SERVED)


def check(name: str, engine: str) -> FrontEnd:
    """Find a front end, or say at once what is missing.

    Raises:
        InputError: there is no such front end or engine.
        MissingExtra: a package that one of them needs is not installed.
    """
    if name not in FRONT_ENDS:
        raise unknown("front end", name, FRONT_ENDS)
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    front = FRONT_ENDS[name]
    for what, package in (
        (f"--frontend {name}", front.package),
        (f"--engine {engine}", {"kvstore": "mxnet", "byteps": "byteps"}.get(engine, front.package)),
    ):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"{what} needs {NEEDED[package]}")
    return front


def compared(
    cell: Cell,
    name: str,
    engine: str,
    *,
    tuner: str,
    windows: int,
    steps: int,
    repeats: int,
    progress: Progress = lambda done, total, what: None,
) -> dict[str, Any]:
    """Measure a front end's ways in turn, `repeats` times.

    Args:
        cell: model and links.
        name: of the front end.
        engine: that AutoByte moves blocks by.
        tuner: that finds AutoByte's config, anew in every repeat.
        windows: of ten steps, that it has.
        steps: measured, of every way in every repeat.
        repeats: of everything.
        progress: shows how far it is.

    Returns:
        what the command prints for machines, and keeps; `speedup` is over the fastest of the framework's own ways.

    Raises:
        InputError, MissingExtra: as `check` does.
        TestbedError: there is no testbed, or a rank failed twice.
    """
    front = check(name, engine)
    run = _by_cell if front.program is None else _by_launches
    settings = {"engine": engine, "tuner": tuner, "windows": windows, "steps": steps}
    runs, warnings = run(cell, front, settings, repeats, progress)
    return {
        "frontend": name,
        "engine": engine,
        "cell": asdict(cell),
        "emulated": cell.describe(),
        "warning": "; ".join(warnings),
        "rows": rows(cell, front, engine, runs),
    }


def rows(cell: Cell, front: FrontEnd, engine: str, runs: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """Medians of the repeats' medians, beside the bound and the fastest of the framework's own ways.

    A search may find another config in every repeat: the one shown is that of the repeat in the middle, and so is
    the time for which the model stands still (`exposed_s`), as far as AutoByte reports it.

    Args:
        cell: model and links.
        front: whose ways these are.
        engine: of AutoByte.
        runs: by way, of every repeat.
    """
    made: list[dict[str, Any]] = []
    for name, repeats in runs.items():
        way, medians = front.ways[name], [float(np.median(run["steps_s"])) for run in repeats]
        served = engine in SERVED if way.served is None else way.served
        least_s = bound_s(cell.job(servers=served, wire_dtype=None))
        step_s = float(np.median(medians))
        middle = min(zip(medians, repeats, strict=True), key=lambda each: abs(each[0] - step_s))[1]
        made.append(
            {
                "way": name,
                "title": way.title,
                "own": way.own,
                "servers": served,
                "step_s": step_s,
                "step_low_s": min(medians),
                "step_high_s": max(medians),
                "bound_s": least_s,
                "over_bound": step_s / least_s,
                "config": middle.get("config"),
                "exposed_s": middle.get("exposed_s", (middle.get("report") or {}).get("exposed_s")),
            }
        )
    fastest_s = min((row["step_s"] for row in made if row["own"]), default=None)
    return [row | {"speedup": None if fastest_s is None else fastest_s / row["step_s"]} for row in made]


Measured = tuple[dict[str, list[Run]], list[str]]  # by way, and what makes them doubtful


def _by_launches(cell: Cell, front: FrontEnd, settings: dict[str, Any], repeats: int, progress: Progress) -> Measured:
    """A launch for every way: a process has one framework in one state."""
    runs: dict[str, list[Run]] = {name: [] for name in front.ways}
    again: list[str] = []
    with Testbed(cell.hosts, rate=cell.rate) as testbed:
        unsound = sum(not link.sound for link in measure_links(testbed))
        common = {
            "model": cell.model,
            "scales": {"time": cell.time_scale, "size": cell.size_scale},
            "workers": [f"{testbed.address(host)}:{PORT}" for host in range(cell.hosts)],
        }
        least_s = bound_s(cell.job(servers=False, wire_dtype=None))
        with OtherLoad() as others:
            for repeat in range(repeats):
                for done, (name, way) in enumerate(front.ways.items()):
                    progress(repeat * len(front.ways) + done, repeats * len(front.ways), way.title)
                    searching = 0 if way.own else SEARCHED * settings["windows"] + WARMUP
                    spec = {**common, **settings, "way": name, "warmup": WARMUP + searching}
                    run = _launched(testbed, str(front.program), spec, again.append, bound_s=least_s)
                    if run.get("state", "settled") != "settled":
                        again.append(f"the search of {way.title} was {run['state']} when its steps were measured")
                    runs[name].append(run)
    return runs, [*_doubts(cell, others.cores, unsound), *again]


def _launched(
    testbed: Testbed, program: str, spec: dict[str, Any], failed: Callable[[str], object], *, bound_s: float
) -> Run:
    """What one way's ranks tell; a launch that fails is tried once more, and that is said."""
    command = [sys.executable, "-m", program, json.dumps(spec)]
    timeout_s = TIMEOUT_S + max(TIMEOUT_PER_STEP_S, 10 * bound_s) * (spec["warmup"] + spec["steps"])
    for _ in range(TRIES - 1):
        try:
            return _run(testbed, command, timeout_s)
        except LaunchError as error:
            failed(f"{spec['way']} was launched again: {str(error).splitlines()[0]}")
    return _run(testbed, command, timeout_s)


def _run(testbed: Testbed, command: Sequence[str], timeout_s: float) -> Run:
    env = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with testbed.start(command, env=env) as launch:
        return told_by(launch.wait(timeout_s=timeout_s)[0].output)


def _by_cell(cell: Cell, front: FrontEnd, settings: dict[str, Any], repeats: int, progress: Progress) -> Measured:
    """PyTorch's ways: one launch for all of a repeat."""
    wanted = [entry("ddp", "ddp", "allreduce", None, bucket_mib=bucket) for bucket in BUCKETS_MIB]
    how = {"policy": "bytescheduler", "tuner": settings["tuner"], "windows": settings["windows"]}
    wanted.append(entry("autobyte", "autobyte", settings["engine"], None, **how))
    found = [row for _ in range(repeats) for row in measure(cell, wanted, steps=settings["steps"], progress=progress)]
    by_bucket: dict[int, list[Run]] = {}
    for row in found:
        by_bucket.setdefault(row.get("bucket_mib", 0), []).append(row)
    ours = by_bucket.pop(0)
    best = min(by_bucket.values(), key=lambda runs: float(np.median([np.median(run["steps_s"]) for run in runs])))
    doubts = _doubts(cell, max(row["other_cores"] for row in found), max(row["unsound_links"] for row in found))
    return {"ddp-default": by_bucket[DEFAULT_MIB], "ddp-best": best, "autobyte": ours}, doubts


def _doubts(cell: Cell, cores: float, unsound: int) -> list[str]:
    doubts = [f"others used {cores:.1f} cores of this machine meanwhile"] if cores > MOST_CORES else []
    if unsound:
        doubts.append(f"{unsound} of {2 * cell.hosts} links did not hold {format_rate(cell.rate)} before it began")
    return doubts
