"""A process that ends waits for no compilation."""

import os
import subprocess
import sys
import time
from pathlib import Path

ENDS = """
import threading
import time
from autobyte import Cluster, Job, compilations
from autobyte.models import load
from autobyte.simulator.choose import candidates
from autobyte.simulator.landscape import survey

job = Job(load("alexnet"), Cluster.uniform(2, 1.25e8))
threading.Thread(target=survey, args=(job, candidates(job)), daemon=True).start()
while not compilations.is_compiling():
    time.sleep(0.01)
print(time.time(), flush=True)
"""


def test_a_process_ends_while_something_is_compiled_in_the_background(tmp_path: Path) -> None:
    """All of it takes 8 s alone, and up to a minute on a busy machine; a pass of the compiler takes 2 s at most."""
    environ = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", ENDS], env=environ, check=True, capture_output=True, text=True, timeout=200
    )
    ended_s = time.time() - float(done.stdout)
    assert done.stderr == "compiling the simulator for this machine: up to a minute, once\n"
    assert not list((tmp_path / "cache").glob("*/loop.[rl]*")), "it was compiled to the end"
    print(f"ended {ended_s:.1f} s after the script")
