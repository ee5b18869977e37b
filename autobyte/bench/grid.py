"""Recorded grids: step times of every config of a grid, measured on the testbed cell by cell, kept as CSV.

Tuners are judged on them, and the simulator is compared with them. What is measured is real but for the models, whose
compute is emulated by sleeping; every row says how it was made.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from autobyte.bench.bench import Cell, Progress, measure
from autobyte.bench.priority import undisturbed
from autobyte.bound import wire_s
from autobyte.config import Config
from autobyte.errors import FileError
from autobyte.scheduler.policies.ddp import BUCKETS
from autobyte.units import KIB, MIB

#: Six partition sizes from a few milliseconds of wire to more than a whole model, four credits each.
PARTITIONS = (128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 8 * MIB)
CREDITS = (1, 2, 4, 8)
ENGINES = ("allreduce", "ps")
STEPS = 5  # measured, of every config
COMPUTE_S, WIRE = 0.15, 1.2  # compute of every model, and wire time over it at the first rate
NOTHING = "none"  # the policy of a row without communication: compute alone


@dataclass(frozen=True)
class GridRow:
    """One config in one recording of one cell.

    Args:
        model: name, or path of a profile.
        hosts: one rank on each.
        rate: of every link in both directions, nominal (bytes/s).
        compute_s: forward and backward, emulated by sleeping (s).
        size_scale: numbers of elements were multiplied by this.
        engine: `allreduce` or `ps`.
        recording: 1, 2, …; each is a launch of its own.
        policy: `ddp` is real DDP at a bucket of `partition_bytes`; `none` does not communicate.
        partition_bytes, credit_bytes, fusion: the config.
        step_s: median over steps of the slowest rank's (s).
        low_s, high_s: least and largest step (s).
        cpu_s: CPU time of one rank per step (s).
        busy_cores: of the machine, all together, while it was measured.
    """

    model: str
    hosts: int
    rate: float
    compute_s: float
    size_scale: float
    engine: str
    recording: int
    policy: str
    partition_bytes: int
    credit_bytes: int
    fusion: float
    step_s: float
    low_s: float
    high_s: float
    cpu_s: float
    busy_cores: float

    @property
    def cell(self) -> Cell:
        """What it was measured on."""
        return Cell(self.model, self.hosts, self.rate, self.compute_s, self.size_scale)

    @property
    def config(self) -> Config:
        """What was measured."""
        knobs = {"fusion": self.fusion} if self.fusion else {}
        return Config(self.partition_bytes, self.credit_bytes, self.policy, knobs)

    @property
    def place(self) -> tuple[Cell, str, int]:
        """The launch it came from: cell, engine, recording."""
        return self.cell, self.engine, self.recording


def grid() -> list[Config]:
    """What is recorded in every cell, large blocks first; small tensors are fused, as in training by default."""
    return [
        Config(partition, partition * ratio, knobs={"fusion": 1})
        for partition in reversed(PARTITIONS)
        for ratio in CREDITS
    ]


def sample() -> list[Config]:
    """Six configs of the grid: every partition size once, every credit at least once."""
    return [Config(p, p * CREDITS[i % len(CREDITS)], knobs={"fusion": 1}) for i, p in enumerate(PARTITIONS)]


def cells(models: Sequence[str], rates: Sequence[float], *, hosts: int, compute_s: float, wire: float) -> list[Cell]:
    """Every model at every rate; sizes are scaled so that communication takes `wire` × compute at the first rate."""
    cells = []
    for model in models:
        plain = wire_s(Cell(model, hosts, rates[0], compute_s, 1.0).job(servers=False, wire_dtype=None))
        scale = float(f"{wire * compute_s / plain:.3g}")
        cells += [Cell(model, hosts, rate, compute_s, scale) for rate in rates]
    return cells


def record(
    path: Path,
    wanted: Iterable[Cell],
    *,
    engines: Sequence[str] = ENGINES,
    recordings: int = 2,
    most: int | None = None,
    steps: int = STEPS,
    configs: Sequence[Config] | None = None,
    progress: Callable[[str], Progress] = lambda what: lambda done, total, part: None,
) -> int:
    """Measure what the file does not hold yet, and add it launch by launch; what a killed run had measured is kept.

    Args:
        path: of the CSV; made if it is not there.
        wanted: cells.
        engines: of them.
        recordings: of everything; the second recording of all cells comes after the first of all.
        most: launches in this run; None is all.
        steps: measured, of every config.
        configs: of the grid.
        progress: given what is measured, shows how far it is.

    Returns:
        how many launches are left.

    Raises:
        FileError: the file is no recording, or cannot be written.
        TestbedError: there can be no testbed, or a rank failed.
    """
    there = {row.place for row in read(path)} if path.exists() else set()
    chosen = list(wanted)
    places = [(c, engine, number + 1) for number in range(recordings) for c in chosen for engine in engines]
    missing = [place for place in places if place not in there]
    now = missing if most is None else missing[:most]
    for cell, engine, number in now:
        what = f"{Path(cell.model).stem}, {cell.rate * 8e-6:g} Mbit/s, {engine}, recording {number}"
        runs = _runs(engine, list(grid() if configs is None else configs))
        with undisturbed():
            rows = measure(cell, runs, steps=steps, progress=progress(what))
        _append(path, [_row(cell, engine, number, row) for row in rows])
    return len(missing) - len(now)


def read(path: Path) -> list[GridRow]:
    """All rows of a recording.

    Raises:
        FileError: it cannot be read, or is no recording.
    """
    try:
        with path.open(newline="") as file:
            lines = list(csv.DictReader(line for line in file if not line.startswith("#")))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
    kinds: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float}
    readers = {field.name: kinds[str(getattr(field.type, "__name__", field.type))] for field in fields(GridRow)}
    try:
        return [GridRow(**{name: readers[name](value) for name, value in line.items()}) for line in lines]
    except (KeyError, ValueError, TypeError) as error:
        raise FileError(f"{path} is not a recording of `autobyte record`: {error}") from None


def medians(rows: Iterable[GridRow]) -> dict[tuple[Cell, str], dict[Config, float]]:
    """Step time of every config in every cell and engine, the median over recordings (s)."""
    grouped: dict[tuple[Cell, str], dict[Config, list[float]]] = {}
    for row in rows:
        grouped.setdefault((row.cell, row.engine), {}).setdefault(row.config, []).append(row.step_s)
    return {
        place: {config: float(np.median(steps)) for config, steps in configs.items()}
        for place, configs in grouped.items()
    }


def _runs(engine: str, configs: list[Config]) -> list[dict[str, Any]]:
    """What one launch measures: compute alone, the grid by live switching, and with all-reduce DDP's buckets."""
    shared = {"engine": engine, "wire_dtype": None}
    first, *more = [config.to_json() for config in configs]
    runs: list[dict[str, Any]] = [
        {"name": NOTHING, "scheduler": NOTHING, **shared},
        {"name": "grid", "scheduler": "autobyte", "policy": "bytescheduler", "config": first, "more": more, **shared},
    ]
    if engine == "allreduce":
        buckets = [
            bucket.partition_bytes // MIB for bucket in BUCKETS[:-1]
        ]  # the largest holds all of any model here
        runs += [{"name": "ddp", "scheduler": "ddp", "bucket_mib": bucket, **shared} for bucket in buckets]
    return runs


