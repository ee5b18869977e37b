"""Optimizer steps layer by layer: each layer's parameters are updated when its forward pass is about to need them."""

import copy
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

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
from autobyte.internals import has_own_step, has_step_hooks, see_hooks, uncompiled, unrecorded
from autobyte.torch.model.clipping import Clipping
from autobyte.torch.model.former import Former
from autobyte.torch.model.hooks import Hook
from autobyte.torch.model.layers import CalledLayer
from autobyte.torch.model.pending import PendingClasses
from autobyte.torch.model.reads import Reads
from autobyte.torch.model.times import LayerTimes

Called = Callable[[nn.Module, object], None]

#: Optimizers that treat every element by itself and keep state per parameter: updating layer by layer is the same.
ELEMENTWISE = (ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, Rprop)


class Averages(Protocol):
    """What updates need to know of the gradients that travel."""

    @property
    def whole(self) -> bool:
        """Whether every average of the step has arrived; nobody waits."""

    @property
    def ahead(self) -> bool:
        """Whether updates are given to a device that waits for averages, while nobody knows yet if they will come."""

    @property
    def failed(self) -> bool:
        """Whether averages that have not arrived never will."""

    def arrived(self, names: Iterable[str]) -> bool:
        """Whether gradients are averaged and in `.grad`; nobody waits."""

    def wait(self, names: Iterable[str]) -> None:
        """Wait until gradients are averaged and in `.grad`."""

    def missing(self, name: str) -> torch.Tensor | None:
        """The zeros that travel for a gradient which this rank does not have."""


