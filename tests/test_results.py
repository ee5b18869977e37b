"""Trials in SQLite: kept at once, found again, and never at the cost of someone else's file."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobyte.config import Config
from autobyte.errors import FileError
from autobyte.results import SCHEMA, Results, versions
from autobyte.trace import Measurement, RuntimeStats

RUN = {"job": {"model": "vgg16", "workers": 8}, "budget": 30}
LAYERS, WORKERS = np.arange(6.0).reshape(2, 3) / 7, np.arange(2.0)
STATS = RuntimeStats(
    LAYERS, LAYERS + 1, WORKERS, WORKERS + 1, WORKERS + 2, 3, 1 << 20, np.arange(16.0).reshape(2, 2, 4)
)
TRIAL = Measurement(Config(4_000_000, 16_000_000, "mine", {"fusion": 1.0}), 20, (0.1, 0.2, 1 / 3), 1, STATS)
KEY: dict[str, Any] = {"tuner": "random", "seed": 3, "number": 2}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.sqlite"


def small(number: int) -> Measurement:
    return Measurement(Config(1 + number, 1), 10 * number, (1.0,))


def add(results: Results, number: int) -> None:
    results.add(small(number), tuner="grid", seed=0, number=number)


def test_a_trial_is_found_as_it_was_kept(path: Path) -> None:
    with Results.open(path, run=RUN) as results:
        assert results.find(**KEY) is None
        results.add(TRIAL, **KEY)
        found = results.find(**KEY)
    assert found is not None
    assert (found.config, found.iteration, found.step_s, found.warmup) == (TRIAL.config, 20, TRIAL.step_s, 1)
    assert found.stats is not None
    for field in fields(STATS):
        assert np.array_equal(getattr(found.stats, field.name), getattr(STATS, field.name))


def test_statistics_that_were_not_measured_are_none_again(path: Path) -> None:
    with Results.open(path, run=RUN) as results:
        results.add(replace(TRIAL, stats=replace(STATS, sends=None)), **KEY)
        found = results.find(**KEY)
    assert found is not None
    assert found.stats is not None
    assert found.stats.sends is None


@pytest.mark.parametrize("other", [{"tuner": "grid"}, {"seed": 4}, {"number": 1}])
def test_a_trial_is_found_by_all_of_its_key(path: Path, other: dict[str, Any]) -> None:
    with Results.open(path, run=RUN) as results:
        results.add(TRIAL, **KEY)
        assert results.find(**(KEY | other)) is None


def test_a_run_goes_on_where_it_stopped(path: Path) -> None:
    with Results.open(path, run=RUN) as results:
        add(results, 0)
    with Results.open(str(path), run={"budget": 30, "job": {"workers": 8, "model": "vgg16"}}) as results:  # any order
        add(results, 1)
        assert len(results) == 2
        assert results.find(tuner="grid", seed=0, number=0) == small(0)


def test_a_killed_run_keeps_every_trial_that_was_added(path: Path) -> None:
    script = f"""
import os
from autobyte.config import Config
from autobyte.results import Results
from autobyte.trace import Measurement
results = Results.open({str(path)!r}, run={RUN!r})
for number in range(3):
    results.add(Measurement(Config(1 + number, 1), 10 * number, (1.0,)), tuner="grid", seed=0, number=number)
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    with Results.open(path, run=RUN) as results:
        assert [results.find(tuner="grid", seed=0, number=n) for n in range(4)] == [*map(small, range(3)), None]


def test_a_file_is_begun_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("autobyte.results.SCHEMA", object())  # the tables are there, the first row fails
        with pytest.raises(FileError):
            Results.open(path, run=RUN)
    with Results.open(path, run=RUN) as results:
        add(results, 0)


def test_every_row_says_what_it_depends_on(path: Path) -> None:
    with Results.open(path, run=RUN) as results:
        results.add(TRIAL, **KEY)
    connection = sqlite3.connect(path)
    query = "SELECT trial.run, versions, mean_s, schema FROM trial, meta"
    run, known, mean_s, schema = connection.execute(query).fetchone()
    connection.close()
    assert json.loads(run) == RUN
    assert json.loads(known) == versions()
    assert set(versions()) == {"python", "autobyte", "numpy", "numba", "torch"}
    assert mean_s == TRIAL.mean_s
    assert schema == SCHEMA


def test_a_trial_is_kept_once(path: Path) -> None:
    with Results.open(path, run=RUN) as results:
        add(results, 0)
        with pytest.raises(FileError, match=r"results\.sqlite: UNIQUE constraint failed: trial.tuner"):
            add(results, 0)
        assert len(results) == 1


