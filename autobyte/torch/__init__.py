"""Training with PyTorch: `import autobyte.torch as ab`, and two changed lines."""

from autobyte.config import Config, Space
from autobyte.torch.control import CommunicationError
from autobyte.torch.emulate import emulate
from autobyte.torch.optimizer import DistributedOptimizer, report
from autobyte.torch.report import Report
from autobyte.torch.serving import serve

__all__ = ["CommunicationError", "Config", "DistributedOptimizer", "Report", "Space", "emulate", "report", "serve"]