class Updates:
    """Which layers' updates are due, and when they are taken.

    A layer is updated when its forward pass is about to begin, and with it the layers after it whose gradients have
    arrived: one call of the optimizer costs more than the update of a small layer. They run on a shallow copy of the
    optimizer that shares its state and sees these layers' parameters only.

    A step is committed whole or undone. As long as averages are still to come, a layer is copied before its update,
    which mostly is while it waits for one. If they never come, the layers that were updated are again what they were,
    and no update is due. Where a device waits for averages, and not the thread that trains, nothing is copied: a
    step that cannot be whole is lost with the parameters.

    Args:
        optimizer: the user's.
        averages: knows when gradients are averaged and in place.
        undone: is called when a step was undone.
    """

    def __init__(self, optimizer: Optimizer, averages: Averages, undone: Callable[[], None] = lambda: None) -> None:
        self._optimizer = optimizer
        self._part = copy.copy(optimizer)
        self._averages = averages
        self._undone = undone
        self._former = Former(optimizer)  # of the layers that were updated ahead of the whole step
        self._layers: list[_Layer] = []
        self._hyper: list[dict[str, Any]] = []  # hyper-parameters of every group when `step()` was called
        self._trained: list[list[int]] = []  # ids of the parameters of every group, when layers were last divided
        self._due = 0  # layers whose update is due
        self._clipping = Clipping()
        self._reads = Reads()
        self._taking = threading.RLock()  # any thread that reads a parameter takes its update
        self._hooks: list[RemovableHandle] = []

    @property
    def ready(self) -> bool:
        """Whether layers are known."""
        return bool(self._layers)

    def install(
        self,
        layers: Sequence[CalledLayer],
        names: Container[str],
        model: nn.Module,
        times: LayerTimes | None = None,
    ) -> None:
        """Take the layers' updates from now on in their forward pre-hooks.

        Other modules that own one of a layer's parameters take its update, too. They may be called before the layer:
        with tied weights, or if a branch is taken that was not taken in the first step.

        Args:
            layers: of the model, in the order of their first call.
            names: of the parameters whose gradients travel.
            model: has the layers.
            times: is told when a layer is called, if given.
        """
        see_hooks()
        places: dict[nn.Parameter, int] = {}
        for index, layer in enumerate(layers):
            parameters = {name: p for name, p in layer.parameters if name in names}
            self._layers.append(_Layer(parameters, partial(self._read, index)))
            places |= dict.fromkeys(self._layers[-1].parameters.values(), index)
            hook = Hook(uncompiled(self._on_call(index, times)))
            self._hooks.append(layer.module.register_forward_pre_hook(hook, prepend=True))
        for module in model.modules():
            owned = {places[p] for p in module.parameters(recurse=False) if p in places}
            others = sorted(index for index in owned if layers[index].module is not module)
            if others:
                hook = Hook(uncompiled(self._on_other_call(others)))
                self._hooks.append(module.register_forward_pre_hook(hook, prepend=True))
        self._trained = []

    def plan(self, clipping: Clipping) -> None:
        """`step()` was called: every layer's update is due, with the hyper-parameters of now.

        Schedulers change these as soon as it has returned.

        Args:
            clipping: of the averages, when they are used.
        """
        self._clipping = clipping
        self._reads.step()
        groups = self._optimizer.param_groups
        self._hyper = [{k: _as_now(v) for k, v in group.items() if k != "params"} for group in groups]
        trained = [[id(parameter) for parameter in group["params"]] for group in groups]
        if trained != self._trained:
            self._trained = trained
            self._divide(groups)
        self._former.forget()  # of a step whose update failed half-way in the optimizer
        for layer in self._layers:
            layer.plan(self._averages.missing)
        self._due = len(self._layers)

    def settle(self) -> None:
        """Take every update that is due, front layers first."""
        if self._due:
            for index, layer in enumerate(self._layers):
                if layer.due:
                    self._take(index)

    def clear_later(self, clear: Callable[[nn.Parameter], None]) -> set[nn.Parameter]:
        """`zero_grad()` was called: clear gradients that still travel after their update; return their parameters."""
        due = [layer for layer in self._layers if layer.due]
        for layer in due:
            layer.clear = clear
        return {parameter for layer in due for parameter in layer.parameters.values()}

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def _on_call(self, index: int, times: LayerTimes | None) -> Called:
        layer = self._layers[index]

        def called(_module: nn.Module, _arguments: object) -> None:
            counts = times is not None and times.enter(index)
            if layer.due:
                self._take(index)
                if counts and times is not None:
                    times.leave(index)

        return called

    def _on_other_call(self, indices: list[int]) -> Called:
        def called(_module: nn.Module, _arguments: object) -> None:
            for index in indices:
                if self._layers[index].due:
                    self._take(index)

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

    def _read(self, layer: int) -> None:
        """Something other than the layer's forward pass reads or changes a parameter: take the update."""
        self._reads.note(self._layers[layer].parameters)
        self._take(layer)

    def _take(self, first: int) -> None:
        """Wait for a layer, and update it and those after it that need no wait."""
        with self._taking:
            layers = [self._layers[first]]
            if not layers[0].due:  # another thread was faster
                return
            try:
                layers[0].withdraw()
                self._keep(layers, left=self._due - 1)
                self._averages.wait(layers[0].parameters)
                for index in range(first + 1, len(self._layers)):
                    layer = self._layers[index]
                    if layer.due:
                        if not self._averages.arrived(layer.parameters):
                            break
                        layers.append(layer)
                        layer.withdraw()
                        self._averages.wait(layer.parameters)
                self._keep(layers[1:], left=self._due - len(layers))
                self._update(layers)
            except BaseException:
                for layer in layers:
                    layer.refuse()
                if self._averages.failed and not self._averages.whole:
                    self._give_up()
                raise
            self._due -= len(layers)
            if not self._due:
                self._former.forget()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _keep(self, layers: Sequence["_Layer"], *, left: int) -> None:
        """Copy layers that are about to be updated ahead of so many others."""
        if self._averages.ahead:
            return
        if self._averages.whole:
            self._former.forget()  # nothing can come between
        elif left:
            with unrecorded():
                self._former.keep(parameter for layer in layers for parameter in layer.parameters.values())

    @torch.inference_mode(False)
    @torch.no_grad()
    def _give_up(self) -> None:
        """The step can never be whole: parameters, optimizer state and hyper-parameters are those before it again.

        Not so where a device has updated layers from what lay in memory.
        """
        for layer in self._layers:
            layer.give_up()
        self._due = 0
        if self._averages.ahead:
            return
        with unrecorded():
            self._former.bring_back()
        for group, hyper in zip(self._optimizer.param_groups, self._hyper, strict=False):
            _put_back(group, hyper)
        self._undone()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _update(self, layers: Sequence["_Layer"]) -> None:
        """Update parameters from their gradients.

        Raises:
            InputError: a parameter or its gradient was changed meanwhile.
        """
        for layer in layers:
            layer.check()
        dropped = [parameter for layer in layers for parameter in layer.restore()]
        members = ([p for layer in layers for p in layer.members[index]] for index in range(len(self._hyper)))
        groups = zip(self._hyper, members, strict=True)
        self._part.param_groups = [{**hyper, "params": owned} for hyper, owned in groups if owned]
        self._part.state = self._optimizer.state
        if self._part.param_groups:
            with unrecorded():
                self._clipping.apply(parameter for group in self._part.param_groups for parameter in group["params"])
                self._part.step()
        for parameter in dropped:
            parameter.grad = None
        for layer in layers:
            if layer.clear is not None:
                for parameter in layer.parameters.values():
                    layer.clear(parameter)


