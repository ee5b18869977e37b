"""Whoever waits for the first compilation is told why, once."""

import os
import subprocess
import sys
from pathlib import Path

import autobyte

PACKAGE = Path(autobyte.__file__).parent

SCRIPT = """
import numpy as np
from autobyte.scheduler.policies import published  # compiles when it is called
from autobyte import compiling
function = compiling.njit(cache=True)(compiling.njit(lambda x: x + 1).py_func)
function.py_func.__module__ = "autobyte.made_here"
function(1)
function(1.0)
"""


def test_the_first_compilation_says_what_it_does(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, script], env=environ, check=True, capture_output=True, text=True, timeout=200
    )
    assert done.stderr == "compiling the simulator for this machine: up to a minute, once\n"


def test_other_peoples_compilations_are_not_ours(tmp_path: Path) -> None:
    words = "from autobyte import compiling; compiling.njit(lambda x: x + 1)(1)"
    done = subprocess.run([sys.executable, "-c", words], check=True, capture_output=True, text=True, timeout=200)
    assert done.stderr == ""


HOMELESS = """
from autobyte import compiling
import keeps_nothing
print(keeps_nothing.twice(2.0), keeps_nothing.thrice(2.0))
"""
MODULE = """
from autobyte.compiling import njit

@njit(cache=True)
def twice(x: float) -> float:
    return 2 * x

@njit(cache=True, nogil=True)
def thrice(x: float) -> float:
    return twice(x) + x
"""


def test_code_runs_where_nothing_can_be_kept(tmp_path: Path) -> None:
    """Neither beside the module nor in the home folder; files stand in the way, for root may write everywhere."""
    (tmp_path / "__pycache__").touch()
    (tmp_path / "home").touch()
    (tmp_path / "keeps_nothing.py").write_text(MODULE)
    (tmp_path / "script.py").write_text(HOMELESS)
    environ = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environ |= {name: str(tmp_path / "home") for name in ("HOME", "XDG_CACHE_HOME")}
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, check=False, env=environ, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (0, "4.0 6.0\n"), done.stderr
    assert done.stderr == (
        f"cannot keep compiled code, so every start compiles it again: neither {PACKAGE} nor the home folder can be "
        "written; set NUMBA_CACHE_DIR to a folder that can\n"
    )
    environ |= {"NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.stderr) == ("4.0 6.0\n", "")
    assert list((tmp_path / "kept").rglob("*.nbc"))
