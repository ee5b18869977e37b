"""How long each layer computes while training goes on: marks in hooks that are there anyway, waits left out."""

import time

import numpy as np
import torch

from autobyte.job import Floats

NEVER = -1.0  # a moment that was not seen


class LayerTimes:
    """Forward and backward time of every layer in the latest step.

    Forward, a layer's time runs from the end of its pre-hook, when its tensors had arrived and were updated, to the
    next layer's; the last one's to the end of the model. Backward, it runs from the moment when the gradients of the
    next layer were complete to the moment when its own were. The loss counts to the last layer's backward.

    Args:
        layers: how many.
        device: that computes. A GPU is waited for at every mark while `exact`, and not timed otherwise.
    """

    def __init__(self, layers: int, device: torch.device | str = "cpu") -> None:
        self._layers = layers
        self._device = torch.device(device)
        self.exact = True
        self.begin()

    def be_exact(self, exact: bool) -> None:
        """Whether a GPU is waited for from now on."""
        self.exact = exact

    def begin(self) -> None:
        """The model is called."""
        # lists: to read or write one element of an array takes several times as long
        self._enter, self._leave, self._complete = ([NEVER] * self._layers for _ in range(3))
        self._forward_over = NEVER

    def now(self) -> float:
        """The time (s), `NEVER` where it is not taken."""
        if self._device.type == "cuda":
            if not self.exact:
                return NEVER
            torch.cuda.current_stream(self._device).synchronize()
        return time.perf_counter()

    def called(self, layer: int, entered_s: float) -> None:
        """A layer's pre-hook, entered then, is over; only a layer's first call in a pass counts."""
        if self._enter[layer] == NEVER:
            self._enter[layer], self._leave[layer] = entered_s, self.now()

    def forward_over(self) -> None:
        """The model has returned."""
        self._forward_over = self.now()

    def gradient(self, layer: int) -> None:
        """A gradient of a layer is complete; the latest one counts."""
        self._complete[layer] = time.perf_counter()

    def seconds(self) -> tuple[Floats, Floats] | None:
        """Forward and backward times (s), shapes [layers]; None if there was no whole pass."""
        entered, left, completed = np.array([self._enter, self._leave, self._complete])
        called, complete = entered != NEVER, completed != NEVER
        if self._forward_over == NEVER or not called.any() or not complete.any():
            return None
        forward, backward = np.zeros((2, self._layers))
        order = np.flatnonzero(called)
        ends = np.append(entered[order][1:], self._forward_over)
        forward[order] = np.maximum(0.0, ends - left[order])
        back = np.flatnonzero(complete)[::-1]
        ends = np.maximum.accumulate(np.maximum(completed[back], self._forward_over))
        backward[back] = np.diff(ends, prepend=self._forward_over)
        return forward, backward
