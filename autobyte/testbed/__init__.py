"""Hosts in network namespaces, on links of given rates: a network to train on, on one Linux machine.

namespaces.py   who may make them, whose they are, what a killed run has left
hosts.py        hosts, the switch between them, the rates of their links
launch.py       a command on every host, as torchrun would start it
"""

from autobyte.testbed.hosts import Testbed
from autobyte.testbed.launch import Finished, Launch, LaunchError
from autobyte.testbed.namespaces import TestbedError

__all__ = ["Finished", "Launch", "LaunchError", "Testbed", "TestbedError"]