class _Layer:
    """What one layer's update needs.

    It keeps the gradients that travel. A `.grad` that is dropped meanwhile, as `model.zero_grad()` does, comes back
    for the update. A gradient that the user changed in place is refused, because its former value is lost.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], take: Callable[[], None]) -> None:
        self.parameters = parameters
        self._classes = PendingClasses(parameters.values(), take)
        self.due = False
        self.clear: Callable[[nn.Parameter], None] | None = None
        self.members: list[list[nn.Parameter]] = []  # this layer's parameters in each of the optimizer's groups
        self._held: dict[str, tuple[torch.Tensor | None, int, int]] = {}  # gradient, its version, the parameter's
        self._standing_in: set[str] = set()  # parameters whose `.grad` is zeros, because this rank has no gradient
        self._dropped: set[str] = set()  # those of them whose zeros were dropped meanwhile

    def plan(self, missing: Callable[[str], torch.Tensor | None]) -> None:
        """Its update is due. Where a gradient is missing, the zeros that travel for it stand in until the update."""
        self.clear, self.due = None, True
        self._standing_in.clear()
        self._dropped.clear()
        for name, parameter in self.parameters.items():
            gradient = parameter.grad
            if gradient is None:
                gradient = missing(name)
                parameter.grad = gradient
                self._standing_in.add(name)
            self._held[name] = gradient, -1 if gradient is None else gradient._version, parameter._version
        self._classes.set()

    def withdraw(self) -> None:
        """The update is taken now: take zeros that stand in away, and note whose `.grad` was dropped."""
        self._classes.restore()
        for name in self._standing_in:
            parameter, gradient = self.parameters[name], self._held[name][0]
            if parameter.grad is None:
                self._dropped.add(name)
            elif parameter.grad is gradient:
                parameter.grad = None
            else:
                raise _changed(name)

    def refuse(self) -> None:
        """The update could not be taken: the next read of a parameter tries again, and raises again."""
        if self.due:
            self._classes.set()

    def give_up(self) -> None:
        """The update is not due any more, and will not be taken."""
        if not self.due:
            return
        self._classes.restore()
        self.due = False
        for name in self._standing_in:
            if self.parameters[name].grad is self._held[name][0]:
                self.parameters[name].grad = None
        self._held.clear()
        if self.clear is not None:
            for parameter in self.parameters.values():
                self.clear(parameter)

    def check(self) -> None:
        """Refuse an update whose parameters or gradients were changed; it stays due, and is refused again.

        Raises:
            InputError: a parameter, or its gradient, was changed meanwhile.
        """
        for name, parameter in self.parameters.items():
            gradient, version, parameter_version = self._held[name]
            if parameter._version != parameter_version:
                raise InputError(
                    f"parameter '{name}' was changed after step(), before its update was taken: call flush() before, "
                    "or say cross_step=False"
                )
            if gradient is not None and gradient._version != version:
                raise _changed(name)
            if name not in self._standing_in and parameter.grad is not None and parameter.grad is not gradient:
                raise _changed(name)

    def restore(self) -> list[nn.Parameter]:
        """Bring back gradients that had been dropped, and return their parameters."""
        self.due = False
        return [parameter for name, parameter in self.parameters.items() if self._restore(name, parameter)]

    def _restore(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether a parameter's gradient had been dropped; it is back now."""
        gradient, _, _ = self._held.pop(name)
        if name in self._standing_in:  # `.grad` is what arrived from other ranks, or None
            return name in self._dropped
        dropped = parameter.grad is None
        parameter.grad = gradient
        return dropped


def _changed(name: str) -> InputError:
    return InputError(
        f"the gradient of '{name}' was changed after step(), before its update was taken: "
        "use this optimizer's zero_grad(), or say cross_step=False"
    )


def _as_now(value: Any) -> Any:
    """Copy a hyper-parameter if it can change in place: schedulers change a learning rate that is a tensor."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def _put_back(group: dict[str, Any], hyper: dict[str, Any]) -> None:
    """Undo what a scheduler did to a group since its hyper-parameters were noted."""
    for key, value in hyper.items():
        if isinstance(value, torch.Tensor) and isinstance(group[key], torch.Tensor):
            group[key].copy_(value)
        else:
            group[key] = value


def drop(parameter: nn.Parameter) -> None:
    """Let go of a gradient."""
    parameter.grad = None


def zero(parameter: nn.Parameter) -> None:
    """Keep a gradient's memory, and zero it."""
    gradient = parameter.grad
    if gradient is None:
        return
    if gradient.grad_fn is not None:
        gradient.detach_()
    else:
        gradient.requires_grad_(False)
    gradient.zero_()


def can_cross_steps(optimizer: Optimizer) -> bool:
    """Whether updating layer by layer gives the same parameters as updating all at once.

    It does not for optimizers outside the list above, because a subclass may override anything. Nor does it with step
    hooks, or with a `step` that was set on the object: these expect one call a step.
    """
    return type(optimizer) in ELEMENTWISE and not has_own_step(optimizer) and not has_step_hooks(optimizer)
