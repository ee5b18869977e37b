"""Doctor's verdict beside what was measured: right where it says gain and there is one, or neither."""

import json
from pathlib import Path
from typing import Any

import pytest

from autobyte.bench.real import cells, read
from autobyte.bench.verdict import add_verdicts, described, judged
from autobyte.job import Model
from autobyte.simulator.diagnose import diagnose
from autobyte.torch.profiling.doctor import Symptoms

LAYERS: Any = [(f"{i}", [(f"{i}.weight", 2_000_000)], 0.01, 0.02) for i in range(6)]
FACTS = {"what": "measured", "card": "A", "model": "m", "batch": 4, "ranks": 4, "rate": 1.25e8, "wire_s": 0.3}


def seen(bytes_per_s: float, compute_s: float = 0.18) -> Symptoms:
    model = Model.build("m", LAYERS, batch_size=4)
    return Symptoms(model, 4, compute_s, compute_s + 0.2, bytes_per_s, per_block_s=1e-3)


def rows(ours_s: float | None) -> list[dict[str, Any]]:
    steps = {"DDP default": 0.5, "DDP 4 MiB": 0.4, **({"AutoByte": ours_s, "AutoByte auto": 0.6} if ours_s else {})}
    return [
        FACTS
        | {"arm": arm, "scheduler": arm[:3].lower() if arm[:3] == "DDP" else "autobyte", "wire_dtype": None}
        | {"repeat": 0, "median_s": step_s, "host_s": 0.01}
        for arm, step_s in steps.items()
    ]


def verdict(symptoms: Symptoms, ours_s: float | None) -> dict[str, Any]:
    through_json = json.loads(json.dumps(described(symptoms)))
    (cell,) = cells(rows(ours_s))
    return judged(through_json, cell["rows"])


GAINS, NO_GAIN = seen(3e8), seen(1e12)


def test_it_is_right_where_it_says_gain_and_there_is_one() -> None:
    told = verdict(GAINS, 0.32)
    assert (told["verdict"], told["right"], told["method"]) == ("gain", True, "AutoByte")
    assert told["measured_gain"] == pytest.approx(0.4 / 0.32 - 1)
    assert told["expected_gain"] == pytest.approx(diagnose(GAINS.job).gain)
    assert verdict(GAINS, 0.39)["right"] is False  # less than 5 %


def test_it_is_right_where_it_says_keep_ddp_and_there_is_no_gain() -> None:
    told = verdict(NO_GAIN, 0.4)
    assert (told["verdict"], told["right"]) == ("keep DDP", True)
    assert verdict(NO_GAIN, 0.3)["right"] is False


def test_it_is_neither_where_it_does_not_know_or_nothing_was_measured() -> None:
    contradicts = Symptoms(GAINS.model, 4, 0.18, 0.1, 3e8, 1e-3)
    told = verdict(contradicts, 0.3)
    assert (told["verdict"], told["right"]) == ("unknown", None)
    assert (verdict(GAINS, None)["right"], verdict(GAINS, None)["measured_gain"]) == (None, None)


def test_a_file_gets_one_verdict_for_each_cell_that_was_examined(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    other = [row | {"batch": 8} for row in rows(0.3)]
    records = [FACTS | {"symptoms": described(GAINS)}, *rows(0.3), *other]
    path.write_text("".join(json.dumps(row) + "\n" for row in records))
    add_verdicts(path)
    add_verdicts(path)
    (added,) = [row for row in read(path) if "doctor" in row]
    assert FACTS.items() <= added.items()
    assert "symptoms" not in added
    assert [cell["doctor"] for cell in cells(read(path))] == [added["doctor"], None]
