"""What Lightning's two strategies share: an optimizer that is handed a closure, and a module whose call is a step."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import LBFGS

from autobyte.torch import DistributedOptimizer


class ClosureFirst(DistributedOptimizer):
    """What Lightning steps: it hands the pass of a batch to `step`, as a closure that is evaluated once.

    The closure comes first, and the step without it, so that updates may wait for the next forward pass. LBFGS
    evaluates a closure several times, and is handed it. Lightning and Fabric put an object around the optimizer that
    takes its class, and looks up here what it does not have.
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Evaluate the closure, which does forward and backward pass and clips; then update without it."""
        if closure is None or isinstance(self.__dict__["_optimizer"], LBFGS):
            return super().step(closure)
        result = closure()
        super().step()
        return result

    def _turn_off(self) -> None:
        inner = self.__dict__["_optimizer"]
        if isinstance(inner, DistributedOptimizer):  # this is the object around it
            inner._turn_off()
        else:
            super()._turn_off()


class CalledModule(nn.Module):
    """A module around a LightningModule, for the hooks of one training step.

    Args:
        module: the user's.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the module, of which Lightning has made a training step meanwhile."""
        return self.module(*arguments, **keywords)


def bare(optimizer: Any) -> Any:
    """The optimizer within the objects that Lightning and Fabric put around it."""
    while isinstance(optimizer, DistributedOptimizer) and isinstance(
        optimizer.__dict__["_optimizer"], DistributedOptimizer
    ):
        optimizer = optimizer.__dict__["_optimizer"]
    return optimizer