@pytest.mark.parametrize(
    ("run", "difference"),
    [
        ({"budget": 31, "job": RUN["job"]}, "its budget is 30, but this run has 31"),
        ({"budget": 30, "job": {"model": "vgg16", "workers": 4}}, "its workers is 8, but this run has 4"),
        ({"budget": 30, "job": RUN["job"], "seeds": 3}, "its seeds is null, but this run has 3"),
        ({"budget": 30}, "it has more settings"),
        (
            {"budget": 30, "job": "x" * 99},
            'its job is {"model": "vgg16", "workers": 8}, but this run has "' + "x" * 59,
        ),
    ],
)
def test_another_run_is_told_apart_and_left_alone(path: Path, run: dict[str, Any], difference: str) -> None:
    with Results.open(path, run=RUN) as results:
        add(results, 0)
    before = path.read_bytes()
    with pytest.raises(FileError) as caught:
        Results.open(path, run=run)
    assert str(caught.value) == f"{path} holds another run ({difference}); choose another folder"
    assert path.read_bytes() == before


def sqlite(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["CREATE TABLE photo (name)"], "{} is not a results database of this project; choose another folder"),
        (["CREATE TABLE meta (schema, run)"], "{} is not a results database of this project; choose another folder"),
        (
            ["CREATE TABLE meta (schema, run)", "INSERT INTO meta VALUES (2, '{{}}')"],
            "results database {} has schema 2; this version reads 1",
        ),
    ],
)
def test_someone_elses_database_is_left_alone(path: Path, statements: list[str], message: str) -> None:
    sqlite(path, *statements)
    before = path.read_bytes()
    with pytest.raises(FileError) as caught:
        Results.open(path, run=RUN)
    assert str(caught.value) == message.format(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]  # no log beside it either


def test_what_is_no_database_is_left_alone(path: Path) -> None:
    path.write_text("the quick brown fox " * 100)
    with pytest.raises(FileError, match=f"^results database {path}: file is not a database$"):
        Results.open(path, run=RUN)
    assert path.read_text() == "the quick brown fox " * 100


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent" / "results.sqlite"):
        with pytest.raises(FileError, match=f"^results database {path}: unable to open database file$"):
            Results.open(path, run=RUN)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("stats", b"PK\x03\x04 and no more"),
        ("stats", b""),
        ("stats", b"junk"),
        ("step_s", "[1.0"),
        ("step_s", "7"),
        ("config", "{}"),
        ("config", "not json"),
        ("config", '{"partition_bytes": 0, "credit_bytes": 1}'),
    ],
)
def test_a_corrupt_trial_is_named(path: Path, column: str, value: object) -> None:
    with Results.open(path, run=RUN) as results:
        results.add(TRIAL, **KEY)
        add(results, 0)
        results._connection.execute(f"UPDATE trial SET {column} = ? WHERE seed = 3", (value,))
        with pytest.raises(FileError) as caught:
            results.find(**KEY)
        assert str(caught.value).startswith(f"results database {path}: trial 2 of 'random', seed 3 is corrupt (")
        assert results.find(tuner="grid", seed=0, number=0) == small(0)


def test_a_truncated_file_is_named(path: Path) -> None:
    with Results.open(path, run=RUN) as results:
        for number in range(200):
            add(results, number)
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(FileError, match=f"^results database {path}: "), Results.open(path, run=RUN) as results:
        for number in range(200):
            results.find(tuner="grid", seed=0, number=number)


def fill(results: Results) -> int:
    """Add trials until one is refused; say how many there are."""
    for number in range(10_000):
        try:
            results.add(TRIAL, tuner="grid", seed=0, number=number)
        except FileError as error:
            assert str(error).endswith("results.sqlite: database or disk is full")
            return number
    raise AssertionError("the disk is never full")


def test_a_full_disk_is_one_clear_line_and_costs_one_trial(path: Path) -> None:
    with Results.open(path, run=RUN) as results:
        results._connection.execute("PRAGMA max_page_count = 20")
        kept = fill(results)
        assert len(results) == kept > 0
    with Results.open(path, run=RUN) as results:
        assert len(results) == kept
        results.add(TRIAL, **KEY)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(tiny_disk: Path) -> None:
    with Results.open(tiny_disk / "results.sqlite", run=RUN) as results:
        kept = fill(results)
        assert len(results) == kept > 0
        assert results.find(tuner="grid", seed=0, number=kept - 1) is not None
    (tiny_disk / "second").mkdir()
    (tiny_disk / "filler").write_bytes(b"\0" * shutil.disk_usage(tiny_disk).free)
    with pytest.raises(FileError, match=r"second/results\.sqlite: "):
        Results.open(tiny_disk / "second" / "results.sqlite", run=RUN)
