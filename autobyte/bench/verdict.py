"""Doctor's verdict on a job beside what a launch has measured of it: whether it was right."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autobyte.bench.real import Row, cells, read
from autobyte.bench.records import Records
from autobyte.models.profile import Profile
from autobyte.simulator.diagnose import GAIN, diagnose
from autobyte.torch.profiling.doctor import Symptoms

NUMBERS = ("workers", "compute_s", "step_s", "bytes_per_s", "per_block_s")


def described(symptoms: Symptoms) -> dict[str, Any]:
    """Symptoms as plain JSON, for a record."""
    profile = Profile.of(symptoms.model, provenance={"method": "examined by doctor"})
    return {**{name: getattr(symptoms, name) for name in NUMBERS}, "profile": profile.model_dump(by_alias=True)}


def judged(symptoms: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """What doctor expects by these symptoms, and what was measured.

    Args:
        symptoms: as `described` has them.
        rows: the methods of the same cell, as `real.cells` has them.

    Returns:
        `verdict` and `expected_gain` over DDP at its best, `method` and `measured_gain` of AutoByte's fastest that
        sends gradients as they are, and whether doctor was `right` to say gain, or keep DDP; `right` is None where it
        says neither, or nothing was measured.
    """
    numbers = {name: symptoms[name] for name in NUMBERS}
    seen = Symptoms(model=Profile.model_validate(symptoms["profile"]).model(), **numbers)
    diagnosis = diagnose(seen.job)
    verdict = "unknown" if seen.contradiction else "gain" if diagnosis.worthwhile else "keep DDP"
    ours = [row for row in rows if row["scheduler"] == "autobyte" and row["wire_dtype"] is None]
    ours = [row for row in ours if row["speedup_over_ddp"] is not None]
    best = max(ours, key=lambda row: float(row["speedup_over_ddp"]), default=None)
    gain = None if best is None else best["speedup_over_ddp"] - 1
    return {
        "verdict": verdict,
        "expected_gain": diagnosis.gain,
        "expected_policy": diagnosis.best.name,
        "measured_gain": gain,
        "method": None if best is None else best["method"],
        "right": None if gain is None or verdict == "unknown" else (gain >= GAIN) is (verdict == "gain"),
    }


def add_verdicts(path: Path) -> None:
    """Append doctor's verdict to a file of records, for each cell that it has examined."""
    rows = read(path)
    for cell in cells(rows):
        of = {key: cell[key] for key in ("model", "batch", "rate")}
        group = [row for row in rows if of.items() <= row.items()]
        symptoms = next((row["symptoms"] for row in group if "symptoms" in row), None)
        if symptoms is None or any("doctor" in row for row in group):
            continue
        common = {key: value for key, value in group[0].items() if key in KEPT}
        Records(path, common).add(doctor=judged(symptoms, cell["rows"]))


#: What the record of a verdict has in common with those of its cell.
KEPT = (
    "section", "what", "card", "driver", "cuda", "nccl", "torch", "ranks_on_card", "model", "batch", "ranks", "rate",
    "ratio", "wire_s",
)  # fmt: skip
