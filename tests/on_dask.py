"""Run by a test in a process of its own: a command on a local Dask cluster of one worker process."""

import sys

from distributed import Client, LocalCluster

from autobyte.cli import run

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        sys.exit(run([*sys.argv[1:], "--dask", cluster.scheduler_address]))
