"""What ranks count in every step: who had which gradient, left an update out, has no inputs, loaded, or clips."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: Places behind the gradients' own.
_LEFT_OUT, _JOINED, _ANNOUNCES, _LOADED, _CLIPS = -5, -4, -3, -2, -1


@dataclass(frozen=True)
class StepFlags:
    """One rank's flags of one step.

    Args:
        had: for every gradient, in the plan's order, whether this rank had one.
        left_out: the step before was not followed by an update, or this one will not be.
        joined: this rank has no inputs left.
        announces: this rank has something to say to all.
        loaded: this rank has loaded something since the step before.
        clips: this rank clips the gradients of the step by their norm.
    """

    had: Sequence[bool]
    left_out: bool
    joined: bool
    announces: bool
    loaded: bool = False
    clips: bool = False

    def pack(self) -> Tensor:
        """The flags as numbers that can be added up over ranks, shape [gradients + 5], int32."""
        flags = bytes([*self.had, self.left_out, self.joined, self.announces, self.loaded, self.clips])
        return torch.frombuffer(bytearray(flags), dtype=torch.uint8).int()  # a list is read element by element


class StepCounts:
    """On how many ranks each flag was set.

    Args:
        counts: sum over ranks of `StepFlags.pack`.
    """

    def __init__(self, counts: Tensor) -> None:
        self._counts = counts
        self._behind: list[int] = counts[_LEFT_OUT:].tolist()  # a tensor is read slowly, number by number

    def having(self, gradient: int) -> int:
        """Ranks that had a gradient, by its place in the plan's order."""
        return int(self._counts[:_LEFT_OUT][gradient])

    @property
    def any_gradient(self) -> bool:
        """Whether any rank had any gradient."""
        return bool(self._counts[:_LEFT_OUT].any())

    @property
    def left_out(self) -> int:
        """Ranks that left out an update."""
        return self._behind[_LEFT_OUT]

    @property
    def joined(self) -> int:
        """Ranks that have no inputs left."""
        return self._behind[_JOINED]

    @property
    def announcing(self) -> int:
        """Ranks that have something to say to all."""
        return self._behind[_ANNOUNCES]

    @property
    def loaded(self) -> int:
        """Ranks that have loaded something."""
        return self._behind[_LOADED]

    @property
    def clipping(self) -> int:
        """Ranks that clip the gradients of the step by their norm."""
        return self._behind[_CLIPS]