def _row(cell: Cell, engine: str, recording: int, measured: dict[str, Any]) -> GridRow:
    steps = measured["steps_s"]
    if "config" in measured:
        config = Config.from_json(measured["config"])
    else:
        size = measured.get("bucket_mib", 1) * MIB
        config = Config(size, size, measured["scheduler"])
    return GridRow(
        model=cell.model,
        hosts=cell.hosts,
        rate=cell.rate,
        compute_s=cell.compute_s,
        size_scale=cell.size_scale,
        engine=engine,
        recording=recording,
        policy=config.policy,
        partition_bytes=config.partition_bytes,
        credit_bytes=config.credit_bytes,
        fusion=config.knobs.get("fusion", 0.0),
        step_s=float(np.median(steps)),
        low_s=min(steps),
        high_s=max(steps),
        cpu_s=measured["cpu_s"],
        busy_cores=measured["busy_cores"],
    )


def _append(path: Path, rows: Sequence[GridRow]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not path.exists():
        text.write("# emulated models (compute by sleeping) on a testbed of network namespaces; times in s\n")
        writer.writerow([field.name for field in fields(GridRow)])
    writer.writerows(_cells(row) for row in rows)
    try:
        with path.open("a") as file:
            file.write(text.getvalue())
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None


def _cells(row: GridRow) -> Iterator[str]:
    for value in asdict(row).values():
        yield f"{value:.6g}" if isinstance(value, float) else str(value)
