"""`autobyte compare --sweep`: many jobs from one file, continued, on a Dask cluster, and given bad input."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from autobyte.cli import run
from autobyte.cli.sweep import SweepFile

SWEEP = """
model = "small_vgg.json"
arch = ["allreduce", "ps"]
bandwidth = "300Mbit"
workers = 4
tuners = ["default", "random"]
seeds = 1
budget = 2
"""


def written(folder: Path, text: str = SWEEP) -> Path:
    """A sweep's file; the model's path as tests see it."""
    path = folder / "jobs.toml"
    path.write_text(text.replace("small_vgg.json", str(Path(__file__).parents[1] / "data" / "small_vgg.json")))
    return path


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    assert run(["compare", "--sweep", str(written(folder)), "--out", str(folder / "out"), "--jobs", "1"]) == 0
    return folder


def test_every_combination_is_the_comparison_that_the_command_makes(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.read_parquet(swept / "out" / "sweep.parquet")
    assert table["comparison"].unique().tolist() == ["allreduce", "ps"]
    model = SweepFile.load(swept / "jobs.toml").model[0]
    alone = ["--model", model, "--arch", "ps", "--bandwidth", "300Mbit", "--workers", "4", "--json"]
    capsys.readouterr()
    assert run(["compare", *alone, "--tuners", "default,random", "--seeds", "1", "--budget", "2"]) == 0
    theirs: dict[str, Any] = json.loads(capsys.readouterr().out)
    rows = table[table["comparison"] == "ps"].set_index("tuner")
    for tuner in theirs["tuners"]:
        assert rows.loc[tuner["name"], "samples_per_s"] == tuner["samples_per_s"]
        assert rows.loc[tuner["name"], "regret"] == tuner["regret"]
    page = (swept / "out" / "report.html").read_text()
    assert all(f"{name}/report.html" in page for name in table["comparison"].unique())


def test_a_dask_cluster_makes_what_is_missing_and_leaves_the_rest_alone(swept: Path) -> None:
    out, script = swept / "out", Path(__file__).parents[1] / "on_dask.py"
    before = pd.read_parquet(out / "sweep.parquet")
    for path in (out / "ps").glob("[cr]*"):
        path.unlink()
    finished = (out / "allreduce" / "compare.json").stat().st_mtime_ns
    command = [
        sys.executable,
        str(script),
        "compare",
        "--sweep",
        str(swept / "jobs.toml"),
        "--out",
        str(out),
        "--json",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)["rows"]
    assert [row["samples_per_s"] for row in rows] == before["samples_per_s"].tolist()
    assert (out / "allreduce" / "compare.json").stat().st_mtime_ns == finished
    assert (out / "ps" / "results.sqlite").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cows = 3", "'cows' is unknown; a sweep has model, arch"),
        ("clip = 1", "clip.0: Input should be a valid boolean (got 1)"),
        ("jitter = []", "jitter: List should have at least 1 item"),
        ("slowdown = [", "is not TOML"),
        ('latency = "soon"', "'soon'"),
        ('scenario = "nowhere.toml"', "nowhere.toml"),
        ("policy = 'auto'", "policy 'auto' chooses among the others"),
        ("retune = 'always'", "always"),
    ],
)
def test_what_a_file_cannot_say(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str) -> None:
    out = tmp_path / "out"
    assert run(["compare", "--sweep", str(written(tmp_path, SWEEP + text)), "--out", str(out)]) != 0
    said = capsys.readouterr().err
    assert words in said
    assert len(said.strip().splitlines()) == 1
    assert not out.exists()


def test_the_file_in_the_docs_makes_the_comparisons_that_they_print(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    text = page[page.index("```toml\nmodel") + len("```toml\n") :]
    specs = SweepFile.load(written(tmp_path, text[: text.index("```")])).specs()
    assert len(specs) == 8
    assert all(f"\n{name} " in page for name in specs)


def test_options_that_do_not_go_with_a_sweep(swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out, strange = str(swept / "jobs.toml"), str(swept / "out"), tmp_path / "strange"
    other = written(tmp_path, SWEEP.replace("budget = 2", "budget = 3"))
    (strange / "allreduce").mkdir(parents=True)
    (strange / "allreduce" / "poem.txt").touch()
    for words, said in (
        (["--sweep", file], "with --out"),
        (
            ["--sweep", file, "--out", out, "--gpus-per-node", "2"],
            "write gpus_per_node = … there, not --gpus-per-node",
        ),
        (["--jobs", "2", "--model", "vgg16"], "add --sweep, or leave --jobs out"),
        ([], "--model, or a file of many jobs with --sweep"),
        (["--sweep", str(other), "--out", out], "holds a comparison with budget = 2, not 3"),
        (["--sweep", file, "--out", str(strange)], "holds something else (poem.txt)"),
    ):
        assert run(["compare", *words]) != 0
        assert said in capsys.readouterr().err


def test_objectives_are_swept_and_their_scores_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wish = "throughput=0.5,latency=0.4,cost=0.1"
    text = SWEEP.replace('["allreduce", "ps"]', '"ps"') + f'objective = ["1,0,0", "{wish}"]\n'
    both = SweepFile.load(written(tmp_path, text)).specs().values()
    assert [spec["objective"] for spec in both] == ["1,0,0", wish]
    alone = written(tmp_path, text.replace('"1,0,0", ', ""))
    assert run(["compare", "--sweep", str(alone), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    table = pd.read_parquet(tmp_path / "out" / "sweep.parquet")
    assert table["job_objective"].unique().tolist() == [wish]
    assert "regret" not in printed
    assert all(f"{score:.3f}" in printed for score in table["score"])


def test_an_objective_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "compare",
        "--sweep",
        str(written(tmp_path, SWEEP + 'objective = "1,1,0"\n')),
        "--out",
        str(tmp_path / "o"),
    ]
    assert run(words) == 2
    assert "weights must sum to 1, got ⟨1, 1, 0⟩ with sum 2; write 0.5, 0.5, 0" in capsys.readouterr().err
