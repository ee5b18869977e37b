"""Optimizer steps layer by layer: each layer's parameters are updated when its forward pass is about to need them."""

import copy
import itertools
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autobyte.internals import see_hooks, uncompiled, unrecorded
from autobyte.torch.model.clipping import Clipping
from autobyte.torch.model.former import Former
from autobyte.torch.model.held import HeldGradients
from autobyte.torch.model.hooks import Hook
from autobyte.torch.model.layers import CalledLayer
from autobyte.torch.model.pending import PendingClasses, PendingOptimizer, as_they_are, state_of
from autobyte.torch.model.reads import Reads
from autobyte.torch.model.timeline import TrainingTimeline
from autobyte.torch.model.times import LayerTimes
from autobyte.torch.model.turns import Turns
from autobyte.torch.model.unfinished import Unfinished

log = logging.getLogger("autobyte")

Called = Callable[[nn.Module, object], None]

#: Parameters that are copied in one call: together with a layer that needs it, and while one is awaited.
SOON_BYTES, AHEAD_BYTES = 1 << 20, 16 << 20


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

    def whole_later(self) -> Callable[[], bool]:
        """What tells whether every average of the step has arrived, when later ones were closed, too."""

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

    A step is committed whole or undone. As long as averages are still to come, a layer is copied before its update:
    while another one is awaited, if there is such a wait. If they never come, the layers that were updated are again
    what they were, and no update is due. Where a device waits for averages, and not the thread that trains, all is
    copied when the step begins if `undo` says so; else a step that cannot be whole is lost with the parameters.

    Args:
        optimizer: the user's.
        averages: knows when gradients are averaged and in place.
        undone: is called when steps were undone, with their number.
        undo: whether copies are kept where a device waits for averages.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        averages: Averages,
        undone: Callable[[int], None] = lambda _: None,
        *,
        undo: bool = False,
    ) -> None:
        self._optimizer = optimizer
        self._part = optimizer  # once layers are known, a copy
        self._pending = PendingOptimizer(optimizer, self._read_state)
        self._averages = averages
        self._undone = undone
        self._unfinished = Unfinished(optimizer) if undo else None
        self._former = Former(optimizer)  # of the layers that were updated ahead of the whole step
        self._turns = Turns(parameter.device for group in optimizer.param_groups for parameter in group["params"])
        self._layers: list[_Layer] = []
        self._held = HeldGradients()
        self._hyper: list[dict[str, Any]] = []  # hyper-parameters of every group when `step()` was called
        self._trained: list[list[int]] = []  # ids of the parameters of every group, when layers were last divided
        self.timeline: TrainingTimeline | None = None  # is told of updates, while a trace is on
        self._due = 0  # layers whose update is due
        self._next = 0  # the first layer that was not looked at, to copy it with others
        self._clipping = Clipping()
        self._reads = Reads()
        self._taking = threading.RLock()  # any thread that reads a parameter takes its update
        self._places: list[tuple[nn.Module, Hook]] = []  # of the hooks
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
        self._part = copy.copy(self._optimizer)
        places: dict[nn.Parameter, int] = {}
        for index, layer in enumerate(layers):
            parameters = {name: p for name, p in layer.parameters if name in names}
            self._layers.append(_Layer(parameters, self._held.add(parameters), partial(self._read, index)))
            places |= dict.fromkeys(self._layers[-1].parameters.values(), index)
            hook = Hook(uncompiled(self._on_call(index, times)))
            self._places.append((layer.module, hook))
        for module in model.modules():
            owned = {places[p] for p in module.parameters(recurse=False) if p in places}
            others = sorted(index for index in owned if layers[index].module is not module)
            if others:
                hook = Hook(uncompiled(self._on_other_call(others)))
                self._places.append((module, hook))
        self._trained = []
        self.attach()

    def attach(self) -> None:
        """Set the hooks; with none of them, no update may wait."""
        self._hooks = [module.register_forward_pre_hook(hook, prepend=True) for module, hook in self._places]

    def detach(self) -> None:
        """Take the hooks away while no update is due."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def plan(self, clipping: Clipping) -> None:
        """`step()` was called: every layer's update is due, with the hyper-parameters of now.

        Schedulers change these as soon as it has returned.

        Args:
            clipping: of the averages, when they are used.
        """
        self._clipping = clipping
        self._reads.step()
        groups = self._optimizer.param_groups
        self._hyper = self.keep()
        trained = [list(map(id, group["params"])) for group in groups]
        if trained != self._trained:
            self._trained = trained
            self._divide(groups)
        self._former.forget()  # of a step whose update failed half-way in the optimizer
        self._held.note(self._averages.missing)
        for layer in self._layers:
            layer.clear, layer.due, layer.kept = None, True, False
            layer.classes.set()
        self._due, self._next = len(self._layers), 0
        self._pending.set()

    @torch.no_grad()
    def keep(self, *, copy: bool = True) -> list[dict[str, Any]]:
        """Copy all that the closed step is about to change, where a device takes its updates; the hyper-parameters.

        Args:
            copy: whether the step has not changed anything yet.
        """
        groups = self._optimizer.param_groups
        hyper = [{k: _as_now(v) for k, v in group.items() if k != "params"} for group in groups]
        if self._unfinished is not None and self._averages.ahead:
            self._turns.take()
            with unrecorded():
                self._unfinished.keep(hyper, self._averages.whole_later(), copy=copy)
        return hyper

    @torch.no_grad()
    def undo(self) -> bool:
        """Make parameters what they were before averages were missing, though a device went on; whether it can be."""
        self._give_up_due()
        self._turns.take()
        with unrecorded():
            undone = None if self._unfinished is None else self._unfinished.undo()
        if undone is None:
            return False
        steps, hyper = undone
        if steps:
            self._put_back(hyper)
            self._undone(steps)
        return True

    def settle(self) -> None:
        """Take every update that is due, front layers first."""
        with self._taking:  # another thread may be in the midst of one
            if self._due:
                for index, layer in enumerate(self._layers):
                    if layer.due:
                        self._take(index)
            self._pending.restore()

    def clear(self, clear: Callable[[nn.Parameter], None]) -> None:
        """`zero_grad()` was called: clear gradients, those that still travel after their update."""
        due = [layer for layer in self._layers if layer.due]
        for layer in due:
            layer.clear = clear
        in_transit = set[int]().union(*(layer.ids for layer in due))
        for group in self._optimizer.param_groups:
            if not in_transit.issuperset(map(id, group["params"])):  # as it mostly is
                for parameter in group["params"]:
                    if id(parameter) not in in_transit:
                        clear(parameter)

    def remove(self) -> None:
        """Take the hooks away, and give up what is due and refused: parameters can be read again."""
        self.detach()
        self._places = []
        left = [name for layer in self._layers if layer.due for name in layer.parameters]
        if left:
            log.warning(
                "the last step() is not taken on %d tensors, '%s' first; the others have taken it",
                len(left), left[0],
            )  # fmt: skip
        self._give_up_due()
        self._former.release()

    def _on_call(self, index: int, times: LayerTimes | None) -> Called:
        layer = self._layers[index]

        def called(_module: nn.Module, _arguments: object) -> None:
            counts = times is not None and times.enter(index)
            if layer.due:
                self._take(index)
                if counts and times is not None:
                    times.leave(index)
            elif self._turns.updated:  # with an earlier layer, perhaps on another stream
                self._turns.follow()

        return called

    def _on_other_call(self, indices: list[int]) -> Called:
        def called(_module: nn.Module, _arguments: object) -> None:
            if self._turns.updated:
                self._turns.follow()
            for index in indices:
                if self._layers[index].due:
                    self._take(index)

        return called

    def _divide(self, groups: list[dict[str, Any]]) -> None:
        """Tell every layer which of each group's parameters are its own."""
        of = {parameter: layer for layer in self._layers for parameter in layer.parameters.values()}
        for layer in self._layers:
            layer.members = {}
        for index, group in enumerate(groups):
            for parameter in group["params"]:
                if parameter in of:
                    of[parameter].members.setdefault(index, []).append(parameter)

    def _read(self, layer: int) -> None:
        """Something other than the layer's forward pass reads or changes a parameter: take the update."""
        self._reads.note(f"'{next(iter(self._layers[layer].parameters))}' and other parameters were")
        self._take(layer)

    def _read_state(self) -> None:
        """The user reads or changes the state of the optimizer: take all updates."""
        self._reads.note("the optimizer's state was")
        self.settle()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _take(self, first: int) -> None:
        """Wait for a layer, and update it and those after it that need no wait."""
        with self._taking:
            layers = [self._layers[first]]
            if not layers[0].due:  # another thread was faster
                return
            if self.timeline is not None:
                self.timeline.take()
            try:
                self._withdraw(layers)
                self._keep(first)
                self._averages.wait(layers[0].parameters)
                if others := self._arrived_after(first):
                    layers += others
                    self._withdraw(others)
                    self._averages.wait(name for layer in others for name in layer.parameters)
                    self._keep_all(layers)
                self._update(layers)
            except BaseException:
                for layer in layers:
                    layer.refuse()
                if self._averages.failed and not self._averages.whole:
                    self._give_up()
                raise
            if self.timeline is not None:
                self.timeline.taken()
            self._due -= len(layers)
            if not self._due:
                self._former.forget()
                self._pending.restore()

    def _withdraw(self, layers: "list[_Layer]") -> None:
        """Layers' updates are taken now."""
        for layer in layers:
            layer.classes.restore()
            if self._held.standing_in:
                self._held.withdraw(layer.span)

    def _arrived_after(self, first: int) -> "list[_Layer]":
        """The layers after one whose updates are due, up to the first whose averages have not arrived."""
        averages = self._averages
        due: Iterable[_Layer] = (layer for layer in itertools.islice(self._layers, first + 1, None) if layer.due)
        if not averages.whole:
            due = itertools.takewhile(lambda layer: averages.arrived(layer.parameters), due)
        return list(due)

    def _keep(self, first: int) -> None:
        """Copy a layer that is about to be updated ahead of others.

        Those that come next are copied with it: some in the same call, which takes longer than to copy a small layer,
        and more as long as its averages have not arrived.
        """
        averages, layer = self._averages, self._layers[first]
        if averages.ahead or self._due == 1:
            return
        if averages.whole:
            self._former.forget()  # nothing can come between
            return
        if not layer.kept:
            self._copy([layer, *self._after(first, SOON_BYTES)])
        while not averages.arrived(layer.parameters) and (others := self._after(first, AHEAD_BYTES)):
            self._copy(others)

    def _keep_all(self, layers: "Sequence[_Layer]") -> None:
        """Copy layers that are about to be updated ahead of others."""
        if self._due == len(layers) or self._averages.ahead or self._averages.whole:
            return
        if left := [layer for layer in layers if not layer.kept]:
            self._copy(left)

    def _after(self, first: int, nbytes: int) -> "list[_Layer]":
        """The layers after one that are still to be copied, up to so many bytes."""
        found: list[_Layer] = []
        self._next = max(self._next, first + 1)
        for layer in itertools.islice(self._layers, self._next, None):
            nbytes -= layer.nbytes
            if nbytes < 0:
                break
            self._next += 1
            if layer.due and not layer.kept:
                found.append(layer)
        return found

    def _copy(self, layers: "Sequence[_Layer]") -> None:
        """Copy layers, some of whose updates are due and stay so."""
        self._turns.take()
        with unrecorded(), as_they_are():
            self._former.keep(parameter for layer in layers for parameter in layer.parameters.values())
        for layer in layers:
            layer.kept = True

    def _give_up_due(self) -> None:
        """Updates that are due will not be taken."""
        for layer in self._layers:
            if layer.due:
                layer.classes.restore()
                layer.due = False
                self._held.give_up(layer.span)
                layer.clear_now()
        self._due = 0
        self._pending.restore()

    def _give_up(self) -> None:
        """The step can never be whole: parameters, optimizer state and hyper-parameters are those before it again.

        Not so where a device has updated layers from what lay in memory, and nothing was kept.
        """
        self._give_up_due()
        if self._averages.ahead:
            self.undo()
            return
        self._turns.take()
        with unrecorded():
            self._former.bring_back()
        self._put_back(self._hyper)
        self._undone(1)

    def _put_back(self, hyper: list[dict[str, Any]]) -> None:
        """Undo what schedulers did since hyper-parameters were noted."""
        for group, former in zip(self._optimizer.param_groups, hyper, strict=False):
            _put_back(group, former)

    def _update(self, layers: Sequence["_Layer"]) -> None:
        """Update parameters from their gradients.

        Raises:
            InputError: a parameter or its gradient was changed meanwhile.
        """
        spans = _joined(layers)
        untouched = [self._held.check(span) for span in spans]
        dropped = [
            parameter
            for span, same in zip(spans, untouched, strict=True)
            for parameter in self._held.restore(span, untouched=same)
        ]
        members: dict[int, list[nn.Parameter]] = defaultdict(list)
        for layer in layers:
            layer.due = False
            for index, owned in layer.members.items():
                members[index] += owned
        self._part.param_groups = [{**self._hyper[index], "params": members[index]} for index in sorted(members)]
        self._part.state = state_of(self._optimizer)
        if self._part.param_groups:
            self._turns.take()
            with unrecorded():
                self._clipping.apply(parameter for group in self._part.param_groups for parameter in group["params"])
                self._part.step()
            self._turns.done()
        for parameter in dropped:
            parameter.grad = None
        for layer in layers:
            layer.clear_now()


