"""`autobyte collect` and `autobyte fit`: small, killed, resumed, on a Dask cluster, and given bad input."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from autobyte import models
from autobyte.cli import run
from autobyte.config import Config
from autobyte.exchange.tuning.kept import Fingerprint
from autobyte.exchange.tuning.recording import Recording
from autobyte.job import Cluster, Job
from autobyte.nets import stored
from autobyte.nets.collection import Folder
from autobyte.nets.dataset import KINDS
from autobyte.simulator.world import World

SMALL = ("--environments", "4", "--judged", "1", "--seed", "3")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*words, "--json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def _lives(group: int) -> bool:
    """Whether a process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set, collected by a command that was killed and run again."""
    folder = tmp_path_factory.mktemp("small") / "dataset"
    command = [sys.executable, "-m", "autobyte", "collect", "--out", str(folder), *SMALL, "--jobs", "1"]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while not list(folder.glob("train-*.npz")) and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    first.kill()
    first.wait()
    while _lives(first.pid) and time.monotonic() < deadline:
        time.sleep(0.05)  # its workers hear of it, and what tracks their semaphores lets go of these
    assert not _lives(first.pid)
    made = {part: part.stat().st_mtime_ns for part in folder.glob("*.npz")}
    assert made
    again = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    said = json.loads(again.stdout)
    assert said["states"] == 4 * 5 * 2
    assert said["order"]["seed"] == 3
    assert all(part.stat().st_mtime_ns == when for part, when in made.items())  # what was finished was kept
    return folder


def test_workers_of_a_killed_collection_end_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autobyte", "collect", "--out", str(tmp_path / "dataset"), "--jobs", "2"]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    until, workers = time.monotonic() + 60, list[psutil.Process]()
    while len(workers) < 2 and time.monotonic() < until:
        time.sleep(0.1)
        workers = [child for child in psutil.Process(parent.pid).children() if "spawn_main" in str(child.cmdline())]
    assert len(workers) == 2
    parent.kill()
    parent.wait()
    assert psutil.wait_procs(workers, timeout=20)[1] == []


def test_a_fit_is_written_with_provenance_and_scores(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "net.npz"
    said = shown(capsys, "fit", str(dataset), "--epochs", "1", "--out", str(out))
    assert said == stored.about(out)
    assert said["what"] == "simulated"
    assert said["dataset"]["order"]["environments"] == 4
    assert said["dataset"]["digest"] == Folder(dataset).load("train", "measured").digest
    assert set(said["scores"]) == {"seen models", "unseen models"}
    errors = [
        tuple(part[key] for key in ("mape", "rank_correlation"))
        for part in (said["validation"], *said["scores"].values())
    ]
    assert len(set(errors)) == 3  # each of its own windows
    assert {"torch", "numpy"} <= set(said["versions"])
    net, replay = stored.load(out)
    assert net.variant.name == "improved"
    assert len(replay) == 40
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.json", "net.npz"]  # no checkpoint is left


def test_a_fit_prints_regret_beside_the_constants(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fit", str(dataset), "--variant", "paper", "--epochs", "1", "--out", str(tmp_path / "p.npz")]) == 0
    text = capsys.readouterr().out
    for words in ("MAPE", "rank correlation", "unseen models: this network", "unseen models: best constant"):
        assert words in text


def test_measured_windows_are_added(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compared, copy = tmp_path / "compared", tmp_path / "dataset"
    assert run(["compare", "--model", "alexnet", "--tuners", "random", "--seeds", "1", "--budget", "6",
                "--out", str(compared)]) == 0  # fmt: skip
    copy.mkdir()
    for file in dataset.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    said = shown(capsys, "collect", "--out", str(copy), *SMALL, "--add", str(compared))
    assert said["states"] == 40 + 1
    assert shown(capsys, "collect", "--out", str(copy), *SMALL, "--add", str(compared))["states"] == 40 + 1  # once
    with np.load(next(copy.glob("measured-*.npz"))) as file:
        assert np.isfinite(file["step_s"]).sum() == 6
        assert KINDS[int(file["kind"][0])] == "measured"


def test_what_training_recorded_is_added_with_the_model_beside_it(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "dataset"
    shutil.copytree(dataset, copy)
    model = replace(models.load("alexnet"), name="one's own")
    job = Fingerprint(model.name, "0", 8, "ps", "as they are", "bytescheduler")
    world = World(Job(model, Cluster.uniform(8, 1.25e9, architecture="ps")))
    for tuner in ("none", "twin"):  # a later training of the same job goes on
        recording = Recording(tmp_path / "seen", job, tuner=tuner)
        for size in (1 << 20, 4 << 20):
            recording.add(world.measure(Config(size, 4 * size), iterations=10, warmup=2), model)
    assert shown(capsys, "collect", "--out", str(copy), *SMALL, "--add", str(tmp_path / "seen"))["states"] == 40 + 2


@pytest.mark.skipif(find_spec("distributed") is None, reason="Dask is not installed")
def test_a_dask_cluster_makes_the_same(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parents[1] / "on_dask.py"
    folder = tmp_path / "dataset"
    command = [sys.executable, str(script), "collect", "--out", str(folder), *SMALL]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    for part in dataset.glob("*.npz"):
        with np.load(part) as here, np.load(folder / part.name) as there:
            assert all(np.array_equal(here[name], there[name], equal_nan=True) for name in here.files)


def test_bad_input_is_one_line(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["collect", "--out", str(dataset), "--environments", "6"], "environments 4, asked for was 6"),
        (["collect", "--out", str(tmp_path / "a"), "--environments", "1"], "environments must be at least 2, got 1"),
        (["collect", "--out", str(tmp_path / "a"), "--jobs", "-1"], "jobs must be at least 0, got -1"),
        (["fit", str(tmp_path)], "is no data set; make one with `autobyte collect"),
        (["fit", str(dataset), "--variant", "papr"], "unknown variant 'papr'; did you mean 'paper'?"),
        (["fit", str(dataset), "--epochs", "0"], "epochs must be at least 1, got 0"),
        (["fit", str(dataset), "--out", str(tmp_path / "b.json")], "b.json'; scores go into the .json"),
        (["fit", str(dataset), "--out", str(tmp_path / "b")], "--out must end in .npz, got '"),
    ):
        assert run(words) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "tls://127.0.0.1:9"])
def test_a_dask_scheduler_that_is_not_there_is_named(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed")
    assert run(["collect", "--out", str(tmp_path / "a"), "--dask", address]) == 2
    assert f"no Dask scheduler answers at {address}" in capsys.readouterr().err


def test_a_missing_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert run(["collect", "--out", str(tmp_path / "a"), "--dask", "tcp://127.0.0.1:9"]) == 2
    assert "pip install 'autobyte[dask]'" in capsys.readouterr().err
