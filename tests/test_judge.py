"""Tuners are judged in processes of this machine or on a Dask cluster, alike, and what is there stays."""

import subprocess
import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
SCRIPT = HERE.parent / "tools" / "judge_tuners.py"
CPU = "cpu_s"
WHAT = ["replay", "--tuners", "default", "--seeds"]


def judged(*command: str | Path) -> None:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]


def rows(folder: Path) -> list[tuple[object, ...]]:
    """What was judged, but for CPU times."""
    table = pd.read_csv(folder / "judge_replay.csv").drop(columns=CPU)
    return list(table.itertuples(index=False, name=None))


def test_a_dask_cluster_judges_as_processes_here_do_and_goes_on(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    judged(SCRIPT, *WHAT, "2", "--jobs", "1", "--out", here)
    judged(SCRIPT, *WHAT, "1", "--jobs", "1", "--out", there)
    begun = rows(there)
    judged(HERE / "on_dask.py", SCRIPT, *WHAT, "2", "--out", there)
    assert rows(there)[: len(begun)] == begun
    assert len(rows(there)) == 2 * len(begun) == 24
    assert sorted(rows(there)) == sorted(rows(here))
