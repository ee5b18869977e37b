"""How long each layer computes while training goes on: marks in hooks that are there anyway, waits left out."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autobyte.job import Floats
from autobyte.torch.model.marks import HostMarks, Mark, Marks

NEVER = np.nan  # a moment that was not seen
UNREAD = 4  # passes at most that a device may be behind, and still be timed


class LayerTimes:
    """Forward and backward time of every layer, in one pass after the other.

    Forward, a layer's time runs from the end of its pre-hook, when its tensors had arrived and were updated, to the
    next layer's; the last one's to the end of the model. Backward, it runs from the moment when the gradients of the
    next layer were complete to the moment when its own were. The loss counts to the last layer's backward.

    Args:
        layers: how many.
        marks: of the model's computing. Those that cost something are taken while `exact` alone.
    """

    def __init__(self, layers: int, marks: Marks | None = None) -> None:
        self._layers = layers
        self._marks = marks or HostMarks()
        self._now = self._marks.now
        self._active = True
        self._unread: deque[_Pass] = deque(maxlen=UNREAD)
        self._pass = _Pass(layers)
        self._gradients = [0] * layers  # that the latest pass had
        self._usual = [1] * layers  # that the pass before had

    def be_exact(self, exact: bool) -> None:
        """Whether to take marks from now on that cost something."""
        self._active = exact or self._marks.free

    def begin(self) -> None:
        """The model is called."""
        self._pass = _Pass(self._layers)
        if any(self._gradients):
            self._usual, self._gradients = self._gradients, [0] * self._layers

    def enter(self, layer: int) -> bool:
        """A layer's pre-hook begins; whether this is the layer's first call in a pass, the only one that counts."""
        marked = self._pass
        if not self._active or marked.enter[layer] is not None:
            return False
        marked.enter[layer] = marked.leave[layer] = self._now()
        return True

    def leave(self, layer: int) -> None:
        """A pre-hook that has counted is over, and has taken an update."""
        self._pass.leave[layer] = self._marks.now()

    def forward_over(self) -> None:
        """The model has returned."""
        if self._active:
            self._pass.forward_over = self._marks.now()

    def gradients(self, layer_of: Sequence[int]) -> Callable[[int], None]:
        """What to call with the place of a gradient that is complete; `layer_of` has the layer of each place.

        The latest one of a layer counts; by the pass before, one can tell which it is.
        """
        now = self._now

        def complete(place: int) -> None:
            layer = layer_of[place]
            count = self._gradients[layer] = self._gradients[layer] + 1
            if count >= self._usual[layer] and self._active:
                self._pass.complete[layer] = now()

        return complete

    def sample(self) -> list[float] | None:
        """The moments (s) of the oldest pass not told yet, for `read`; None if none is over."""
        if self._pass.is_whole:
            self._unread.append(self._pass)
            self._pass = _Pass(self._layers)
        try:
            sample = self._unread[0].moments(self._marks) if self._unread else None
        except Exception:  # what was computed before has failed: told to whoever waits for it
            self._unread.clear()
            return None
        if sample is not None:
            self._unread.popleft()
        return sample

    def read(self, samples: Sequence[list[float]]) -> tuple[Floats, Floats]:
        """Forward and backward times (s), shapes [samples, layers]."""
        at_s = np.array(samples)
        entered, left, completed = np.split(at_s[:, :-1], 3, axis=1)
        forward_over = at_s[:, -1:]
        # fmin and fmax pass over what was never seen
        ends = np.append(entered[:, 1:], forward_over, axis=1)
        forward = np.fmax(0.0, np.fmin.accumulate(ends[:, ::-1], axis=1)[:, ::-1] - left)
        over = np.fmax.accumulate(np.fmax(completed, forward_over)[:, ::-1], axis=1)[:, ::-1]
        return forward, over - np.append(over[:, 1:], forward_over, axis=1)


@dataclass
class _Pass:
    """The marks of one pass through so many layers, None where there is none."""

    layers: int

    def __post_init__(self) -> None:
        # lists: to read or write one element of an array takes several times as long
        self.enter: list[Mark]
        self.leave: list[Mark]
        self.complete: list[Mark]
        self.enter, self.leave, self.complete = ([None] * self.layers for _ in range(3))
        self.forward_over: Mark = None

    @property
    def is_whole(self) -> bool:
        """Whether it went forward and back."""
        seen = (any(mark is not None for mark in marks) for marks in (self.enter, self.complete))
        return self.forward_over is not None and all(seen)

    def moments(self, marks: Marks) -> list[float] | None:
        """When layers were entered, left and complete, and the model was over (s); None while one has not come."""
        taken = [*self.enter, *self.leave, *self.complete, self.forward_over]
        at_s = marks.seconds([mark for mark in taken if mark is not None] if None in taken else taken)
        if at_s is None or len(at_s) == len(taken):
            return at_s
        told = iter(at_s)
        return [NEVER if mark is None else next(told) for mark in taken]
