"""Training with Keras 3: `import autobyte.keras as ab`, and `ab.distribute(model)` between `compile` and `fit`.

    model.compile(optimizer="adam", loss="mse")
    ab.distribute(model)
    model.fit(...)                             # unchanged; each rank has its own part of the data

Keras computes with one backend per process, and that decides what is loaded here: `tensorflow/`, where gradients
leave from within TensorFlow's dataflow, or `torch/`, an adapter to `autobyte.torch`. JAX is refused.

    wrap.py         `distribute` and `DistributedGradientTape`: arguments, versions, the backend
    callbacks.py    `BroadcastGlobalVariables`, `MetricAverage`, `LearningRateWarmup`
    processes.py    rank and size of this process, what ranks say to each other beside gradients
    wrapped.py      `Wrapped`: what `distribute` returns
"""

from autobyte.config import Config, Space
from autobyte.exchange.control import CommunicationError
from autobyte.exchange.tuning.callback import WindowReport
from autobyte.exchange.tuning.report import Report
from autobyte.keras.callbacks import BroadcastGlobalVariables, LearningRateWarmup, MetricAverage
from autobyte.keras.processes import broadcast_variables, rank, size
from autobyte.keras.wrap import DistributedGradientTape, distribute
from autobyte.keras.wrapped import Wrapped

__all__ = [
    "BroadcastGlobalVariables",
    "CommunicationError",
    "Config",
    "DistributedGradientTape",
    "LearningRateWarmup",
    "MetricAverage",
    "Report",
    "Space",
    "WindowReport",
    "Wrapped",
    "broadcast_variables",
    "distribute",
    "rank",
    "size",
]
