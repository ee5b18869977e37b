"""Compile what `policy="auto"` simulates with, into Numba's cache: no training that is timed waits for that.

python tools/gpu/compiled.py
"""

from autobyte.job import Cluster, Job
from autobyte.models import load
from autobyte.simulator.choose import shortlist

if __name__ == "__main__":
    shortlist(Job(load("vgg16"), Cluster.uniform(4, 6e8)))
