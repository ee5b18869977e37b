"""AutoByte: faster data-parallel training on slow networks, by scheduling its communication.

Most users need `autobyte.torch` or the command `autobyte`. This package is organised in floors: a module imports only
from floors below its own, and `make check` enforces it.

    6  cli                       the commands
       bench                     measurements on the testbed: schedulers, policies, grids, calibration
       congestion                one congestion control for many objectives, on simulated links and real ones
       testbed                   emulated hosts (network namespaces) on links of given rates
    5  keras                     training with Keras 3, on TensorFlow or PyTorch
       mxnet                     training with MXNet's Gluon
       integrations              the loops of other libraries: Accelerate, Trainer, Lightning
       torch                     training with PyTorch; measuring models and engines
       comparison                tuners or policies side by side, on simulated jobs
       testing                   contract tests for tuners, policies and engines; engines that fail on purpose
    4  exchange                  what every front end stands on: the link to other ranks, sessions, tuning
       tuning                    the loop: measure a window, tell the tuner, ask it, switch
       consultation              a tuner in a thread of its own
       prediction                the simulation that some tuners are given
       retuning                  searching again after a change
       best                      which config was fastest so far
    3  tuners                    algorithms that choose the next config
       simulator                 training in virtual time
    2  nets                      the neural network of the tuner `metanet`
       scheduler                 blocks, plans, policies, engines, and the core that orders blocks
    1  features                  the numbers that describe a running job to the network
       models                    layers of known models, profiles of others
    0  job  config  scenario     what is trained, with which settings, and what changes meanwhile
       trace  results  bound     measurements, their database, and the least time that a step can take
       breakdown  explain        where the time of a step goes, and what to try
       registry  units  errors   names of tuners and policies, sizes with units, error messages
       notebooks  compiling      tables in notebooks, and a word before the first compilation
       compilations              what is compiled in the background, and its end with the process
       weights                   wishes as weights that sum to 1
       internals                 what is used of PyTorch that PyTorch does not promise to keep

Begin reading in `autobyte/scheduler/core.py`. It decides which block travels next, and knows no tensor, clock, thread
or socket. The same core runs in the simulator and in training.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autobyte.comparison.compare import Comparison, compare
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

__version__ = "0.1.0"

_PLACES = {
    "AutoByteError": "errors",
    "Cluster": "job",
    "Comparison": "comparison.compare",
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
    "compare": "comparison.compare",
    "make_plan": "scheduler.policies.base",
    "simulate": "simulator.simulate",
    "tune": "tuning",
}

__all__ = [
    "AutoByteError",
    "Cluster",
    "Comparison",
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
    "compare",
    "make_plan",
    "simulate",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: `import autobyte` alone loads nothing."""
    if name not in _PLACES:
        raise AttributeError(f"module 'autobyte' has no attribute '{name}'")
    return getattr(importlib.import_module(f"autobyte.{_PLACES[name]}"), name)
