"""What travels: blocks that tile every gradient exactly."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from autobyte.errors import InputError
from autobyte.job import Gradients, Ints
from autobyte.scheduler.sends import mean_block


class Segment(NamedTuple):
    """A run of elements [start, stop) of one tensor."""

    tensor: int
    start: int
    stop: int


class Collective(StrEnum):
    """What is done with a block: all of the exchange, or one half of it."""

    ALL_REDUCE = "all-reduce"  # or a push and its pull
    REDUCE_SCATTER = "reduce-scatter"  # every rank has the sum of its share; or a push
    ALL_GATHER = "all-gather"  # of what a reduce-scatter left; or a pull


@dataclass(frozen=True, slots=True)
class Block:
    """What travels as one message: one segment of a cut tensor, or segments of several (fusion).

    `index` is its place in the plan; `nbytes` is what its gradients weigh on the wire; an all-gather follows the
    reduce-scatter of the same segments.
    """

    index: int
    segments: tuple[Segment, ...]
    nbytes: int
    op: Collective = Collective.ALL_REDUCE


@dataclass(frozen=True, eq=False)
class Tiling:
    """How gradients are divided among blocks, and how urgent each block is; in columns, block after block.

    >>> Tiling.of(gradients, [[Segment(0, 0, 100)], [Segment(0, 100, 200), Segment(1, 0, 5)]])

    Args:
        gradients: what is tiled.
        tensor, start, stop: the segments, in elements; shape [segments].
        block_start: index of each block's first segment, then the number of segments; shape [blocks + 1].
        priority: smaller goes first, then the place among the blocks; shape [blocks].
        gathers: of an all-gather the block that reduces and scatters the same segments, else -1; shape [blocks];
            None where every block is an all-reduce.

    Raises:
        InputError: the blocks, all-gathers aside, do not cover every element of every tensor exactly once; a block is
            empty or mixes dtypes; or all-gathers and reduce-scatters do not match.
    """

    gradients: Gradients
    tensor: Ints
    start: Ints
    stop: Ints
    block_start: Ints
    priority: Ints
    gathers: Ints | None = None

    def __post_init__(self) -> None:
        _check_blocks(self)
        if self.gathers is None:
            _check_tiling(self.gradients, self.tensor, self.start, self.stop)
        else:
            _check_halves(self, self.gathers)
            once = np.repeat(self.gathers < 0, np.diff(self.block_start))
            _check_tiling(self.gradients, self.tensor[once], self.start[once], self.stop[once])

    def __len__(self) -> int:
        return len(self.block_start) - 1

    def __repr__(self) -> str:
        return f"Tiling({len(self)} blocks of {len(self.gradients)} tensors)"

    @classmethod
    def of(
        cls,
        gradients: Gradients,
        blocks: Iterable[Iterable[Segment]],
        *,
        priority: Sequence[int] | None = None,
        gathers: Sequence[int] | None = None,
    ) -> Self:
        """Put blocks that are written out as segments into columns; by default they go in the order given."""
        rows = [list(block) for block in blocks]
        table = np.array([(s.tensor, s.start, s.stop) for row in rows for s in row], dtype=np.int64).reshape(-1, 3)
        tensor, start, stop = np.ascontiguousarray(table.T)
        block_start = np.cumsum([0] + [len(row) for row in rows])
        urgency = np.arange(len(rows)) if priority is None else np.asarray(priority, dtype=np.int64)
        halves = None if gathers is None else np.asarray(gathers, dtype=np.int64)
        return cls(gradients, tensor, start, stop, block_start, urgency, halves)

    @cached_property
    def nbytes(self) -> Ints:
        """What each block weighs on the wire, shape [blocks]."""
        return self._combine(np.add, (self.stop - self.start) * self.gradients.itemsize[self.tensor])

    @cached_property
    def mean_block_bytes(self) -> float:
        """Size of the block that the mean byte travels in."""
        return mean_block(self.nbytes)

    @cached_property
    def order(self) -> Ints:
        """Blocks from the most to the least urgent, shape [blocks]."""
        return np.argsort(self.priority, kind="stable")

    @cached_property
    def rank(self) -> Ints:
        """Each block's place in `order`, shape [blocks]."""
        return np.argsort(self.order, kind="stable")

    @cached_property
    def pairs(self) -> Ints:
        """Each block and tensor that belong together, once, block after block; shape [2, pairs]."""
        block = np.repeat(np.arange(len(self)), np.diff(self.block_start))
        pairs = np.stack([block, self.tensor])
        return pairs if len(self.tensor) == len(self) else np.unique(pairs, axis=1)

    @cached_property
    def waits(self) -> Ints:
        """How many tensors, and other blocks, each block waits for, shape [blocks]."""
        tensors = np.bincount(self.pairs[0], minlength=len(self))
        return tensors if self.gathers is None else tensors + (self.gathers >= 0)

    @cached_property
    def follower(self) -> Ints:
        """The all-gather of each reduce-scatter, -1 for other blocks; shape [blocks]."""
        follower = np.full(len(self), -1, dtype=np.int64)
        if self.gathers is not None:
            gathering = np.flatnonzero(self.gathers >= 0)
            follower[self.gathers[gathering]] = gathering
        return follower

    @cached_property
    def scatters(self) -> int:
        """How many blocks are reduce-scatters."""
        return int((self.follower >= 0).sum())

    @cached_property
    def halves(self) -> npt.NDArray[np.bool_]:
        """Whether each block is one half of an all-reduce, shape [blocks]."""
        return (self.follower >= 0) | (False if self.gathers is None else self.gathers >= 0)

    @cached_property
    def by_tensor(self) -> tuple[Ints, Ints]:
        """Blocks tensor after tensor, the most urgent first, and where each tensor's begin; shape [tensors + 1]."""
        block, tensor = self.pairs
        place = np.lexsort((self.rank[block], tensor))
        return block[place], np.searchsorted(tensor[place], np.arange(len(self.gradients) + 1))

    @cached_property
    def blocks_of(self) -> tuple[tuple[int, ...], ...]:
        """The blocks that carry a part of each tensor, the most urgent first."""
        blocks, edges = (column.tolist() for column in self.by_tensor)
        return tuple(tuple(blocks[a:b]) for a, b in pairwise(edges))

    @cached_property
    def tensors_of(self) -> tuple[tuple[int, ...], ...]:
        """The tensors of which each block carries a part, each once, in the order of its segments."""
        return tuple(tuple(dict.fromkeys(segment.tensor for segment in block.segments)) for block in self.blocks)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Every block, as objects."""
        rows = zip(self.tensor.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)
        segments = [Segment(*row) for row in rows]
        spans = enumerate(zip(pairwise(self.block_start.tolist()), self.nbytes.tolist(), strict=True))
        ops = self._ops()
        return tuple(Block(index, tuple(segments[a:b]), nbytes, ops[index]) for index, ((a, b), nbytes) in spans)

    @cached_property
    def digest(self) -> str:
        """A hash of everything in it, and of the names, shapes and dtypes that it tiles."""
        gradients = self.gradients
        state = hashlib.sha256(repr(gradients.names).encode())
        columns = (
            gradients.numel,
            gradients.kind,
            self.tensor,
            self.start,
            self.stop,
            self.block_start,
            self.priority,
        )
        for column in columns:
            state.update(len(column).to_bytes(8, "little") + np.ascontiguousarray(column, dtype="<i8").tobytes())
        if self.gathers is not None:
            state.update(np.ascontiguousarray(self.gathers, dtype="<i8").tobytes())
        return state.hexdigest()

    @cached_property
    def halved(self) -> "Tiling":
        """The same with two blocks for every all-reduce: its halves, the all-gather as urgent as the block was.

        Reduce-scatters are more urgent than all-gathers, and those come first whose gradients appear first.
        """
        count, first = len(self), self._combine(np.minimum, self.tensor)
        return Tiling(
            self.gradients,
            np.tile(self.tensor, 2),
            np.tile(self.start, 2),
            np.tile(self.stop, 2),
            np.concatenate([self.block_start, self.block_start[1:] + len(self.tensor)]),
            priority=np.concatenate([self.priority.min(initial=0) - 1 - first, self.priority]),
            gathers=np.concatenate([np.full(count, -1), np.arange(count)]),
        )

    def _ops(self) -> list[Collective]:
        scatters = self.follower.tolist()
        gathers = [-1] * len(self) if self.gathers is None else self.gathers.tolist()
        return [
            Collective.ALL_GATHER if of >= 0 else Collective.REDUCE_SCATTER if by >= 0 else Collective.ALL_REDUCE
            for of, by in zip(gathers, scatters, strict=True)
        ]

    def _combine(self, ufunc: np.ufunc, values: Ints) -> Ints:
        """Combine a value of each segment into one of each block."""
        combined: Ints = ufunc.reduceat(values, self.block_start[:-1]) if len(values) else values
        return combined


def _check_blocks(tiling: Tiling) -> None:
    edges, tensor, names = tiling.block_start, tiling.tensor, tiling.gradients.names
    if edges[0] != 0 or edges[-1] != len(tensor) or (np.diff(edges) < 1).any():
        raise InputError("every block needs at least one segment")
    if len(tiling.priority) != len(tiling):
        raise InputError(f"{len(tiling)} blocks need as many priorities, got {len(tiling.priority)}")
    if len(tensor) and not 0 <= tensor.min() <= tensor.max() < len(names):
        raise InputError(f"a segment names tensor {tensor.min()} or {tensor.max()}; there are {len(names)}")
    kinds = tiling.gradients.kind[tensor]
    mixed = tiling._combine(np.minimum, kinds) != tiling._combine(np.maximum, kinds)
    if mixed.any():
        raise InputError(f"a block carries one dtype: fuse only tensors of the same dtype (block {mixed.argmax()})")


def _check_halves(tiling: Tiling, gathers: Ints) -> None:
    """Every all-gather is of a block of its own, and carries what that carries."""
    if len(gathers) != len(tiling):
        raise InputError(f"{len(tiling)} blocks need as many entries of gathers, got {len(gathers)}")
    gathering = np.flatnonzero(gathers >= 0)
    of = gathers[gathering]
    if len(set(of.tolist())) < len(of) or (of >= len(tiling)).any() or (gathers[of] >= 0).any():
        raise InputError("every all-gather needs a reduce-scatter of its own")
    edges, columns = tiling.block_start, np.stack([tiling.tensor, tiling.start, tiling.stop])
    for gather, scatter in zip(gathering.tolist(), of.tolist(), strict=True):
        carried, reduced = (columns[:, edges[block] : edges[block + 1]] for block in (gather, scatter))
        if not np.array_equal(carried, reduced):
            raise InputError(f"all-gather {gather} carries other segments than its reduce-scatter {scatter}")


def _check_tiling(gradients: Gradients, tensor: Ints, start: Ints, stop: Ints) -> None:
    """In the order of their places, segments must join without gap or overlap and reach every tensor's end."""
    names = gradients.names
    if not ((np.diff(tensor) > 0) | ((np.diff(tensor) == 0) & (np.diff(start) > 0))).all():
        place = np.lexsort((start, tensor))
        tensor, start, stop = tensor[place], start[place], stop[place]
    expected = np.where(np.diff(tensor, prepend=-1) != 0, 0, np.roll(stop, 1))
    wrong = np.flatnonzero((start != expected) | (stop <= start))
    if len(wrong):
        at = wrong[0]
        what = f"[{start[at]}, {stop[at]}) of tensor '{names[tensor[at]]}'"
        why = "is empty" if stop[at] <= start[at] else f"should begin at {expected[at]}"
        raise InputError(f"blocks must tile every tensor exactly: {what} {why}")
    covered = np.zeros(len(names), dtype=np.int64)
    covered[tensor] = stop  # the last segment of each tensor stays
    short = np.flatnonzero(covered != gradients.numel)
    if len(short):
        at = short[0]
        what = f"tensor '{names[at]}' has {gradients.numel[at]} elements, the blocks cover {covered[at]}"
        raise InputError(f"blocks must tile every tensor exactly: {what}")
