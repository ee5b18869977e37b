"""Optimizer steps layer by layer: each layer's parameters are updated when its forward pass is about to need them."""

import copy
import sys
from collections.abc import Callable, Container, Iterable, Sequence
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

    A layer is updated when its forward pass is about to begin, and with it the layers after it whose gradients have
    arrived: one call of the optimizer costs more than the update of a small layer. They run on a shallow copy of the
    optimizer that shares its state and sees these layers' parameters only.

    Args:
        optimizer: the user's.
        wait: waits until gradients, by name, are averaged and in place.
        arrived: whether they are.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        wait: Callable[[Iterable[str]], None],
        arrived: Callable[[Iterable[str]], bool],
    ) -> None:
        self.times: LayerTimes | None = None
        self._optimizer = optimizer
        self._part = copy.copy(optimizer)
        self._wait = wait
        self._arrived = arrived
        self._layers: list[_Layer] = []
        self._hyper: list[dict[str, Any]] = []  # of every group when `step()` was called
        self._trained: list[list[int]] = []  # ids of the parameters of every group, as layers know them
        self._due = 0
        self._hooks: list[RemovableHandle] = []

    @property
    def ready(self) -> bool:
        """Whether layers are known."""
        return bool(self._layers)

    def install(self, layers: Iterable[CalledLayer], names: Container[str]) -> None:
        """Take the layers' updates from now on in their forward pre-hooks."""
        for index, layer in enumerate(layers):
            self._layers.append(_Layer({name: p for name, p in layer.parameters if name in names}))
            hook = uncompiled(self._on_call(index))
            self._hooks.append(layer.module.register_forward_pre_hook(hook, prepend=True))
        self._trained = []

    def plan(self) -> None:
        """`step()` was called: every layer's update is due, with the hyper-parameters of now.

        Schedulers change these as soon as it has returned.
        """
        groups = self._optimizer.param_groups
        self._hyper = [{k: _as_now(v) for k, v in group.items() if k != "params"} for group in groups]
        trained = [[id(parameter) for parameter in group["params"]] for group in groups]
        if trained != self._trained:
            self._trained = trained
            self._divide(groups)
        for layer in self._layers:
            layer.plan()
        self._due = len(self._layers)

    def settle(self) -> None:
        """Take every update that is due, front layers first."""
        if self._due:
            for index, layer in enumerate(self._layers):
                if layer.due:
                    self._take(index)

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

    def _on_call(self, index: int) -> Hook:
        layer = self._layers[index]

        def called(_module: nn.Module, _arguments: object) -> None:
            times = self.times
            entered_s = times.now() if times is not None else 0.0
            if layer.due:
                self._take(index)
            if times is not None:
                times.called(index, entered_s)

        return called

    def _divide(self, groups: list[dict[str, Any]]) -> None:
        """Tell every layer which of each group's parameters are its own."""
        of = {parameter: layer for layer in self._layers for parameter in layer.parameters.values()}
        for layer in self._layers:
            layer.members = [[] for _ in groups]
        for index, group in enumerate(groups):
            for parameter in group["params"]:
                if parameter in of:
                    of[parameter].members[index].append(parameter)

    def _take(self, first: int) -> None:
        """Wait for a layer, and update it and those after it that need no wait."""
        self._wait(self._layers[first].parameters)
        layers = [self._layers[first]]
        for index in range(first + 1, len(self._layers)):
            layer = self._layers[index]
            if layer.due:
                if not self._arrived(layer.parameters):
                    break
                self._wait(layer.parameters)
                layers.append(layer)
        self._update(layers)
        self._due -= len(layers)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _update(self, layers: Sequence["_Layer"]) -> None:
        """Update parameters from their gradients.

        Raises:
            InputError: either was changed meanwhile.
        """
        dropped = [parameter for layer in layers for parameter in layer.restore()]
        members = ([p for layer in layers for p in layer.members[index]] for index in range(len(self._hyper)))
        groups = zip(self._hyper, members, strict=True)
        self._part.param_groups = [{**hyper, "params": mine} for hyper, mine in groups if mine]
        self._part.state = self._optimizer.state
        if self._part.param_groups:
            self._part.step()
        for parameter in dropped:
            parameter.grad = None
        for layer in layers:
            if layer.clear is not None:
                for parameter in layer.parameters.values():
                    layer.clear(parameter)


class _Layer:
    """What one layer's update needs.

    It holds on to the gradients that travel: a `.grad` that is dropped meanwhile, as `model.zero_grad()` does, comes
    back for the update. What was changed in place cannot be told from what has arrived, and is refused.
    """

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self.parameters = parameters
        self.due = False
        self.clear: Callable[[nn.Parameter], None] | None = None
        self.members: list[list[nn.Parameter]] = []  # of each of the optimizer's groups, what is this layer's
        self._held: dict[str, tuple[torch.Tensor | None, int, int]] = {}  # gradient, its version, the parameter's

    def plan(self) -> None:
        """Its update is due."""
        self.clear, self.due = None, True
        for name, parameter in self.parameters.items():
            gradient = parameter.grad
            self._held[name] = gradient, -1 if gradient is None else gradient._version, parameter._version

    def restore(self) -> list[nn.Parameter]:
        """The update is taken now: bring gradients back that had been dropped, and say whose these are."""
        self.due = False
        return [parameter for name, parameter in self.parameters.items() if self._restore(name, parameter)]

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


def _as_now(value: Any) -> Any:
    """A hyper-parameter that stays what it is: schedulers change a rate that is a tensor in place."""
    return value.clone() if isinstance(value, torch.Tensor) else value


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
