"""How long layers compute, from the few moments that a graph of another framework shows."""

from collections.abc import Iterable, Sequence

import numpy as np

from autobyte.job import Floats
from autobyte.trace import TimeSource


class ArrayTimes:
    """Forward and backward time of every layer in the latest step.

    Backward, a layer's time runs from the moment at which the gradients before its own were complete, the first one's
    from the loss. The time from the beginning of a step to its loss, without waits, is measured as a whole. Nothing
    shows where in it one layer ends and the next begins, so each gets the share of it that it has of the backward
    pass. A front end that does not see the loss has a forward pass as long as half of the backward pass.

    Args:
        layers: places of the gradients of each.
        clock: the time (s).
    """

    def __init__(self, layers: Iterable[Sequence[int]], *, clock: TimeSource) -> None:
        self._layer_of = {place: index for index, places in enumerate(layers) for place in places}
        self._layers = 1 + max(self._layer_of.values())
        self._clock = clock
        self._complete = np.full(self._layers, np.nan)  # of layers with a gradient
        self._began_s = self._loss_s = self._waited_s = 0.0
        self._read = True

    def begin(self) -> None:
        """The forward pass begins."""
        self._began_s, self._loss_s, self._waited_s = self._clock(), 0.0, 0.0

    def open(self) -> None:
        """The first gradient of a step is about to be complete: none is as yet."""
        self._complete = np.full(self._layers, np.nan)

    def wait(self, seconds: float) -> None:
        """The forward pass stood still for so long (s)."""
        if not self._loss_s:
            self._waited_s += seconds

    def loss(self) -> None:
        """The loss is known: the backward pass begins."""
        self._loss_s = self._clock()

    def complete(self, place: int) -> None:
        """A gradient is complete."""
        self._complete[self._layer_of[place]] = self._clock()
        self._read = False

    def seconds(self) -> tuple[Floats, Floats] | None:
        """Forward and backward times of the latest step, shapes [layers] (s); None if they were read already."""
        if self._read:
            return None
        self._read = True
        complete = self._complete
        first_s = float(np.nanmin(complete))
        loss_s = min(self._loss_s, first_s) if self._loss_s > self._began_s else 0.0
        order = np.argsort(complete, kind="stable")[: np.isfinite(complete).sum()]  # NaN comes last
        backward = np.zeros(self._layers)
        backward[order] = np.diff(complete[order], prepend=loss_s or first_s)
        total_s = max(float(backward.sum()), 1e-9)
        forward_s = max(0.0, loss_s - self._began_s - self._waited_s) if loss_s else total_s / 2
        return forward_s * backward / total_s, backward

    def be_exact(self, exact: bool) -> None:
        """Marks cost the same whenever they are taken."""


class ArrayWaits:
    """For how long the model has stood still for averages; a wait counts when it is over."""

    def __init__(self) -> None:
        self.total_s = 0.0  # of all waits (s)

    def add(self, seconds: float) -> None:
        """A wait of so many seconds is over."""
        self.total_s += seconds

    def forget(self) -> None:
        """Let waits so far count that are known to be over: all are."""
