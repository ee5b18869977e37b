"""What a block and a byte cost on the wire, from blocks that training sent anyway."""

from collections.abc import Sequence

import numpy as np

from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.job import Floats
from autobyte.scheduler.alpha_beta import AlphaBeta

TOGETHER = 8  # blocks that may be under way at once
APART = 1.5  # ratio of blocks per byte from which two configs tell the cost of a block from that of a byte
NOMINAL_S = 1e-3  # a block's cost besides its bytes until two configs tell it: 1.4 to 2 ms were measured on gloo
CHANGED = 0.15  # relative change of a config's time per byte, after which what was known of the link is forgotten


class Costs:
    """Seconds per block and per byte, from every config that has run on the link as it is.

    One config sends the same blocks in every step: it tells what they cost together, and hardly what a block costs
    besides its bytes. Two that cut differently do.
    """

    def __init__(self) -> None:
        self._seen: dict[Config, Floats] = {}  # blocks, bytes, seconds
        self.per_block_s = 0.0
        self.per_byte_s = 0.0

    def add(self, config: Config, totals: Floats, fitted: Floats) -> None:
        """Take in a window.

        Args:
            config: in force in it.
            totals: blocks, bytes, seconds that the link was busy, shape [3].
            fitted: seconds per block, seconds per byte by this window alone (`affine`), shape [2].
        """
        if totals[1] <= 0:
            return
        before = self._seen.get(config)
        if before is not None and abs(totals[2] / totals[1] / (before[2] / before[1]) - 1) > CHANGED:
            self._seen.clear()
        self._seen[config] = totals
        blocks, nbytes, seconds = np.array(list(self._seen.values())).T
        thickness = blocks / nbytes
        if thickness.max() > APART * thickness.min():
            found, *_ = np.linalg.lstsq(np.column_stack([blocks, nbytes]) / seconds[:, None], np.ones(len(seconds)))
            if found[0] >= 0 and found[1] > 0:
                fitted = found
        elif fitted[0] < NOMINAL_S:
            per_block_s = min(NOMINAL_S, 0.5 * totals[2] / totals[0])
            fitted = np.array([per_block_s, (totals[2] - totals[0] * per_block_s) / totals[1]])
        self.per_block_s, self.per_byte_s = float(fitted[0]), float(fitted[1])


def totals(passages: Sequence[tuple[float, float]]) -> Floats:
    """Blocks, bytes, seconds; shape [3]."""
    seconds = sum(passage for _, passage in passages)
    return np.array([len(passages), sum(nbytes for nbytes, _ in passages), seconds], dtype=float)


def affine(passages: Sequence[tuple[float, float]]) -> Floats:
    """A block's cost from what blocks took: seconds per block, seconds per byte; neither is negative; shape [2].

    Blocks that travel together end together, and one of them seems to take all the time: sums over runs of blocks
    are fitted, not single ones.
    """
    if not passages:
        return np.zeros(2)
    starts = np.arange(0, len(passages), TOGETHER)
    nbytes, seconds = np.add.reduceat(np.array(passages, dtype=float), starts).T
    counts = np.diff(np.append(starts, len(passages)))
    try:
        cost = AlphaBeta.fit(nbytes / counts, seconds / counts)
    except InputError:  # too few, or too like each other: bytes take all the time
        cost = AlphaBeta(0.0, 0.0)
    return np.array([cost.start_s, cost.s_per_byte] if cost.s_per_byte else [0.0, seconds.sum() / nbytes.sum()])
