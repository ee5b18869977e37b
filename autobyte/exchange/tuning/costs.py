"""What a block and a byte cost on the wire, from blocks that training sent anyway."""

from collections.abc import Sequence
from math import nan
from statistics import median

import numpy as np

from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.job import Floats
from autobyte.scheduler.alpha_beta import AlphaBeta
from autobyte.scheduler.runner import Passage
from autobyte.scheduler.sends import mean_block, sends

APART = 1.5  # ratio of blocks per byte from which two configs tell the cost of a block from that of a byte
NOMINAL_S = 1e-3  # a block's cost besides its bytes where nothing tells it: 1.3 ms on gloo for one by itself
BESIDES_S = 2e-4  # the same for one that others travel beside: its start and end hide behind theirs
KEEP = 12  # configs: what was seen under others long ago may be of another link
CHANGED = 0.15  # relative change of a config's time per byte, after which what was known of the link is forgotten


class BlockCosts:
    """Seconds per block and per byte, from every config that has run on the link as it is.

    One config sends the same blocks in every step: it tells what they cost together, and what a block costs besides
    its bytes only if blocks of several sizes travel one at a time. Two that cut differently do. None is thought to
    cost less than `BESIDES_S`, or orders would be made of any number of them.
    """

    def __init__(self) -> None:
        self._seen: dict[Config, Floats] = {}  # `totals` of its latest window, of the middle rank
        self._first: dict[Config, float] = {}  # seconds per byte in a config's first window: links may fade slowly
        self.per_block_s = 0.0
        self.per_byte_s = 0.0
        self.assumed = False  # nothing told a block's cost from that of its bytes yet

    def add(self, config: Config, totals: Floats) -> None:
        """Take in a window.

        Args:
            config: in force in it.
            totals: of every rank's passages, as the function of that name has them, shape [ranks, 4].
        """
        alone_s = totals[np.isfinite(totals[:, 3]), 3]
        totals = np.median(totals, axis=0)
        if totals[1] <= 0:
            return
        pace = float(totals[2] / totals[1])
        if abs(pace / self._first.get(config, pace) - 1) > CHANGED:
            self._seen.clear()
            self._first.clear()
        self._first.setdefault(config, pace)
        self._seen.pop(config, None)
        self._seen[config] = totals  # the latest last
        if len(self._seen) > KEEP:
            del self._seen[next(iter(self._seen))]
        blocks, nbytes, seconds = np.array(list(self._seen.values()))[:, :3].T
        thickness = blocks / nbytes
        start_s = max(float(np.median(alone_s)), BESIDES_S) if alone_s.size else NOMINAL_S
        self.per_block_s, self.per_byte_s = _split(totals, start_s)
        self.assumed = not alone_s.size
        if thickness.max() > APART * thickness.min():
            parts = blocks / seconds, nbytes / seconds
            from scipy.optimize import nnls  # noqa: PLC0415, takes 0.4 s to import

            fitted, _ = nnls(np.column_stack(parts), np.ones(len(seconds)))
            if fitted[1] > 0:
                self.assumed = False
                self.per_block_s = max(float(fitted[0]), min(BESIDES_S, 0.5 / parts[0].max()))
                self.per_byte_s = float(parts[1] @ (1 - self.per_block_s * parts[0]) / (parts[1] @ parts[1]))

    def beside(self) -> tuple[float, float]:
        """Seconds per block and per byte where others travel beside it, for an order of blocks.

        The middle of what windows came to, of two the faster: an order is the worse for a link that is thought too
        slow, and it is by most windows, for a link counts as busy, too, while one rank waits for another.
        """
        seen = list(self._seen.values())  # at once: another thread may be adding
        split = sorted((_split(totals, BESIDES_S) for totals in seen), key=lambda cost: cost[1])
        return split[(len(split) - 1) // 2] if split else (self.per_block_s, self.per_byte_s)


def _split(totals: Floats, per_block_s: float) -> tuple[float, float]:
    """Seconds per block and per byte by one window, where a block's cost is assumed; half of all at most."""
    blocks, nbytes, seconds = totals[:3].tolist()
    per_block_s = min(per_block_s, 0.5 * seconds / blocks)
    return per_block_s, (seconds - blocks * per_block_s) / nbytes


def totals(passages: Sequence[Passage], steps: int) -> Floats:
    """What passages of so many steps come to, shape [4].

    Blocks, bytes, seconds that the link was busy, of a step; seconds of a block besides its bytes, or nan.
    """
    nbytes, seconds = sum(passage.nbytes for passage in passages), sum(passage.seconds for passage in passages)
    of_a_step = np.array([len(passages), nbytes, seconds], dtype=float) / max(steps, 1)
    return np.append(of_a_step, _start_s([each for each in passages if each.alone]))


def sent(passages: Sequence[Passage], steps: int, credit_bytes: int | None) -> Floats:
    """What passages of so many steps tell of links that crowd, as `RuntimeStats.sends` has it; shape [2, 4]."""
    rows = [(each.nbytes, each.seconds, each.in_flight) for each in passages]
    columns = np.array(rows, dtype=float).reshape(-1, 3).T
    return sends(*columns, large=mean_block(columns[0]) / 2, credit_bytes=credit_bytes) / max(steps, 1)


def _start_s(alone: Sequence[Passage]) -> float:
    """a of T(s) = a + s/B by the middle time of each size: a block may wait until other ranks have it."""
    times: dict[float, list[float]] = {}
    for passage in alone:
        times.setdefault(passage.nbytes, []).append(passage.seconds)
    middle = {nbytes: median(seconds) for nbytes, seconds in times.items()}
    sizes = [passage.nbytes for passage in alone]
    try:
        return AlphaBeta.fit(sizes, [middle[nbytes] for nbytes in sizes]).start_s
    except (InputError, RuntimeError):  # scipy's: no line found
        return nan
