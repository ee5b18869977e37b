"""A worker's compute: backward, then the next forward, each layer waiting for its own tensors."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from autobyte.scheduler.plan import Overlap, Plan
from autobyte.simulator.clock import VirtualClock
from autobyte.simulator.costs import COMPUTE, WindowCosts
from autobyte.trace import Span, Trace


class Watcher(Protocol):
    """Whom a class of workers tells what it has done."""

    def gradient(self, worker_class: int, tensor: int) -> None:
        """A tensor's gradient is complete."""

    def backward_over(self, worker_class: int, iteration: int) -> None:
        """All gradients of an iteration are complete."""

    def step_over(self, worker_class: int, iteration: int) -> None:
        """The next iteration's forward pass is over: nothing of this step is under way any more."""


class Worker:
    """One class of identical workers. A step is a backward pass, then the forward pass of the next iteration."""

    def __init__(
        self,
        clock: VirtualClock,
        plan: Plan,
        costs: WindowCosts,
        worker_class: int,
        *,
        watcher: Watcher,
        backlog_s: Callable[[], float],
        trace: Trace | None,
    ) -> None:
        self._clock = clock
        self._model = plan.job.model
        self._costs = costs
        self._class = worker_class
        self._accumulation = plan.job.accumulation
        self._watcher = watcher
        self._backlog_s = backlog_s
        self._trace = trace
        self._waited_by = _waited_by(plan)
        self._needs: list[int] = np.bincount(self._waited_by, minlength=len(self._model.layers)).tolist()
        self._needs[0] += plan.awaited_scatters
        self._tensors = _per_layer(plan)
        self.computing = False
        self.wait_s, self.forward_s, self.backward_s = np.zeros((3, len(self._model.layers)))

    def start_step(self, iteration: int) -> None:
        """Begin the backward pass of an iteration."""
        self._iteration = iteration
        self._left = list(self._needs)  # tensors that each layer's forward pass still waits for
        self._waiting_since = -1.0
        self.computing = True
        self._backward(len(self._model.layers) - 1)

    def arrived(self, tensor: int) -> None:
        """A tensor is in place."""
        self._count(self._waited_by[tensor])

    def reduced(self) -> None:
        """A reduce-scatter that the forward pass waits for is over."""
        self._count(0)

    def _count(self, layer: int) -> None:
        """A layer has one thing less to wait for."""
        self._left[layer] -= 1
        if self._waiting_since >= 0 and self._may_go():
            self.wait_s[self._layer] += self._clock.now - self._waiting_since
            if self._trace is not None:
                self._trace.waits.append(
                    self._span("wait", self._layer, self._iteration + 1, self._waiting_since, self._clock.now)
                )
            self._waiting_since = -1.0
            self._forward()

    def _backward(self, layer: int) -> None:
        def over() -> None:
            for tensor in reversed(self._tensors[layer]):
                self._watcher.gradient(self._class, tensor)
            if layer:
                self._backward(layer - 1)
            else:
                self._watcher.backward_over(self._class, self._iteration)
                self._await_layer(0)

        spent = self._compute("backward", layer, self._model.layers[layer].backward_s, self._iteration, over)
        self.backward_s[layer] += spent

    def _await_layer(self, layer: int) -> None:
        self._layer = layer
        if self._may_go():
            self._forward()
        else:
            self._waiting_since = self._clock.now
            self.computing = False

    def _may_go(self) -> bool:
        return self._left[self._layer] == 0

    def _forward(self) -> None:
        def over() -> None:
            if layer + 1 < len(self._model.layers):
                self._await_layer(layer + 1)
            else:
                self._accumulate()

        self.computing = True
        layer = self._layer
        spent = self._compute("forward", layer, self._model.layers[layer].forward_s, self._iteration + 1, over)
        self.forward_s[layer] += spent

    def _accumulate(self) -> None:
        """The passes of an accumulating step that neither wait for tensors nor send any."""

        def over() -> None:
            self._watcher.step_over(self._class, self._iteration)

        rest_s = (
            (self._accumulation - 1) * self._model.compute_s * self._costs.compute[self._iteration + 1, self._class]
        )
        if self._trace is not None and rest_s:
            now = self._clock.now
            self._trace.spans.append(self._span("accumulate", -1, self._iteration + 1, now, now + rest_s))
        self._clock.after(rest_s, over, urgency=self._urgency)

    def _compute(self, phase: str, layer: int, plain_s: float, iteration: int, over: Callable[[], None]) -> float:
        own_s = plain_s * self._costs.compute[iteration, self._class]
        spent_s = own_s + self._costs.effects.compute_slowdown * min(own_s, self._backlog_s())
        now = self._clock.now
        if self._trace is not None:
            self._trace.spans.append(self._span(phase, layer, iteration, now, now + spent_s))
        self._clock.at(now + spent_s, over, urgency=self._urgency)
        return float(spent_s)

    def _span(self, phase: str, layer: int, iteration: int, start_s: float, stop_s: float) -> Span:
        name = self._model.layers[layer].name if layer >= 0 else ""
        return Span(int(self._costs.leader[self._class]), iteration, phase, layer, name, start_s, stop_s)

    @property
    def _urgency(self) -> int:
        return COMPUTE * self._costs.classes + self._class


def _waited_by(plan: Plan) -> list[int]:
    """The layer whose forward pass waits for each tensor."""
    layers: list[int] = plan.job.gradients.layer.tolist()
    return layers if plan.overlap is Overlap.STEP else [0] * len(plan.job.gradients)


def _per_layer(plan: Plan) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in plan.job.model.layers]
    for tensor, layer in enumerate(plan.job.gradients.layer.tolist()):
        rows[layer].append(tensor)
    return rows
