"""How long layers compute, from the few moments that a graph of another framework shows."""

import math
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from autobyte.job import Floats
from autobyte.trace import TimeSource

ALONE = 3  # forward passes beside which nothing came, that are remembered


class ArrayTimes:
    """Forward and backward time of every layer in the latest step.

    Backward, a layer's time runs from the moment at which the gradients before its own were complete, the first one's
    from the loss. Forward, nothing shows where one layer ends and the next begins, so each has the share of the pass
    that it has of the backward pass. Where averages come beside a forward pass, that stands still for some of them.
    What is behind a layer takes no longer than from its average to the loss, so the pass takes

        min over layers of (loss − arrival) / share of the layer and those behind it

    and no longer than the shortest of the last ones beside which nothing came. For the rest, it stands still. That
    holds if layers have the same shares of both passes; where they differ, too much of the pass counts as standing
    still. What is behind a layer is what its gradient came after.

    A front end that does not see the loss has a forward pass that ends with the first gradient; one that does not see
    its beginning either has one as long as half of the backward pass.

    Args:
        layers: places of the gradients of each, in the order of the forward pass.
        clock: the time (s).
    """

    def __init__(self, layers: Iterable[Sequence[int]], *, clock: TimeSource) -> None:
        self._layer_of = {place: index for index, places in enumerate(layers) for place in places}
        self._layers = 1 + max(self._layer_of.values())
        self._clock = clock
        self._complete = np.full(self._layers, np.nan)  # of layers with a gradient
        self._arrived = np.full(self._layers, np.nan)  # of averages, in the forward pass
        self._began_s = self._over_s = 0.0  # of the forward pass; infinite while it is not over
        self._beside = True  # whether averages may come beside it
        self._read = True
        self._alone: deque[float] = deque(maxlen=ALONE)  # passes beside which nothing came, in backward passes
        self.waits = ArrayWaits()

    def begin(self, *, alone: bool = False) -> None:
        """The forward pass begins.

        Args:
            alone: whether all averages that it needs have been waited for.
        """
        self._arrived = np.full(self._layers, np.nan)
        self._began_s, self._over_s, self._beside = self._clock(), math.inf, not alone

    def open(self) -> None:
        """The first gradient of a step is about to be complete: none is as yet."""
        self.loss()
        self._complete = np.full(self._layers, np.nan)

    def wait(self, place: int, began_s: float) -> None:
        """An average is there that was waited for since a moment: by the forward pass, or beside it."""
        now = self._clock()
        if self._beside and self._began_s <= began_s < self._over_s:
            self._arrived[self._layer_of[place]] = now
        else:
            self.waits.add(now - began_s)

    def loss(self) -> None:
        """The loss is known: the backward pass begins."""
        self._over_s = min(self._over_s, self._clock())

    def complete(self, place: int) -> None:
        """A gradient is complete."""
        self._complete[self._layer_of[place]] = self._clock()
        self._read = False

    def sample(self) -> tuple[Floats, Floats] | None:
        """Forward and backward times of the latest step, shapes [layers] (s); None if they were read already."""
        if self._read:
            return None
        self._read = True
        complete = self._complete
        first_s = float(np.nanmin(complete))
        loss_s = min(self._over_s, first_s) if self._began_s else 0.0
        order = np.argsort(complete, kind="stable")[: np.isfinite(complete).sum()]  # NaN comes last
        backward = np.zeros(self._layers)
        backward[order] = np.diff(complete[order], prepend=loss_s or first_s)
        total_s = max(float(backward.sum()), 1e-9)
        shares = backward / total_s
        behind = np.zeros(self._layers)
        behind[order] = np.cumsum(shares[order])
        forward_s = self._forward_s(behind, loss_s, total_s) if loss_s else total_s / 2
        self._began_s = 0.0  # the next step may show no beginning
        return shares * forward_s, backward

    def read(self, samples: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
        """Forward and backward times in steps (s), shapes [samples, layers]."""
        forward, backward = zip(*samples, strict=True)
        return np.array(forward), np.array(backward)

    def be_exact(self, exact: bool) -> None:
        """Marks cost the same whenever they are taken."""

    def _forward_s(self, behind: Floats, loss_s: float, backward_s: float) -> float:
        """How long the forward pass computes, by shares of layers and all behind; for the rest, it stands still."""
        took_s = max(0.0, loss_s - self._began_s)
        known = (self._arrived < loss_s) & (behind > 0)
        if not known.any():
            self._alone.append(took_s / backward_s)
            return took_s
        most_s = min(self._alone) * backward_s if len(self._alone) == ALONE else took_s
        computed_s = float(np.min((loss_s - self._arrived[known]) / behind[known], initial=min(took_s, most_s)))
        self.waits.add(took_s - computed_s)
        return computed_s


class ArrayWaits:
    """For how long the model has stood still for averages; a wait counts when it is over."""

    def __init__(self) -> None:
        self.total_s = 0.0  # of all waits (s)

    def add(self, seconds: float) -> None:
        """A wait of so many seconds is over."""
        self.total_s += seconds

    def forget(self) -> None:
        """Let waits so far count that are known to be over: all are."""
