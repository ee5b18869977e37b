"""What ranks count in every step: who had which gradient, left an update out, has no inputs, loaded, or clips."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: Places behind the gradients' own.
_LEFT_OUT, _JOINED, _ANNOUNCES, _LOADED, _CLIPS, _NORM = -9, -8, -7, -6, -5, -4


@dataclass(frozen=True)
class StepFlags:
    """One rank's flags of one step.

    Args:
        had: for every gradient, in the plan's order, 1 if this rank had one, else 0.
        left_out: the step before was not followed by an update, or this one will not be.
        joined: this rank has no inputs left.
        announces: this rank has something to say to all.
        loaded: this rank has loaded something since the step before.
        clips: what this rank clips the gradients of the step to, and p of their norm; None if it does not clip.
    """

    had: Sequence[int]
    left_out: bool
    joined: bool
    announces: bool
    loaded: bool = False
    clips: tuple[float, float] | None = None

    def pack(self) -> Tensor:
        """The flags as numbers that can be added up over ranks, shape [gradients + 9], int32."""
        clips = self.clips is not None
        behind = bytes([self.left_out, self.joined, self.announces, self.loaded, clips, *self._norm])
        flags = bytes(self.had) + behind
        return torch.frombuffer(bytearray(flags), dtype=torch.uint8).int()  # a list is read element by element

    @property
    def _norm(self) -> bytes:
        """What it clips to, as a hash of four bytes; zeros if it does not."""
        return bytes(4) if self.clips is None else zlib.crc32(struct.pack("dd", *self.clips)).to_bytes(4)


class StepCounts:
    """On how many ranks each flag was set.

    Args:
        counts: sum over ranks of `StepFlags.pack`.
    """

    def __init__(self, counts: Tensor) -> None:
        self._counts = counts
        self._behind: list[int] = counts.numpy()[_LEFT_OUT:].tolist()  # a tensor is read slowly, number by number

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

    def clip_as(self, flags: StepFlags) -> bool:
        """Whether all that clip do so as one of them, whose flags these are."""
        return self._behind[_NORM:] == [self.clipping * byte for byte in flags._norm]
