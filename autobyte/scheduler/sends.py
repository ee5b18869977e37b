"""What blocks that were sent tell of links that crowd: how long they took with little in flight, and otherwise."""

import numpy as np

from autobyte.job import Floats, Ints


def sends(nbytes: Floats, seconds: Floats, in_flight: Floats, *, large: float, credit_bytes: int | None) -> Floats:
    """Sums over large blocks: all of them, and those that started while at most half of the credit was in flight.

    Small ones are left out: they cost more per byte whatever else is in flight.

    Args:
        nbytes, seconds: of each block: its bytes, and for how long it kept a link busy (s).
        in_flight: bytes that held credit when it had started, its own among them.
        large: what a block must weigh (B).
        credit_bytes: the window; None is unlimited, and then there is no half of it.

    Returns:
        blocks, bytes, seconds, and bytes × bytes in flight; shape [2, 4].
    """
    sums = np.column_stack([np.ones(len(nbytes)), nbytes, seconds, nbytes * in_flight])[nbytes >= large]
    light = in_flight[nbytes >= large] <= half_of(credit_bytes)
    return np.array([sums.sum(axis=0), sums[light].sum(axis=0)])


def half_of(credit_bytes: int | None) -> float:
    """Half of the credit (B); -1 where it is unlimited."""
    return -1.0 if credit_bytes is None else credit_bytes / 2


def mean_block(nbytes: Floats | Ints) -> float:
    """Size of the block that the mean byte travels in (B)."""
    sizes = np.asarray(nbytes, dtype=float)
    return float((sizes * sizes).sum() / max(sizes.sum(), 1.0))
