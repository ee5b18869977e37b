"""Ways to tile gradients, from which policies are made: cut, cut and fuse, whole, bucketed."""

from functools import lru_cache

import numpy as np

from autobyte.job import Gradients
from autobyte.scheduler.block import Segment, Tiling
from autobyte.units import KIB

LEAST_FUSED, GROWTH = 128 * KIB, 4  # where blocks grow: the first one's bytes, and how fast


@lru_cache(maxsize=256)  # a tuner asks for the same partition with many credits
def cut(gradients: Gradients, partition_bytes: int) -> Tiling:
    """Cut every tensor into pieces of `partition_bytes` and a rest, each a block of its own, in forward order.

    Not into equal pieces: those are smaller than the partition, and a credit of 1X would then let two travel at once.
    A tensor without elements gives no block. A piece is as urgent as its tensor is early.
    """
    room = np.maximum(1, partition_bytes // gradients.itemsize)  # elements per piece
    pieces = -(-gradients.numel // room)
    tensor = np.repeat(np.arange(len(gradients)), pieces)
    piece = np.arange(len(tensor)) - (np.cumsum(pieces) - pieces)[tensor]
    start = piece * room[tensor]
    stop = np.minimum(start + room[tensor], gradients.numel[tensor])
    return Tiling(gradients, tensor, start, stop, np.arange(len(tensor) + 1), priority=tensor)


@lru_cache(maxsize=256)
def cut_and_fuse(gradients: Gradients, partition_bytes: int, *, growing: bool = False) -> Tiling:
    """Fill blocks of `partition_bytes` in forward order: cut what is larger, fuse what is smaller.

    A tensor that does not fit into the room left begins a new block; the last piece of a cut tensor leaves its room
    to the tensors after it. A block carries one dtype, and is as urgent as its earliest tensor.

    Args:
        gradients: what is tiled.
        partition_bytes: of a block, at most.
        growing: fuse fewer in front: `LEAST_FUSED` at first, and then at most `GROWTH` times all that comes before.
    """
    # in columns at once: an object for each of thousands of pieces takes longer than a simulated step
    tensors, starts, stops, edges = list[int](), list[int](), list[int](), list[int]()
    room, open_kind = 0, -1  # elements left in the last block
    before = 0 if growing else partition_bytes
    columns = zip(gradients.numel.tolist(), gradients.itemsize.tolist(), gradients.kind.tolist(), strict=True)
    for tensor, (numel, itemsize, kind) in enumerate(columns):
        fits = numel <= room and kind == open_kind
        most = min(partition_bytes, max(LEAST_FUSED, GROWTH * before, numel * itemsize))
        pieces = range(0, numel, max(1, numel if fits else most // itemsize))
        before += numel * itemsize
        if not fits:
            edges += range(len(starts), len(starts) + len(pieces))
        tensors += [tensor] * len(pieces)
        starts += pieces
        stops += [*pieces[1:], numel][: len(pieces)]
        if fits:
            room -= numel
        elif pieces:
            room, open_kind = pieces.step - (numel - pieces[-1]), kind
    tensor_of, start, stop = np.array([tensors, starts, stops], dtype=np.int64)
    first = np.array(edges, dtype=np.int64)
    return Tiling(gradients, tensor_of, start, stop, np.append(first, len(starts)), priority=tensor_of[first])


@lru_cache(maxsize=16)
def whole_backwards(gradients: Gradients) -> Tiling:
    """One block per tensor, the last layer first: the order in which gradients appear."""
    blocks = [[Segment(tensor, 0, numel)] for tensor, numel in enumerate(gradients.numel.tolist()) if numel]
    return Tiling.of(gradients, blocks[::-1])


@lru_cache(maxsize=64)
def buckets(gradients: Gradients, first_bytes: int, bucket_bytes: int) -> Tiling:
    """Fill buckets with whole tensors in reverse order; a bucket is full as soon as it reaches its size.

    Each dtype has its own open bucket; the first of each dtype closes at `first_bytes`.

    Reference: PyTorch DDP (VLDB'20), sec. 3.2.3; `compute_bucket_assignment_by_size` in reducer.cpp.
    """
    full: list[list[int]] = []  # tensors of each
    filling: dict[int, list[int]] = {}
    filled: dict[int, int] = {}  # bytes
    closed: set[int] = set()  # dtypes whose first bucket is full
    kinds, nbytes = gradients.kind.tolist(), gradients.nbytes.tolist()
    for tensor in reversed(range(len(gradients))):
        kind = kinds[tensor]
        if not nbytes[tensor]:
            continue
        filling.setdefault(kind, []).append(tensor)
        filled[kind] = filled.get(kind, 0) + nbytes[tensor]
        if filled[kind] >= (bucket_bytes if kind in closed else first_bytes):
            full.append(filling.pop(kind))
            del filled[kind]
            closed.add(kind)
    full += filling.values()
    # in columns at once: an object for each of thousands of tensors would set off garbage collection, which takes a
    # second in a process with two million objects
    tensors = np.array([tensor for bucket in full for tensor in bucket], dtype=np.int64)
    edges = np.cumsum([0, *map(len, full)])
    order = np.arange(len(full))
    return Tiling(gradients, tensors, np.zeros_like(tensors), gradients.numel[tensors], edges, order)


def chop(gradients: Gradients, block: list[Segment], most_bytes: int) -> list[list[Segment]]:
    """Cut a block of one dtype into pieces of `most_bytes` and a rest, wherever that falls."""
    room = max(1, most_bytes // int(gradients.itemsize[block[0].tensor]))  # elements per piece
    pieces: list[list[Segment]] = []
    left = 0
    for segment in block:
        start = segment.start
        while start < segment.stop:
            if left == 0:
                pieces.append([])
                left = room
            stop = min(segment.stop, start + left)
            pieces[-1].append(Segment(segment.tensor, start, stop))
            left -= stop - start
            start = stop
    return pieces
