"""Whoever waits for the first compilation is told why, once."""

import os
import subprocess
import sys
from pathlib import Path

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
