"""What parameters and optimizer state were before an update: a step that cannot be finished is undone."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autobyte.internals import copy_each

_OWN = ""  # the key of a parameter's own copy among those of its state


class Former:
    """Copies of what updates are about to change.

    >>> former = Former(optimizer)
    >>> former.keep(model.parameters())
    >>> optimizer.step()
    >>> former.bring_back()                    # parameters and state are what they were

    Tensors are copied on their devices. Lists in the state are copied without what is in them: LBFGS adds tensors to
    its lists and takes them out, and does not change them.

    The memory of copies stays for the next step: to ask the system for it again costs more than to copy.

    Args:
        optimizer: its state is kept, too.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters: dict[nn.Parameter, Tensor] = {}
        self._states: dict[nn.Parameter, dict[str, Any] | None] = {}
        self._room: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)

    def __len__(self) -> int:
        """Parameters that are kept."""
        return len(self._parameters)

    def keep(self, parameters: Iterable[nn.Parameter]) -> None:
        """Copy parameters, and the state that the optimizer has for them."""
        copies = _Copies()
        for parameter in parameters:
            room, state = self._room[parameter], self._optimizer.state.get(parameter)
            self._parameters[parameter] = copies.of(parameter, room, _OWN)
            self._states[parameter] = (
                None if state is None else {key: _kept(value, copies, room, key) for key, value in state.items()}
            )
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
        self.release()  # what was room is the state now

    def forget(self) -> None:
        """Let go of the copies: the step is whole."""
        self._parameters.clear()
        self._states.clear()

    def release(self) -> None:
        """Let go of memory that is kept for copies, too."""
        self._room.clear()


class _Copies:
    """Copies of many tensors, made in one call for each device and dtype."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = defaultdict(
            lambda: ([], [])
        )

    def of(self, tensor: Tensor, room: dict[str, Tensor], key: str) -> Tensor:
        """A tensor's copy, in room that is there from a step before if it fits; `make` fills it."""
        device, dtype, copy = tensor.device, tensor.dtype, room.get(key)
        if copy is None or copy.shape != tensor.shape or copy.dtype != dtype or copy.device != device:
            copy = room[key] = torch.empty_like(tensor, requires_grad=False)
        targets, sources = self._pairs[device, dtype]
        targets.append(copy)
        sources.append(tensor)
        return copy

    def make(self) -> None:
        """Fill the copies."""
        for targets, sources in self._pairs.values():
            copy_each(targets, sources)


def _kept(value: Any, copies: _Copies, room: dict[str, Tensor], key: str) -> Any:
    if isinstance(value, Tensor):
        return copies.of(value, room, key)
    return list(value) if isinstance(value, list) else value
