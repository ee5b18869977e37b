"""Which blocks of a step have all of their gradients: until one has, it is too early to do anything with them."""

from autobyte.scheduler.block import Tiling


class Filling:
    """Counts the gradients that blocks still lack.

    >>> filling = Filling(plan.tiling)
    >>> filling.fills(tensor)                  # True: a block has all of its gradients now

    Args:
        tiling: the blocks.
    """

    def __init__(self, tiling: Tiling) -> None:
        self.begin(tiling)

    def begin(self, tiling: Tiling) -> None:
        """A step begins: no gradient is complete."""
        self._blocks_of = tiling.blocks_of
        self._lacks: list[int] = tiling.waits.tolist()

    def fills(self, tensor: int) -> bool:
        """A gradient is complete; whether it was the last that a block lacked."""
        lacks, filled = self._lacks, False
        for block in self._blocks_of[tensor]:
            lacks[block] -= 1
            filled |= not lacks[block]
        return filled
