"""`autobyte report` on what a bench measured: every cell with its picture and its rows, and nothing else."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from autobyte.bench.page import cells, write_bench_page
from autobyte.cli import run
from autobyte.errors import FileError

HERE = Path(__file__).parents[2]


def row(scheduler: str, step_s: float, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "scheduler": scheduler,
        "architecture": "allreduce",
        "wire_dtype": None,
        "config": config,
        "step_s": step_s,
        "step_low_s": 0.99 * step_s,
        "step_high_s": 1.01 * step_s,
        "bound_s": 0.4,
        "samples_per_s": 128 / step_s,
        "speedup_over_ddp": 0.6 / step_s,
        "over_bound": step_s / 0.4,
        "gap_closed": None if scheduler == "ddp-best" else 0.75,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tuned = {"partition_bytes": 1 << 20, "credit_bytes": 1 << 21}
    rows = [row("ddp-best", 0.6, {"bucket_mib": 4}), row("<tuned>", 0.45, tuned)]
    outcome = {"cell": {"model": "vgg16"}, "emulated": "emulated: vgg16 & links", "rows": rows}
    for name in ("vgg16-1000Mbit", "vgg16-500Mbit"):
        (tmp_path / f"{name}.json").write_text(json.dumps(outcome))
    (tmp_path / "notes.json").write_text("[1]")
    return tmp_path


def test_every_cell_has_a_picture_and_its_rows(folder: Path) -> None:
    page = write_bench_page(folder).read_text(encoding="utf-8")
    HTMLParser().feed(page)
    assert page.count("<svg") == page.count("<h2>") == 2
    assert page.count("<tr>") == 2 * 3
    assert "&lt;tuned&gt;</td><td>all-reduce</td><td>fp32</td><td>⟨1 MiB, 2x⟩</td><td>450 ms</td>" in page
    assert (
        "<td>4 MiB</td><td>600 ms</td><td>594 … 606</td><td>213.3</td><td>1.00x</td><td>1.50x</td><td>–</td>" in page
    )
    assert "vgg16 &amp; links" in page
    assert "<tuned>" not in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_the_command_knows_a_bench(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": str(folder / "report.html")}
    assert run(["report", str(folder)]) == 0  # its own page is replaced


def test_what_was_measured_on_the_testbed_can_be_shown(tmp_path: Path) -> None:
    for path in (HERE / "docs" / "data" / "bench").glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert len(cells(tmp_path)) == 12
    assert write_bench_page(tmp_path).read_text(encoding="utf-8").count("<h2>") == 12


def test_what_is_no_bench_is_said(folder: Path, tmp_path: Path) -> None:
    (folder / "report.html").write_text("mine")
    with pytest.raises(FileError, match=r"report\.html was not written by `autobyte report`"):
        write_bench_page(folder)
    (folder / "vgg16-1000Mbit.json").write_text("{")
    with pytest.raises(FileError, match=r"cannot read .*vgg16-1000Mbit"):
        write_bench_page(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileError, match="nothing was measured in"):
        write_bench_page(empty)
