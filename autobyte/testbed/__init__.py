"""Hosts in network namespaces, on links of given rates: a network to train on, on one Linux machine.

namespaces.py   who may make them, whose they are, what a killed run has left
hosts.py        hosts, the switch between them, the rates of their links
launch.py       a command on every host, as torchrun would start it
gpu.py          one GPU that all ranks share: NCCL's settings, and the daemon that it takes
rig.py          hosts and that GPU for one launch after the other; or CPUs, to rehearse
"""

from autobyte.testbed.gpu import SharedGpu
from autobyte.testbed.hosts import Testbed
from autobyte.testbed.launch import Finished, Launch, LaunchError
from autobyte.testbed.namespaces import TestbedError

__all__ = ["Finished", "Launch", "LaunchError", "SharedGpu", "Testbed", "TestbedError"]
