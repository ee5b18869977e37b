"""Which schedulers run on shaped links, and what their step times come to beside DDP's and the bound."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from autobyte.bound import bound_s, gap_closed
from autobyte.config import Config
from autobyte.exchange.arguments import WIRE
from autobyte.job import Cluster, Job, Model
from autobyte.models import find
from autobyte.scheduler.policies.ddp import DEFAULT_MIB
from autobyte.testbed import SharedGpu, Testbed
from autobyte.testbed.load import MOST_CORES, OtherLoad
from autobyte.testbed.validity import measure_links
from autobyte.units import format_rate

BUCKETS_MIB = (1, 4, 25, 100)  # DDP at its best is the best of these; 25 is its default
PAYLOAD = 0.9564  # of a link's nominal rate, under TCP, IP and Ethernet with timestamps: 1448 of 1514
TIMEOUT_PER_STEP_S = 60.0

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Cell:
    """What all schedulers of one comparison have in common.

    Args:
        model: name, or path of a profile.
        hosts: one rank on each.
        rate: of every link in both directions, nominal (bytes/s).
        compute_s: forward and backward, emulated by sleeping (s).
        size_scale: numbers of elements are multiplied by this.
        dilation: how many times longer all of it takes than what it stands for, on links so many times slower.
        clip: the norm to which every scheduler clips gradients; None clips nothing.
    """

    model: str
    hosts: int
    rate: float
    compute_s: float
    size_scale: float
    dilation: float = 1.0
    clip: float | None = None

    @property
    def stands_for(self) -> float:
        """The rate that time dilation makes of the links' (bytes/s)."""
        return self.rate * self.dilation

    @property
    def time_scale(self) -> float:
        """What the profile's times are multiplied by."""
        return self.compute_s / find(self.model).compute_s

    def scaled(self) -> Model:
        """The model as it is emulated."""
        return find(self.model).scaled(time=self.time_scale, size=self.size_scale)

    def job(self, *, servers: bool, wire_dtype: str | None) -> Job:
        """The job, on links that carry their payload share and cost nothing else."""
        payload = (self.rate * PAYLOAD,)
        cluster = Cluster(self.hosts, self.hosts if servers else 0, up_bytes_per_s=payload, down_bytes_per_s=payload)
        wire = WIRE[wire_dtype] if wire_dtype else None
        return Job(self.scaled(), cluster, wire_dtype=wire, clips=self.clip is not None)

    def describe(self) -> str:
        """What is emulated, in one line."""
        model = self.scaled()
        dilated = f", time dilated {self.dilation:g}x: stands for {self.compute_s / self.dilation:g} s on "
        dilated += f"{self.stands_for * 8e-9:g} Gbit/s"
        return (
            f"emulated: {model.name} with sizes × {self.size_scale:g} ({model.parameters * 4 / 2**20:.1f} MiB of "
            f"gradients), compute of {self.compute_s:g} s by sleeping, {self.hosts} hosts in network namespaces, "
            f"links shaped to {self.rate * 8e-9:g} Gbit/s{dilated if self.dilation != 1 else ''}"
            + ("" if self.clip is None else f", gradients clipped to a norm of {self.clip:g}")
        )


def runs(*, tuner: str, windows: int, wire_dtypes: Iterable[str | None]) -> list[dict[str, Any]]:
    """What is run, one after the other, named as in the table."""
    runs: list[dict[str, Any]] = []
    for wire in wire_dtypes:
        runs += [entry("ddp", "ddp", "allreduce", wire, bucket_mib=bucket) for bucket in BUCKETS_MIB]
        for engine in ("allreduce", "ps"):
            if wire is None:
                runs.append(entry("fifo", "autobyte", engine, wire, policy="fifo"))
                runs.append(entry("autobyte-default", "autobyte", engine, wire, policy="bytescheduler"))
            runs.append(
                entry(
                    "autobyte-tuned", "autobyte", engine, wire, policy="bytescheduler", tuner=tuner, windows=windows
                )
            )
        if wire is None:
            runs.append(entry("autobyte-auto", "autobyte", "allreduce", wire, policy="auto"))
    return runs


def entry(name: str, scheduler: str, engine: str, wire: str | None, **more: Any) -> dict[str, Any]:
    """The settings of one scheduler, as `autobyte.bench.cell` reads it."""
    return {"name": name, "scheduler": scheduler, "engine": engine, "wire_dtype": wire, **more}


def measure(
    cell: Cell,
    wanted: Sequence[dict[str, Any]],
    *,
    steps: int,
    plugins: Sequence[Path] = (),
    gpu: bool = False,
    progress: Progress = lambda done, total, what: None,
    change: Callable[[Testbed, int], None] = lambda testbed, step: None,
) -> list[dict[str, Any]]:
    """Run on a testbed, and give every run's rows.

    Args:
        cell: model and links.
        wanted: what is run, one after the other; see `autobyte.bench.cell`.
        steps: measured, of every run.
        plugins: files of the user's own that every rank loads.
        gpu: whether gradients are in this machine's GPU, which all ranks share, and compute is emulated there.
        progress: shown while it runs.
        change: may reshape links; given the step that a watched run is in, every 0.1 s.

    Raises:
        TestbedError: it cannot be made, or a rank failed.
    """
    with (
        TemporaryDirectory() as folder,
        SharedGpu() if gpu else nullcontext() as shared,
        Testbed(cell.hosts, rate=cell.rate) as testbed,
    ):
        unsound = [link for link in measure_links(testbed) if not link.sound]
        spec, out, pace = (Path(folder) / name for name in ("spec.json", "rows.jsonl", "pace"))
        scales = {"time": cell.time_scale, "size": cell.size_scale}
        settings = {"model": cell.model, "scales": scales, "runs": list(wanted), "steps": steps}
        settings["clip"] = cell.clip
        settings["device"] = "cuda:0" if gpu else "cpu"
        settings["plugins"] = [str(path.resolve()) for path in plugins]
        spec.write_text(json.dumps(settings | {"out": str(out), "pace": str(pace)}))
        out.touch()
        pace.write_text("0")
        total = sum(1 + len(run.get("more", [])) for run in wanted)
        windows = [run.get("watch", 0) + run.get("windows", 0) for run in wanted]
        budget = sum(
            (2 * steps + 12 * w) * (1 + len(run.get("more", []))) for w, run in zip(windows, wanted, strict=True)
        )

        def meanwhile() -> None:
            progress(len(out.read_text().splitlines()), total, "")
            change(testbed, int(pace.read_text()))

        with (
            OtherLoad() as others,
            testbed.start([sys.executable, "-m", "autobyte.bench.cell", str(spec)], gpu=shared) as launch,
        ):
            launch.wait(timeout_s=budget * TIMEOUT_PER_STEP_S, meanwhile=meanwhile)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        return [row | {"other_cores": round(others.cores, 2), "unsound_links": len(unsound)} for row in rows]


