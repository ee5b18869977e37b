"""AutoByte: communication scheduling for data-parallel training, tuned while training runs.

A module imports only from floors below its own; `make check` enforces it.

    6  cli                       the commands
       testbed                   hosts in network namespaces, on links of given rates
    5  torch  comparison         measuring real models | tuners side by side
       testing                   contract tests for tuners and engines, fakes
    4  tuning                    the loop: window -> tell -> ask -> switch
       consultation  best        a tuner in its own thread | which config did best
       prediction  retuning      what the twin is handed | searching again after a change
    3  tuners  simulator         ways to choose the two knobs | training in virtual time
    2  nets  scheduler           the meta-network | blocks, plans, the core that orders them, policies, engines
    1  features  models          what a network is told of a job | layer tables of known networks, profiles
    0  results  scenario  trace  what was measured
       bound  job  config        what is trained, and how
       internals                 what is used of PyTorch's that it does not promise to keep

The core is `autobyte/scheduler/core.py`: it decides, and knows no tensor, clock, thread or socket. The same core runs
in the simulator and on real engines.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autobyte.config import Config, Space
    from autobyte.errors import AutoByteError
    from autobyte.job import Cluster, Job, Layer, Model, Tensor
    from autobyte.scenario import Scenario
    from autobyte.scheduler.plan import Plan
    from autobyte.scheduler.policies.base import Policy, make_plan
    from autobyte.simulator.simulate import simulate
    from autobyte.simulator.world import World
    from autobyte.trace import Measurement
    from autobyte.tuners.base import Tuner
    from autobyte.tuning import tune

_PLACES = {
    "AutoByteError": "errors",
    "Cluster": "job",
    "Config": "config",
    "Job": "job",
    "Layer": "job",
    "Measurement": "trace",
    "Model": "job",
    "Plan": "scheduler.plan",
    "Policy": "scheduler.policies.base",
    "Scenario": "scenario",
    "Space": "config",
    "Tensor": "job",
    "Tuner": "tuners.base",
    "World": "simulator.world",
    "make_plan": "scheduler.policies.base",
    "simulate": "simulator.simulate",
    "tune": "tuning",
}

__all__ = [
    "AutoByteError",
    "Cluster",
    "Config",
    "Job",
    "Layer",
    "Measurement",
    "Model",
    "Plan",
    "Policy",
    "Scenario",
    "Space",
    "Tensor",
    "Tuner",
    "World",
    "make_plan",
    "simulate",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: `import autobyte` alone loads nothing."""
    if name not in _PLACES:
        raise AttributeError(f"module 'autobyte' has no attribute '{name}'")
    return getattr(importlib.import_module(f"autobyte.{_PLACES[name]}"), name)
