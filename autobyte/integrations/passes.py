"""Backward passes of one step that follow on each other: DDP averages after each, and adds the next to averages."""

from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from autobyte.torch import DistributedOptimizer
from autobyte.torch.model.pending import as_they_are


def before_backward(loss: Any, optimizer: DistributedOptimizer) -> None:
    """Wait for the averages of a step that is open, if a backward pass is about to add to one of its gradients.

    Args:
        loss: from which the pass will begin.
        optimizer: whose gradients may travel.
    """
    training = optimizer.training
    if training is None or not training.exchange.begun:
        return
    with as_they_are():
        held = {id(each) for each in training.exchange.parameters.values() if each.grad is not None}
    if held and reaches(loss, held):  # else the step was given up, or the pass completes other gradients of it
        optimizer.synchronize()


def reaches(loss: Any, parameters: set[int]) -> bool:
    """Whether a backward pass may add to a gradient of these; a function in Python may hide a graph of its own."""
    nodes: list[Any] = [loss.grad_fn if isinstance(loss, Tensor) else None]
    seen: set[Any] = {None}
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction) or id(getattr(node, "variable", None)) in parameters:
            return True
        nodes += [following for following, _ in node.next_functions]
    return False
