"""Training with PyTorch: `import autobyte.torch as ab`, and two changed lines."""

from autobyte.config import Config, Space
from autobyte.torch.exchange.control import CommunicationError
from autobyte.torch.exchange.serving import serve
from autobyte.torch.optimizer import DistributedOptimizer, report
from autobyte.torch.profiling.emulate import emulate
from autobyte.torch.tuning.report import Report

__all__ = ["CommunicationError", "Config", "DistributedOptimizer", "Report", "Space", "emulate", "report", "serve"]
