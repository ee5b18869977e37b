"""Ranks whose inputs end early: they keep the others company, step by step, and take over what these have learned."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import JoinHook
from torch.optim import Optimizer

from autobyte.exchange.control import Control


class Company(JoinHook):
    """What a rank without inputs does in `torch.distributed.algorithms.join.Join`.

    Its gradients are zeros, and averages are still taken over all ranks, as DDP does by default. At the end all ranks
    have the parameters, buffers, optimizer state and learning rates of one that had inputs to the last. (DDP leaves
    the optimizer's state behind: the next epoch then drives ranks apart.)

    Args:
        control: of the training; None where AutoByte is off.
        step: does the communication of one step, with nothing to send.
        follow: takes over what a rank has learned, which is named by its place in the group. Collective.
    """

    def __init__(self, control: Control | None, *, step: Callable[[], None], follow: Callable[[int], None]) -> None:
        self._control = control
        self._step = step
        self._follow = follow

    def main_hook(self) -> None:
        """The others do a step."""
        self._step()

    def post_hook(self, is_last_joiner: bool) -> None:
        """All inputs have ended: follow the highest rank among those whose inputs ended last."""
        if self._control is None:
            return
        last = self._control.gather(torch.tensor([is_last_joiner], dtype=torch.uint8, device="cpu")).flatten()
        self._follow(int(last.nonzero().max()))


def is_sharded(optimizer: Optimizer) -> bool:
    """Whether each rank has state for a part of the parameters only, and `step()` is collective."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__)


@torch.no_grad()
def share_everything(model: nn.Module, optimizer: Optimizer, control: Control, *, source: int) -> None:
    """Send one rank's parameters, buffers, optimizer state and hyper-parameters to all others. Collective."""
    tensors = (*model.parameters(), *model.buffers())
    control.send_each((("parameters", tensor.data) for tensor in tensors), source=source)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = control.share([_describe(optimizer.state.get(parameter, {})) for parameter in parameters], source=source)
    held = []
    for parameter, described in zip(parameters, states, strict=True):
        state = optimizer.state[parameter] if described else {}
        for key, value in described.items():
            if not isinstance(value, dict):
                state[key] = value
                continue
            if key not in state:
                device = parameter.device if value["here"] else "cpu"
                state[key] = torch.empty(value["shape"], dtype=getattr(torch, value["dtype"]), device=device)
            held.append(("the optimizer's state", state[key]))
    control.send_each(held, source=source)
    groups = control.share([numbers_of(group) for group in optimizer.param_groups], source=source)
    for group, numbers in zip(optimizer.param_groups, groups, strict=True):
        for key, value in numbers.items():
            if isinstance(group[key], Tensor):
                group[key].fill_(value)
            else:
                group[key] = tuple(value) if isinstance(value, list) else value


def numbers_of(group: dict[str, Any]) -> dict[str, Any]:
    """A group's hyper-parameters that are numbers, which schedulers change."""
    plain = {
        key: value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        for key, value in group.items()
    }
    kinds = (int, float)
    return {
        key: value
        for key, value in plain.items()
        if isinstance(value, kinds) or (isinstance(value, tuple) and all(isinstance(part, kinds) for part in value))
    }


def _describe(state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state of one parameter, for JSON: plain values, and what tensors are like."""
    return {
        key: {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "here": value.device.type != "cpu",
        }
        if isinstance(value, Tensor)
        else value
        for key, value in state.items()
    }