class _Layer:
    """One layer: its parameters, where they are among all, and whether its update is due."""

    def __init__(self, parameters: dict[str, nn.Parameter], span: slice, take: Callable[[], None]) -> None:
        self.parameters = parameters
        self.ids = list(map(id, parameters.values()))
        self.span = span
        self.classes = PendingClasses(parameters.values(), take)
        self.nbytes = sum(parameter.nbytes for parameter in parameters.values())
        self.due = False
        self.kept = False  # it is copied as it was before its update
        self.clear: Callable[[nn.Parameter], None] | None = None
        self.members: dict[int, list[nn.Parameter]] = {}  # this layer's parameters, by the optimizer's groups

    def refuse(self) -> None:
        """The update could not be taken: the next read of a parameter tries again, and raises again."""
        if self.due:
            self.classes.set()

    def clear_now(self) -> None:
        """Clear its gradients, if it was asked for while they travelled."""
        if self.clear is not None:
            for parameter in self.parameters.values():
                self.clear(parameter)


def _joined(layers: Iterable[_Layer]) -> list[slice]:
    """Places of layers' parameters; those that follow on each other are one slice."""
    spans: list[slice] = []
    start = stop = 0
    for layer in layers:
        if layer.span.start != stop:
            spans.append(slice(start, stop))
            start = layer.span.start
        stop = layer.span.stop
    spans.append(slice(start, stop))
    return [span for span in spans if span.start < span.stop]


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