def repeated(
    cell: Cell, *, tuner: str, windows: int, wire_dtypes: Sequence[str | None], steps: int, repeats: int,
    progress: Progress, plugins: Sequence[Path] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """All schedulers, `repeats` times in turn; a tuner searches once, and what it found is measured every time."""
    wanted = runs(tuner=tuner, windows=windows, wire_dtypes=wire_dtypes)
    rows = measure(cell, wanted, steps=steps, plugins=plugins, progress=progress)
    again = [_settled(row) for row in rows]
    for _ in range(repeats - 1):
        rows += measure(cell, again, steps=steps, plugins=plugins, progress=progress)
    return rows


def _settled(row: dict[str, Any]) -> dict[str, Any]:
    """The run that a row came from, its tuning done."""
    dropped = ("other_cores", "unsound_links", "tuner", "windows", "steps_s", "cpu_s", "search_s", "report")
    settled = {key: value for key, value in row.items() if key not in dropped}
    if row["scheduler"] == "autobyte":
        settled["policy"] = row["config"].get("policy", "bytescheduler")
    return settled


def table(cell: Cell, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over repeats, with what they mean: speed beside DDP at its best, share of the gap closed.

    Returns:
        for every scheduler, architecture and wire dtype: `step_s` (median of the runs' medians, s), `step_low_s` and
        `step_high_s` (least and largest of them), `samples_per_s`, `bound_s`, and ratios within one wire dtype.
    """
    rows_of_cell = list(_medians(cell, rows))
    best = {row["wire_dtype"]: row["step_s"] for row in rows_of_cell if row["scheduler"] == "ddp-best"}
    for row in rows_of_cell:
        reference = best[row["wire_dtype"]]
        row["speedup_over_ddp"] = reference / row["step_s"]
        row["over_bound"] = row["step_s"] / row["bound_s"]
        row["gap_closed"] = gap_closed(row["step_s"], reference, row["bound_s"])
    return rows_of_cell


def _medians(cell: Cell, rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    grouped: dict[tuple[str, str, str | None, int], list[dict[str, Any]]] = {}
    for row in rows:
        key = row["name"], row["engine"], row["wire_dtype"], row.get("bucket_mib", 0)
        grouped.setdefault(key, []).append(row)
    buckets: dict[str | None, list[dict[str, Any]]] = {}
    for (name, engine, wire, bucket), members in grouped.items():
        medians = [float(np.median(member["steps_s"])) for member in members]
        bound = bound_s(cell.job(servers=engine == "ps", wire_dtype=wire))
        step = float(np.median(medians))
        row = {
            "scheduler": name,
            "architecture": engine,
            "config": {"bucket_mib": bucket} if bucket else members[0]["config"],
            "wire_dtype": wire,
            "bound_s": bound,
            "step_s": step,
            "step_low_s": min(medians),
            "step_high_s": max(medians),
            "samples_per_s": cell.hosts * find(cell.model).batch_size / step,
            "other_cores": max(member.get("other_cores", 0.0) for member in members),
            "unsound_links": max(member.get("unsound_links", 0) for member in members),
            "cpu_s": float(np.median([member["cpu_s"] for member in members])),
            **({"search_s": members[0]["search_s"]} if "search_s" in members[0] else {}),
        }
        if bucket:
            buckets.setdefault(wire, []).append(row)
        else:
            yield row
    for members in buckets.values():
        yield from (row | {"scheduler": "ddp-default"} for row in members if _mib(row) == DEFAULT_MIB)
        yield min(members, key=lambda row: row["step_s"]) | {"scheduler": "ddp-best"}


def _mib(row: dict[str, Any]) -> int:
    return int(row["config"]["bucket_mib"])


def to_json(cell: Cell, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the command prints for machines, and keeps."""
    judged = table(cell, rows)
    busiest, unsound = (max(row[key] for row in judged) for key in ("other_cores", "unsound_links"))
    warnings = [f"others used {busiest:.1f} cores of this machine meanwhile"] if busiest > MOST_CORES else []
    if unsound:
        warnings.append(f"{unsound} of {2 * cell.hosts} links did not hold {format_rate(cell.rate)} before it began")
    warning = f"{'; '.join(warnings)}: measure again" if warnings else ""
    return {"cell": asdict(cell), "emulated": cell.describe(), "warning": warning, "rows": judged}


def label(config: dict[str, Any]) -> str:
    """A row's config in a few characters."""
    return f"{config['bucket_mib']} MiB" if "bucket_mib" in config else Config.from_json(config).label
