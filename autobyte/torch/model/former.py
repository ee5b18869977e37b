"""What parameters and optimizer state were before an update: a step that cannot be finished is undone."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autobyte.internals import copy_each


class Former:
    """Copies of what updates are about to change.

    >>> former = Former(optimizer)
    >>> former.keep(model.parameters())
    >>> optimizer.step()
    >>> former.bring_back()                    # parameters and state are what they were

    Tensors are copied on their devices. Lists in the state are copied without what is in them: LBFGS adds tensors to
    its lists and takes them out, and does not change them.

    Args:
        optimizer: its state is kept, too.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters: dict[nn.Parameter, Tensor] = {}
        self._states: dict[nn.Parameter, dict[str, Any] | None] = {}

    def __len__(self) -> int:
        """Parameters that are kept."""
        return len(self._parameters)

    def keep(self, parameters: Iterable[nn.Parameter]) -> None:
        """Copy parameters, and the state that the optimizer has for them."""
        copies = _Copies()
        for parameter in parameters:
            self._parameters[parameter] = copies.of(parameter)
            state = self._optimizer.state.get(parameter)
            self._states[parameter] = None if state is None else {key: _kept(v, copies) for key, v in state.items()}
        copies.make()

    def bring_back(self) -> None:
        """Make parameters and state what they were when they were kept, and let go of the copies."""
        for parameter, value in self._parameters.items():
            parameter.copy_(value)
        for parameter, state in self._states.items():
            self._optimizer.state.pop(parameter, None)
            if state is not None:
                self._optimizer.state[parameter] = state
        self.forget()

    def forget(self) -> None:
        """Let go of the copies: the step is whole."""
        self._parameters.clear()
        self._states.clear()


class _Copies:
    """Copies of many tensors, made in one call for each device and dtype."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, Tensor]]] = defaultdict(list)

    def of(self, tensor: Tensor) -> Tensor:
        """Room for a tensor's copy; `make` fills it."""
        room = torch.empty_like(tensor, requires_grad=False)
        self._pairs[tensor.device, tensor.dtype].append((room, tensor))
        return room

    def make(self) -> None:
        """Fill the copies."""
        for pairs in self._pairs.values():
            copy_each([room for room, _ in pairs], [tensor for _, tensor in pairs])


def _kept(value: Any, copies: _Copies) -> Any:
    if isinstance(value, Tensor):
        return copies.of(value)
    return list(value) if isinstance(value, list) else value
