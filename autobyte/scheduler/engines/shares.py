"""This rank's shares of summed gradients, between the two halves of an all-reduce, and their norm."""

import math

import torch
from torch import Tensor

from autobyte.scheduler.block import Block, Segment
from autobyte.scheduler.engines.streams import Event


class Shares:
    """Keeps what a reduce-scatter left, until it is gathered.

    >>> shares.put(block, share)               # by the engine, when the sums of this rank's share are there
    >>> shares.norm()                          # of all shares that were put or counted since `measure`

    Shares of all ranks together are the averaged gradients, each element once. So the p-norm of the gradients is the
    p-norm of the shares' norms. All shares lie on one device. Engines of messages tell every rank the norms of shares
    that others keep, and of sums that servers keep.
    """

    def __init__(self) -> None:
        self._shares: dict[tuple[Segment, ...], Tensor] = {}
        self._norms: dict[tuple[int, int], Tensor] = {}  # by block, and rank that keeps the share
        self.of_all = False  #: whether the engine counts here the norms of all ranks' shares
        self.kind: float | None = None  #: p of the norm that is measured in this step
        self.over: Event | None = None  #: on a device, the moment at which the latest share is there

    def measure(self, kind: float | None) -> None:
        """A step begins: measure the norm of what is put from now on.

        Args:
            kind: p of the p-norm, above 0, or infinity; None measures nothing.
        """
        self.kind, self.over = kind, None
        self._norms = {}

    def put(self, block: Block, share: Tensor) -> None:
        """Keep a share; on a GPU, the current stream has it."""
        self._shares[block.segments] = share
        if self.kind is not None and share.numel() and not self.of_all:  # of few elements, some ranks have none
            self._norms[block.index, 0] = _norm(share, self.kind)

    def count(self, block: int, rank: int, norm: float) -> None:
        """Note the norm of the share of a block that a rank keeps."""
        self._norms[block, rank] = torch.tensor(norm, dtype=torch.float64)

    def __contains__(self, block: Block) -> bool:
        return block.segments in self._shares

    def pop(self, block: Block) -> Tensor:
        """Give a share to whoever gathers it."""
        return self._shares.pop(block.segments)

    def norm(self) -> float:
        """The norm of all shares of this step; NaN if it was not measured. Ranks add up in the same order."""
        if self.kind is None:
            return math.nan
        if not self._norms:
            return 0.0
        norms = [norm for _, norm in sorted(self._norms.items())]
        return total_norm(torch.stack(norms).to("cpu", torch.float64), self.kind)


def norm_of(part: Tensor, kind: float) -> float:
    """The norm of one share; of none it is 0, and NaN if p is NaN, because nobody asked for it.

    Args:
        part: of a gradient, shape [elements].
        kind: p of the p-norm, above 0, or infinity.
    """
    if math.isnan(kind):
        return math.nan
    return float(_norm(part, kind)) if part.numel() else 0.0


def _norm(part: Tensor, kind: float) -> Tensor:
    wide = torch.float64 if part.dtype is torch.float64 else torch.float32
    norm: Tensor = torch.linalg.vector_norm(part, kind, dtype=wide)
    return norm


def total_norm(norms: Tensor, kind: float) -> float:
    """The norm of a vector of which only its parts' norms are known.

    Args:
        norms: of the parts, shape [parts].
        kind: p of the p-norm, above 0, or infinity.
    """
    if bool(norms.isnan().any()):
        return math.nan
    return float(torch.linalg.vector_norm(norms, kind))
