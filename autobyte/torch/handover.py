"""Hands gradients over to PyTorch's own reducer where DDP's buckets stay, and takes them back."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from autobyte.internals import uncompiled
from autobyte.torch.exchange.training import Training
from autobyte.torch.model.hooks import Hook
from autobyte.torch.model.step import tensors_in
from autobyte.torch.model.updates import Updates


class Handover:
    """While gradients are handed over, a step costs what DDP's costs: one hook is left, on the model as a whole.

    Args:
        model: the user's.
        training: whose gradients they are.
        updates: of the layers, which have hooks of their own while they are not handed over.
        measure: sets hooks that time layers.
        hooked: whether the model may have hooks.
        later: whether steps are still compared, on all ranks alike.
    """

    def __init__(
        self,
        model: nn.Module,
        training: Training,
        updates: Updates,
        *,
        measure: Callable[[], list[RemovableHandle]],
        hooked: Callable[[], bool],
        later: Callable[[], bool],
    ) -> None:
        self._model = model
        self._training = training
        self._updates = updates
        self._measure = measure
        self._hooked = hooked
        self._later = later
        self._marks = measure()
        self._watch: RemovableHandle | None = None
        training.before_replan = self.take_back

    @property
    def active(self) -> bool:
        """Whether gradients are handed over."""
        return self._training.exchange.reduction is not None

    def hand_over(self) -> bool | None:
        """Let gradients go by the reducer from the next step on. Collective.

        Returns:
            whether all ranks can; None if they can later at most.
        """
        if self._later():
            return None
        training = self._training
        able = torch.tensor([training.reducible and self._hooked()], dtype=torch.uint8, device="cpu")
        if not training.control.gather(able).all():
            return False
        self._updates.settle()
        self._updates.detach()
        self.remove()
        training.hand_over()
        self._watch = self._model.register_forward_hook(Hook(uncompiled(self._returned)))
        return True

    def take_back(self) -> None:
        """Let gradients go by blocks again from the next step on; all ranks must between the same two steps."""
        if not self.active:
            return
        self.remove()
        self._training.exchange.take_back()
        if self._hooked():
            self._updates.attach()
            self._marks = self._measure()

    def remove(self) -> None:
        """Take the hooks on forward passes away."""
        for hook in (*self._marks, *([] if self._watch is None else [self._watch])):
            hook.remove()
        self._marks, self._watch = [], None

    def _returned(self, _module: nn.Module, _arguments: object, outputs: object) -> None:
        reduction = self._training.exchange.reduction
        if reduction is not None and torch.is_grad_enabled():
            reduction.watch(tensors_in(outputs))
