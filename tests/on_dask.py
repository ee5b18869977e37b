"""Run by a test in a process of its own: a command, or a script, on a local Dask cluster of one worker process."""

import runpy
import sys
from pathlib import Path

from distributed import Client, LocalCluster

from autobyte.cli import run

if __name__ == "__main__":
    what, *given = sys.argv[1:]
    sys.path.insert(0, str(Path(what).parent))  # before there are workers: a script's functions are found there
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        given += ["--dask", cluster.scheduler_address]
        if not what.endswith(".py"):
            sys.exit(run([what, *given]))
        sys.argv = [what, *given]
        runpy.run_path(what, run_name="__main__")
