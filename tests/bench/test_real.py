"""Real models on the rig: what records come to, and what ranks are told."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from autobyte.bench.rank import _guess
from autobyte.bench.real import RealCell, cells, read, told
from autobyte.errors import InputError
from autobyte.testbed.rig import Rig

FACTS = {"what": "measured", "card": "A", "model": "m", "batch": 4, "ranks": 2, "rate": 1.0, "wire_s": 0.3}


def row(arm: str, scheduler: str, *medians: float, wire: str | None = None, **more: Any) -> list[dict[str, Any]]:
    of = {"arm": arm, "scheduler": scheduler, "wire_dtype": wire, **more}
    return [FACTS | of | {"repeat": i, "median_s": s, "host_s": s / 10} for i, s in enumerate(medians)]


ROWS = [
    FACTS | {"bound_s": 0.4, "wire_dtype": None},
    FACTS | {"bound_s": 0.2, "wire_dtype": "bf16"},
    *row("compute", "compute", 0.2),
    *row("DDP default", "ddp", 0.7, 0.9, 0.8),
    *row("DDP 4 MiB", "ddp", 0.6),
    *row("AutoByte", "autobyte", 0.5, config={"partition_bytes": 1}),
    *row("DDP 4 MiB, bf16", "ddp", 0.4, wire="bf16"),
    FACTS | {"left_out": ["AutoByte, bf16"], "why": "no time is left"},
]


def test_rows_stand_beside_ddp_at_its_best_of_the_same_dtype() -> None:
    (cell,) = cells(ROWS)
    found = {each["method"]: each for each in cell["rows"]}
    assert cell["ratio"] == pytest.approx(0.3 / 0.2)
    assert cell["left_out"] == ["AutoByte, bf16"]
    default = found["DDP default"]
    assert (default["step_low_s"], default["step_s"], default["step_high_s"]) == (0.7, 0.8, 0.9)
    assert [name for name, each in found.items() if each["is_best_ddp"]] == ["DDP 4 MiB", "DDP 4 MiB, bf16"]
    ours = found["AutoByte"]
    assert ours["speedup_over_ddp"] == pytest.approx(0.6 / 0.5)
    assert ours["over_bound"] == pytest.approx(0.5 / 0.4)
    assert ours["samples_per_s"] == pytest.approx(2 * 4 / 0.5)
    assert found["DDP 4 MiB, bf16"]["over_bound"] == pytest.approx(2)
    assert found["compute"]["speedup_over_ddp"] is None


def test_batch_sizes_and_rates_are_cells_of_their_own() -> None:
    other = [each | {"batch": 8} for each in ROWS]
    assert [cell["batch"] for cell in cells([*ROWS, *other])] == [4, 8]


def test_what_a_launch_that_failed_has_measured_is_shown() -> None:
    (cell,) = cells(ROWS[3:4])
    assert cell["compute_s"] is None
    assert cell["rows"][0]["over_bound"] is None


def test_ranks_are_told_of_device_engine_and_time(tmp_path: Path) -> None:
    cell = RealCell("small:cnn", batch=4)
    for rehearse, where in ((True, ("cpu", "gloo", "ordered")), (False, ("cuda:0", "nccl", "nccl"))):
        rig = Rig(2, 1e8, rehearse)
        with told(rig, "rows", cell.spec(), out=tmp_path / "o", provenance={"card": "A"}, limit_s=60) as path:
            spec = json.loads(path.read_text())
        assert (spec["device"], spec["backend"], spec["engine"]) == where
        assert 50 < spec["until"] - time.time() < 56
        assert not path.exists()
    assert read(tmp_path / "o") == []


def test_a_batch_size_is_guessed_by_a_line_through_what_was_measured() -> None:
    assert _guess({16: 0.2}, 0.4) == pytest.approx(32)
    assert _guess({16: 0.2, 32: 0.3}, 0.4) == pytest.approx(48)  # half of the first was no compute


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": -1}, "batch must be at least 1, got -1"),
        ({"ratios": (1.0, 0.0)}, "communication over compute must be positive, got 0"),
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RealCell("small:cnn", **changes)
