"""`pytest --benchmark` runs the benchmarks and nothing else; without it they are left out."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
FILES = (HERE / "benchmarks" / "test_reconfiguration.py", HERE / "test_units.py")


# A worker of xdist tells what it starts that it is one, and no benchmark runs there
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}


def collected(*options: str) -> str:
    command = [sys.executable, "-m", "pytest", *FILES, "--collect-only", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent, env=ENVIRONMENT)
    return done.stdout


def test_the_flag_chooses_benchmarks() -> None:
    without, with_flag, only = collected(), collected("--benchmark"), collected("--benchmark-only")
    assert "test_units.py::" in without
    assert "test_reconfiguration.py::" not in without
    assert "test_units.py::" not in with_flag
    assert "test_reconfiguration.py::test_a_hot_switch_costs_less_than_a_step" in with_flag
    assert [line for line in only.splitlines() if "::" in line] == [
        line for line in with_flag.splitlines() if "::" in line
    ]


def ran(*options: str) -> str:
    command = [sys.executable, "-m", "pytest", "--benchmark", "-p", "no:cacheprovider", *options]
    only = f"{FILES[0]}::test_one_decision_takes_less_than_a_window[random]"
    command.append(only)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent, env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


def test_its_json_and_its_comparison_are_pytest_benchmarks(tmp_path: Path) -> None:
    out, storage = tmp_path / "run.json", f"--benchmark-storage=file://{tmp_path}"
    ran(f"--benchmark-json={out}", storage, "--benchmark-save=first")
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    assert benchmark["stats"]["rounds"] == 5
    assert benchmark["stats"]["median"] > 0
    table = ran(storage, "--benchmark-compare=0001")
    assert "(0001_first)" in table
    assert "(NOW)" in table
