"""Recording: what is measured, what is kept of it, what a second run does; and a launch on real links."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from beds import needs_namespaces

from autobyte.bench import grid
from autobyte.bench.bench import Cell
from autobyte.cli import run
from autobyte.config import Config
from autobyte.errors import FileError
from autobyte.scheduler.policies.ddp import BUCKETS
from autobyte.units import MIB

RECORDED = Path(__file__).parents[2] / "paper" / "data" / "testbed_grid.csv"
CELLS = grid.cells(["vgg16", "gpt2"], [6.25e7, 1.25e8], hosts=4, compute_s=0.15, wire=1.2)


def test_a_grid_is_six_partitions_of_four_credits() -> None:
    configs = grid.grid()
    assert len(set(configs)) == 24
    assert len({config.partition_bytes for config in configs}) == 6
    assert {config.partition_bytes for config in grid.sample()} == {config.partition_bytes for config in configs}
    assert set(grid.sample()) <= set(configs)


def test_sizes_make_communication_a_share_of_compute() -> None:
    from autobyte.bound import wire_s  # noqa: PLC0415

    for cell, wire in zip(CELLS, (1.2, 0.6, 1.2, 0.6), strict=True):
        assert wire_s(cell.job(servers=False, wire_dtype=None)) / 0.15 == pytest.approx(wire, rel=0.01)


def test_what_is_complete_is_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "grid.csv"
    shutil.copy(RECORDED, path)
    assert run(["record", str(path), "--recordings", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(path), "what": "emulated", "launches_left": 0}
    assert path.read_text() == RECORDED.read_text()


def test_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[tuple[Cell, str]] = []

    def measure(cell: Cell, wanted: list[dict[str, Any]], *, steps: int, progress: Any) -> list[dict[str, Any]]:
        launches.append((cell, wanted[0]["engine"]))
        if len(launches) == 3:
            raise KeyboardInterrupt
        told = {"steps_s": [0.2, 0.3, 0.25], "cpu_s": 0.01, "busy_cores": 0.5}
        single = [run | told for run in wanted]
        return single + [wanted[1] | {"config": config} | told for config in wanted[1]["more"]]

    monkeypatch.setattr(grid, "measure", measure)
    path = tmp_path / "grid.csv"
    with pytest.raises(KeyboardInterrupt):
        grid.record(path, CELLS)
    assert len(launches) == 3
    assert grid.record(path, CELLS, most=1) == 2 * 8 - 3
    assert grid.record(path, CELLS) == 0
    assert len(launches) == 2 * 8 + 1
    assert launches[2] == launches[3]
    rows = grid.read(path)
    assert {row.recording for row in rows} == {1, 2}
    assert rows[0].step_s == 0.25 and (rows[0].low_s, rows[0].high_s) == (0.2, 0.3)
    medians = grid.medians(rows)
    assert set(medians) == {(cell, engine) for cell in CELLS for engine in grid.ENGINES}
    of_ring = set(medians[CELLS[0], "allreduce"])
    assert of_ring == {*grid.grid(), *BUCKETS[:3], Config(MIB, MIB, grid.NOTHING)}
    assert grid.record(path, CELLS) == 0
    assert path.read_text().startswith("# emulated models")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(FileError, match="is not a recording of `autobyte record`"):
        grid.read(path)


@needs_namespaces
def test_a_launch_on_real_links(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    (cell,) = grid.cells(["vgg16"], [6.25e7], hosts=2, compute_s=0.04, wire=1.0)
    configs = [Config(MIB, MIB, knobs={"fusion": 1}), Config(MIB // 4, MIB, knobs={"fusion": 1})]
    assert grid.record(path, [cell], engines=["ps"], recordings=1, steps=2, configs=configs) == 0
    (found,) = grid.medians(grid.read(path)).values()
    assert set(found) == {*configs, Config(MIB, MIB, grid.NOTHING)}
    assert all(0.03 <= step_s < 5 for step_s in found.values())
