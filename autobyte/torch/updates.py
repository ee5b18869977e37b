"""Optimizer steps layer by layer: each layer's parameters are updated when its forward pass is about to need them."""

import copy
import sys
import time
from collections.abc import Callable, Container, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)
from torch.utils.hooks import RemovableHandle

from autobyte.errors import InputError
from autobyte.torch.layers import CalledLayer
from autobyte.torch.times import LayerTimes

Hook = Callable[[nn.Module, object], None]

#: Optimizers that treat every element by itself and keep state per parameter: layer by layer gives the same.
ELEMENTWISE = (ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, Rprop)


class Updates:
    """Which layers' updates are due, and when they are taken.

    Args:
        optimizer: the user's.
        wait: waits until gradients, by name, are averaged and in place.
    """

    def __init__(self, optimizer: Optimizer, wait: Callable[[Iterable[str]], None]) -> None:
        self.times: LayerTimes | None = None
        self._optimizer = optimizer
        self._wait = wait
        self._layers: list[_LayerUpdate] = []
        self._due = 0
        self._hooks: list[RemovableHandle] = []

    @property
    def ready(self) -> bool:
        """Whether layers are known."""
        return bool(self._layers)

    def install(self, layers: Iterable[CalledLayer], names: Container[str]) -> None:
        """Take the layers' updates from now on in their forward pre-hooks."""
        for index, layer in enumerate(layers):
            held = {name: parameter for name, parameter in layer.parameters if name in names}
            update = _LayerUpdate(self._optimizer, held)
            self._layers.append(update)
            hook = uncompiled(self._on_call(update, index))
            self._hooks.append(layer.module.register_forward_pre_hook(hook, prepend=True))

    def plan(self) -> None:
        """`step()` was called: every layer's update is due, with the hyper-parameters of now."""
        hyper = [{k: v for k, v in group.items() if k != "params"} for group in self._optimizer.param_groups]
        for layer in self._layers:
            layer.plan(hyper)
        self._due = len(self._layers)

    def settle(self) -> None:
        """Take every update that is due, front layers first."""
        if self._due:
            for layer in self._layers:
                if layer.due:
                    self._take(layer)

    def clear_later(self, clear: Callable[[nn.Parameter], None]) -> set[nn.Parameter]:
        """`zero_grad()` was called: clear gradients that are in transit once they are used; say which these are."""
        due = [layer for layer in self._layers if layer.due]
        for layer in due:
            layer.clear = clear
        return {parameter for layer in due for parameter in layer.parameters.values()}

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def _on_call(self, layer: "_LayerUpdate", index: int) -> Hook:
        def called(_module: nn.Module, _arguments: object) -> None:
            entered_s = time.perf_counter()
            if layer.due:
                self._take(layer)
            if self.times is not None:
                self.times.called(index, entered_s)

        return called

    def _take(self, layer: "_LayerUpdate") -> None:
        self._wait(layer.parameters)
        layer.take()
        self._due -= 1


class _LayerUpdate:
    """One layer's step, on a shallow copy of the optimizer that shares its state and sees these parameters only.

    It holds on to the gradients that travel: a `.grad` that is dropped meanwhile, as `model.zero_grad()` does, comes
    back for the update. What was changed in place cannot be told from what has arrived, and is refused.
    """

    def __init__(self, optimizer: Optimizer, parameters: dict[str, nn.Parameter]) -> None:
        self.parameters = parameters
        self.due = False
        self.clear: Callable[[nn.Parameter], None] | None = None
        self._optimizer = optimizer
        self._part = copy.copy(optimizer)
        self._hyper: list[dict[str, Any]] = []
        self._held: dict[str, tuple[torch.Tensor | None, int, int]] = {}  # gradient, its version, the parameter's

    def plan(self, hyper: list[dict[str, Any]]) -> None:
        """Schedulers change hyper-parameters as soon as `step()` has returned: these are the ones that count."""
        self._hyper, self.clear, self.due = hyper, None, True
        for name, parameter in self.parameters.items():
            gradient = parameter.grad
            self._held[name] = gradient, -1 if gradient is None else gradient._version, parameter._version

    @torch.inference_mode(False)
    @torch.no_grad()
    def take(self) -> None:
        """Update the parameters from their gradients.

        Raises:
            InputError: either was changed meanwhile.
        """
        self.due = False
        dropped = [parameter for name, parameter in self.parameters.items() if self._restore(name, parameter)]
        mine = set(self.parameters.values())
        groups = zip(self._optimizer.param_groups, self._hyper, strict=True)
        self._part.param_groups = [
            {**hyper, "params": members}
            for group, hyper in groups
            if (members := [p for p in group["params"] if p in mine])
        ]
        self._part.state = self._optimizer.state
        if self._part.param_groups:
            self._part.step()
        for parameter in dropped:
            parameter.grad = None
        if self.clear is not None:
            for parameter in mine:
                self.clear(parameter)

    def _restore(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether a parameter's gradient had been dropped; it is back now."""
        gradient, version, parameter_version = self._held.pop(name)
        if parameter._version != parameter_version:
            raise InputError(
                f"parameter '{name}' was changed after step(), before its update was taken: call flush() before, "
                "or say cross_step=False"
            )
        if gradient is None:
            return False  # none here; another rank's may have arrived
        if gradient._version != version or not (parameter.grad is None or parameter.grad is gradient):
            raise InputError(
                f"the gradient of '{name}' was changed after step(), before its update was taken: "
                "use this optimizer's zero_grad(), or say cross_step=False"
            )
        dropped = parameter.grad is None
        parameter.grad = gradient
        return dropped


def uncompiled(hook: Hook) -> Hook:
    """A hook that torch.compile does not trace into; where nothing is compiled, as it is."""
    dynamo = sys.modules.get("torch._dynamo")
    return hook if dynamo is None else dynamo.disable(hook)


def drop(parameter: nn.Parameter) -> None:
    """Let go of a gradient."""
    parameter.grad = None


def zero(parameter: nn.Parameter) -> None:
    """Keep a gradient's memory, and zero it."""
    if parameter.grad is not None:
        parameter.grad.detach_().zero_()


def can_cross_steps(optimizer: Optimizer) -> bool:
    """Whether updating layer by layer gives the same parameters as updating all at once.

    Not for optimizers outside the list above (a subclass may override anything), nor with step hooks, which expect
    one call a step, nor where a group keeps state of its own.
    """
    hooks = [getattr(optimizer, f"_optimizer_step_{kind}_hooks", {}) for kind in ("pre", "post")]
    return type(optimizer) in ELEMENTWISE and not any(hooks)
