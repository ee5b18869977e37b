"""The marks of one training pass, set by hooks, and the time of every layer between them.

Forward, a layer's time runs from its first call to the first call of the next layer. So functions and modules without
parameters count to the layer before them, and so does a module's second call. What comes before the first layer
counts to the first, the loss to the last.

Backward, it runs from the moment when the gradients of the next layer are complete to the moment when its own are.
A module that is called twice is complete in the backward of its first call, which is its place in the order. What
comes after the last gradient counts to the first layer. Where gradients are complete in another order than layers
backwards (a block's own parameters, before those of the modules in it), a layer is dated with the latest of its own
and all later layers': never sooner than it was seen.

Either way, the times of all layers add up to the whole pass exactly.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

import numpy as np
import torch
from torch import nn

from autobyte.job import Floats
from autobyte.torch.model.layers import CalledLayer
from autobyte.torch.model.step import Step


class Clock(Protocol):
    """Numbers the moments of one pass, and tells afterwards when they were."""

    def mark(self) -> int:
        """Mark this moment; return its number."""

    def seconds(self) -> Floats:
        """When every mark was, counted from the first (s), shape [marks]."""


class HostClock:
    """The host's clock, for models that compute on the CPU."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def mark(self) -> int:
        """Read the clock."""
        self._times.append(time.perf_counter())
        return len(self._times) - 1

    def seconds(self) -> Floats:
        """When every mark was (s)."""
        return np.array(self._times) - self._times[0]


class CudaClock:
    """Events in the current CUDA stream: the host never waits for the GPU until the times are read."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> int:
        """Queue an event behind the work that has been issued so far."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)
        return len(self._events) - 1

    def seconds(self) -> Floats:
        """When the GPU came past every mark (s)."""
        self._events[-1].synchronize()
        return np.array([self._events[0].elapsed_time(event) for event in self._events]) / 1e3


class TimedPass:
    """One pass, with the marks that its hooks have set.

    >>> timed = TimedPass(layers, HostClock())
    >>> timed.run(step)
    >>> forward_s, backward_s = timed.seconds()
    """

    def __init__(self, layers: Sequence[CalledLayer], clock: Clock) -> None:
        self._layers = layers
        self._clock = clock
        self._called: dict[int, int] = {}  # layer -> mark of its first call
        self._complete: dict[int, int] = {}  # layer -> mark of its latest gradient

    def run(self, step: Step) -> None:
        """Do the pass. The hooks are there only while it runs."""
        step.clear_gradients()
        with ExitStack() as hooks:
            for index, layer in enumerate(self._layers):
                called = layer.module.register_forward_pre_hook(self._on_call(index), prepend=True)
                hooks.callback(called.remove)
                for _, parameter in layer.parameters:
                    complete = parameter.register_post_accumulate_grad_hook(self._on_gradient(index))  # type: ignore[no-untyped-call]
                    hooks.callback(complete.remove)
            self._begin = self._clock.mark()
            loss = step.forward()
            self._turn = self._clock.mark()
            step.backward(loss)
            self._end = self._clock.mark()

    def seconds(self) -> tuple[Floats, Floats]:
        """Forward and backward time of every layer (s), shapes [layers]. On a GPU this waits for the pass to end."""
        at = self._clock.seconds()
        called, complete = np.full((2, len(self._layers) + 1), at[self._turn])
        for layer, mark in self._called.items():
            called[layer] = at[mark]
        for layer, mark in self._complete.items():
            complete[layer] = at[mark]
        called[0], complete[0] = at[self._begin], at[self._end]
        starts = np.minimum.accumulate(called[::-1])[::-1]  # a layer that was skipped takes no time
        ends = np.maximum.accumulate(complete[::-1])[::-1]
        return np.diff(starts), -np.diff(ends)

    def _on_call(self, layer: int) -> Callable[[nn.Module, object], None]:
        def called(_module: nn.Module, _arguments: object) -> None:
            if layer not in self._called:
                self._called[layer] = self._clock.mark()

        return called

    def _on_gradient(self, layer: int) -> Callable[[torch.Tensor], None]:
        def complete(_parameter: torch.Tensor) -> None:
            self._complete[layer] = self._clock.mark()

        return complete
