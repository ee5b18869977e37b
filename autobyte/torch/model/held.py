"""Gradients between `step()` and the updates that use them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter, is_

import torch
from torch import nn

from autobyte.errors import InputError


class HeldGradients:
    """The gradients that travel, layer after layer, and what was known of them when `step()` was called.

    A `.grad` that is dropped meanwhile, as `model.zero_grad()` does, comes back for the update. A gradient that the
    user changed in place is refused, because its former value is lost. Flat lists: a layer has one or two parameters,
    and lists of its own would take longer to make than to fill.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._parameters: list[nn.Parameter] = []
        self._gradients: list[torch.Tensor | None] = []
        self._versions: list[int] = []  # of parameters
        self._gradient_versions: list[int] = []
        self.standing_in: dict[int, torch.Tensor | None] = {}  # zeros that are `.grad` where this rank has none
        self._dropped: set[int] = set()  # places of those of them whose zeros were dropped meanwhile

    def add(self, parameters: dict[str, nn.Parameter]) -> slice:
        """Another layer's parameters; return their places."""
        start = len(self._names)
        self._names += parameters
        self._parameters += parameters.values()
        return slice(start, len(self._names))

    def note(self, missing: Callable[[str], torch.Tensor | None]) -> None:
        """Note all gradients. Where one is missing, the zeros that travel for it stand in until the update."""
        self.standing_in.clear()
        self._dropped.clear()
        self._gradients = gradients = [parameter.grad for parameter in self._parameters]
        for place, gradient in enumerate(gradients):
            if gradient is None:
                zeros = missing(self._names[place])
                gradients[place] = self.standing_in[place] = self._parameters[place].grad = zeros
        self._versions = list(map(_version, self._parameters))
        self._gradient_versions = _versions(gradients)

    def withdraw(self, span: slice) -> None:
        """An update is taken now: take zeros that stand in away, and note whose `.grad` was dropped."""
        for place in range(span.start, span.stop):
            if place not in self.standing_in:
                continue
            parameter = self._parameters[place]
            if parameter.grad is None:
                self._dropped.add(place)
            elif parameter.grad is self.standing_in[place]:
                parameter.grad = None
            else:
                raise _changed(self._names[place])

    def give_up(self, span: slice) -> None:
        """An update is not due any more, and will not be taken."""
        for place in range(span.start, span.stop):
            if place in self.standing_in and self._parameters[place].grad is self.standing_in[place]:
                self._parameters[place].grad = None
        self._let_go(span)

    def check(self, span: slice) -> bool:
        """Refuse an update whose parameters or gradients were changed; it stays due, and is refused again.

        Returns:
            whether every `.grad` is what it was.

        Raises:
            InputError: a parameter, or its gradient, was changed meanwhile.
        """
        parameters, gradients = self._parameters[span], self._gradients[span]
        place = _differing(list(map(_version, parameters)), self._versions[span])
        if place is not None:
            raise InputError(
                f"parameter '{self._names[span][place]}' was changed after step(), before its update was taken: call "
                "flush() before, or say cross_step=False"
            )
        place = _differing(_versions(gradients), self._gradient_versions[span])
        if place is not None:
            raise _changed(self._names[span][place])
        if all(map(is_, [parameter.grad for parameter in parameters], gradients)):
            return not self.standing_in
        for place, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True), span.start):
            now = parameter.grad
            if now is not gradient and now is not None and place not in self.standing_in:
                raise _changed(self._names[place])
        return False

    def restore(self, span: slice, *, untouched: bool) -> list[nn.Parameter]:
        """Bring back gradients that had been dropped, and return their parameters; `check` says if there are none."""
        dropped: list[nn.Parameter] = []
        for place, parameter in () if untouched else enumerate(self._parameters[span], span.start):
            if place in self.standing_in:  # `.grad` is what arrived from other ranks, or None
                if place in self._dropped:
                    dropped.append(parameter)
            elif parameter.grad is None:
                parameter.grad = self._gradients[place]
                dropped.append(parameter)
        self._let_go(span)
        return dropped

    def _let_go(self, span: slice) -> None:
        self._gradients[span] = [None] * (span.stop - span.start)


_version = attrgetter("_version")


def _versions(tensors: Sequence[torch.Tensor | None]) -> list[int]:
    with suppress(AttributeError):  # of None; a loop of Python's takes several times as long
        return list(map(_version, tensors))
    return [-1 if tensor is None else tensor._version for tensor in tensors]


def _differing(some: list[int], others: list[int]) -> int | None:
    """The first place at which lists differ."""
    if some == others:
        return None
    return next(place for place, (one, other) in enumerate(zip(some, others, strict=True)) if one != other)


def _changed(name: str) -> InputError:
    return InputError(
        f"the gradient of '{name}' was changed after step(), before its update was taken: "
        "use this optimizer's zero_grad(), or say cross_step=False"
    )


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
