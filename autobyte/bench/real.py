"""Real models on the rig: one launch for each model and rate, and what its records come to beside DDP at its best."""

import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autobyte.errors import InputError
from autobyte.testbed.hosts import PAYLOAD
from autobyte.testbed.rig import Rig, python

RATIOS = (0.5, 1.0, 2.0)  # communication over compute
RANK = python("autobyte.bench.rank")  # the command; it is given the path of what it is told
MARGIN_S = 5.0  # in which ranks end what they measure, before they are ended
HARDWARE = ("what", "card", "driver", "cuda", "nccl", "torch", "ranks_on_card")

Row = dict[str, Any]


@dataclass(frozen=True)
class RealCell:
    """What all methods of one launch have in common.

    Args:
        model: as `networks.make` takes it.
        batch: samples of a step on each rank; the first guess where `ratios` choose it. 0 is the model's own.
        ratios: of communication over compute, that batch sizes are chosen for; empty takes `batch` as it is.
        most: the largest batch size that may be chosen.
        input: shapes, where the model's function returns no inputs.
        wires: dtypes of gradients on the wire; None as they are.
        tuners: that search a config, each for `windows` windows of ten steps.
        steps: measured, of every method in every repeat.
        repeats: of the methods that count.
        audition: steps after which a search is over at the latest.
        offered: whether all that DDP has beside bucket sizes is tried.
        servers: whether gradients also go through host memory and parameter servers.
        arms: names of the methods that are measured; empty is all.

    Raises:
        InputError: a number that cannot be.
    """

    model: str
    batch: int = 0
    ratios: tuple[float, ...] = ()
    most: int = 1024
    input: str = ""
    wires: tuple[str | None, ...] = (None,)
    tuners: tuple[str, ...] = ("twin", "metanet")
    windows: int = 8
    steps: int = 10
    repeats: int = 3
    audition: int = 300
    offered: bool = True
    servers: bool = True
    arms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.batch < 0:
            raise InputError(f"batch must be at least 1, got {self.batch}")
        if not all(0 < ratio < math.inf for ratio in self.ratios):
            raise InputError(f"a ratio of communication over compute must be positive, got {min(self.ratios):g}")
        for name in ("windows", "steps", "repeats", "most"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")

    def spec(self) -> dict[str, Any]:
        """What the ranks are told of it."""
        return {
            "model": self.model, "batch": self.batch, "ratios": list(self.ratios), "most": self.most,
            "input": self.input, "wires": list(self.wires), "tuners": list(self.tuners), "windows": self.windows,
            "steps": self.steps, "repeats": self.repeats, "audition": self.audition, "offered": self.offered,
            "servers": self.servers, "arms": list(self.arms), "warmup": 2,
        }  # fmt: skip


@contextmanager
def told(
    rig: Rig, section: str, spec: Mapping[str, Any], *, out: Path, provenance: Mapping[str, Any], limit_s: float
) -> Iterator[Path]:
    """A file of all that a launch's ranks are told, for as long as the block lasts.

    >>> with told(rig, "rows", cell.spec(), out=out, provenance=known, limit_s=600) as path:
    ...     rig.run([*RANK, str(path)], limit_s=600)

    Args:
        rig: hosts, links and device.
        section: its first word names what the ranks do.
        spec: what they are told beside that.
        out: the file that they append records to, as soon as they know them.
        provenance: what stands in every record.
        limit_s: after which they are ended; they leave out what they cannot measure until then.
    """
    all_of_it = {
        **spec,
        "section": section,
        "out": str(out),
        "provenance": dict(provenance),
        "device": rig.device,
        "backend": rig.backend,
        "engine": rig.engine,
        "rate": rig.rate,
        "payload": PAYLOAD,
        "until": time.time() + limit_s - MARGIN_S,
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(all_of_it))
        yield path


def read(path: Path) -> list[Row]:
    """The records of a file; none if there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def cells(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """What records come to: a cell for each model, batch size and rate, its methods beside DDP at its best.

    Returns:
        of each cell what its records have in common, `compute_s` of a step without communication (s), `ratio` of
        communication over that, `doctor`'s verdict (as `verdict.judged` has it) if it was asked for, and `rows`:
        `step_s` is the median over repeats of medians (s), `step_low_s` and `step_high_s` the least and the largest
        of these; `speedup_over_ddp` is over the fastest of DDP's that sends the same dtype, `over_bound` over the
        least that a step can take.
    """
    by: dict[tuple[str, int, float], list[Row]] = defaultdict(list)
    for row in rows:
        by[row["model"], row["batch"], row["rate"]].append(row)
    return [_cell(group) for group in by.values()]


def _cell(group: Sequence[Row]) -> dict[str, Any]:
    arms: dict[str, list[Row]] = defaultdict(list)
    for row in group:
        if "arm" in row:
            arms[row["arm"]].append(row)
    bounds = {row["wire_dtype"]: row["bound_s"] for row in group if "bound_s" in row}
    made = [_row(name, members) for name, members in arms.items()]
    compute_s = next((row["step_s"] for row in made if row["scheduler"] == "compute"), None)
    for row in made:
        ddp = [each for each in made if each["scheduler"] == "ddp" and each["wire_dtype"] == row["wire_dtype"]]
        best_s = min((each["step_s"] for each in ddp), default=None)
        communicates = row["scheduler"] != "compute"
        row["is_best_ddp"] = row in ddp and row["step_s"] == best_s
        row["speedup_over_ddp"] = best_s / row["step_s"] if best_s and communicates else None
        bound = bounds.get(row["wire_dtype"])
        row["over_bound"] = row["step_s"] / bound if bound and communicates else None
        row["samples_per_s"] = group[0]["ranks"] * group[0]["batch"] / row["step_s"]
    return {
        **{key: group[0][key] for key in (*HARDWARE, "model", "batch", "ranks", "rate", "wire_s") if key in group[0]},
        "compute_s": compute_s,
        "ratio": group[0]["wire_s"] / compute_s if compute_s else None,
        "doctor": next((row["doctor"] for row in group if "doctor" in row), None),
        "left_out": [name for row in group for name in row.get("left_out", [])],
        "rows": made,
    }


def _row(name: str, members: Sequence[Row]) -> dict[str, Any]:
    medians = [member["median_s"] for member in members]
    first = members[0]
    kept = ("scheduler", "engine", "wire_dtype", "policy", "tuner", "arguments", "config")
    return {
        "method": name,
        **{key: first[key] for key in kept if key in first},
        "repeats": len(members),
        "step_s": statistics.median(medians),
        "step_low_s": min(medians),
        "step_high_s": max(medians),
        "host_s": statistics.median(member["host_s"] for member in members),
    }
