"""What parameters and optimizer state were before an update: a step that cannot be finished is undone."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autobyte.internals import copy_each
from autobyte.torch.model.pending import state_of

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
        self._states: dict[nn.Parameter, dict[str, Any] | None] = {}  # of the parameters that are kept
        self._copies: dict[nn.Parameter, dict[str, _Copy]] = defaultdict(dict)
        self._batches: dict[tuple[torch.device, torch.dtype], _Batch] = defaultdict(lambda: _Batch([], []))

    def __len__(self) -> int:
        """Parameters that are kept."""
        return len(self._states)

    def keep(self, parameters: Iterable[nn.Parameter]) -> None:
        """Copy parameters, and the state that the optimizer has for them."""
        states = state_of(self._optimizer)
        for parameter in parameters:
            copies, state = self._copies[parameter], states.get(parameter)
            self._copy(parameter, copies, _OWN)
            self._states[parameter] = (
                None if state is None else {key: self._kept(value, copies, key) for key, value in state.items()}
            )
        for batch in self._batches.values():
            batch.make()

    def bring_back(self) -> None:
        """Make parameters and state what they were when they were kept, and let go of the copies."""
        states = state_of(self._optimizer)
        for parameter, state in self._states.items():
            parameter.copy_(self._copies[parameter][_OWN].tensor)
            states.pop(parameter, None)
            if state is not None:
                states[parameter] = state
        self.forget()
        self.release()  # what was room is the state now

    def forget(self) -> None:
        """Let go of the copies: the step is whole."""
        self._states.clear()

    def release(self) -> None:
        """Let go of memory that is kept for copies, too."""
        self._copies.clear()
        self._batches.clear()

    def _kept(self, value: Any, copies: "dict[str, _Copy]", key: str) -> Any:
        if isinstance(value, Tensor):
            return self._copy(value, copies, key)
        return list(value) if isinstance(value, list) else value

    def _copy(self, tensor: Tensor, copies: "dict[str, _Copy]", key: str) -> Tensor:
        """A tensor's copy, in memory that is there from a step before if it fits; `keep` fills it."""
        kept = copies.get(key)
        if kept is None or not kept.fits(tensor):
            room = torch.empty_like(tensor, requires_grad=False)
            kept = copies[key] = _Copy(room, self._batches[tensor.device, tensor.dtype])
        kept.batch.targets.append(kept.tensor)
        kept.batch.sources.append(tensor)
        return kept.tensor


class _Batch(NamedTuple):
    """What is copied in one call: tensors of one device and dtype."""

    targets: list[Tensor]
    sources: list[Tensor]

    def make(self) -> None:
        """Fill the targets."""
        if self.targets:
            copy_each(self.targets, self.sources)
            self.targets.clear()
            self.sources.clear()


class _Copy(NamedTuple):
    """Where a tensor's copy lies, step after step, and with what it is made."""

    tensor: Tensor
    batch: _Batch

    def fits(self, tensor: Tensor) -> bool:
        """Whether it is like another tensor, which may have come in the place of the one that was copied before."""
        own = self.tensor
        return own.dtype is tensor.dtype and own.shape == tensor.shape and own.device == tensor.device
