"""Ways to tile, against what is written out by hand and against their own rules."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import jobs, make_job, spelled, typed_job

from autobyte.job import Gradients, Job
from autobyte.scheduler.tiling import buckets, cut, cut_and_fuse, whole_backwards
from autobyte.units import KIB, MIB

SIZES = st.integers(1, 200)


def test_cut_makes_pieces_of_the_partition_and_a_rest() -> None:
    tiles = cut(make_job(10, 3, 0, 4).gradients, 16)
    assert spelled(tiles) == [[(0, 0, 4)], [(0, 4, 8)], [(0, 8, 10)], [(1, 0, 3)], [(3, 0, 4)]]
    assert tiles.priority.tolist() == [0, 0, 0, 1, 3]


def test_cut_counts_bytes_not_elements() -> None:
    job = typed_job((4, "float64"), (4, "float16"))
    assert spelled(cut(job.gradients, 16)) == [[(0, 0, 2)], [(0, 2, 4)], [(1, 0, 4)]]


def test_a_partition_smaller_than_an_element_is_an_element() -> None:
    assert len(cut(make_job(10).gradients, 1)) == 10
    assert len(cut_and_fuse(make_job(10, 2).gradients, 1)) == 12


@pytest.mark.parametrize("size", [40, 41, 1 << 30, 1 << 62])
def test_a_partition_larger_than_every_tensor_cuts_nothing(size: int) -> None:
    assert spelled(cut(make_job(10, 3).gradients, size)) == [[(0, 0, 10)], [(1, 0, 3)]]


@given(jobs(), SIZES)
def test_cut_makes_the_fewest_pieces_that_fit(job: Job, size: int) -> None:
    gradients, tiles = job.gradients, cut(job.gradients, size)
    for tensor, row in enumerate(tiles.blocks_of):
        full = max(1, size // int(gradients.itemsize[tensor]))
        assert [tiles.blocks[block].segments[0].start for block in row] == list(
            range(0, int(gradients.numel[tensor]), full)
        )


def test_fusion_fills_what_is_left_and_begins_anew() -> None:
    #      a cut tensor's rest takes in the next; the one after does not fit; two small ones share
    tiles = cut_and_fuse(make_job(10, 2, 3, 1, 0).gradients, 16)
    assert spelled(tiles) == [[(0, 0, 4)], [(0, 4, 8)], [(0, 8, 10), (1, 0, 2)], [(2, 0, 3), (3, 0, 1)]]
    assert tiles.priority.tolist() == [0, 0, 0, 2]


def test_fusion_never_mixes_dtypes() -> None:
    job = typed_job((1, "float32"), (1, "float16"), (1, "float16"), (1, "float32"))
    assert spelled(cut_and_fuse(job.gradients, 1 << 20)) == [[(0, 0, 1)], [(1, 0, 1), (2, 0, 1)], [(3, 0, 1)]]
    assert spelled(cut_and_fuse(Job(job.model, job.cluster, wire_dtype="float64").gradients, 1 << 20)) == [
        [(0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 0, 1)]
    ]


@given(jobs(), SIZES)
def test_fusion_wastes_no_room(job: Job, size: int) -> None:
    gradients, tiles = job.gradients, cut_and_fuse(job.gradients, size)
    assert (tiles.nbytes <= max(size, *gradients.itemsize.tolist(), 1)).all()
    assert len(tiles) <= len(cut(gradients, size))
    for before, after in pairwise(tiles.blocks):
        first = after.segments[0]
        assert first.tensor >= before.segments[-1].tensor  # forward order
        alike = gradients.kind[first.tensor] == gradients.kind[before.segments[-1].tensor]
        whole = first.start == 0 and alike
        assert not whole or before.nbytes + int(gradients.nbytes[first.tensor]) > size


def test_blocks_that_grow_are_small_in_front_and_as_large_as_others_behind() -> None:
    gradients = make_job(*[8 * KIB] * 200, MIB).gradients  # 32 KiB each, and one of 4 MiB
    tiles = cut_and_fuse(gradients, 2 * MIB, growing=True)
    assert tiles.nbytes[:3].tolist() == [128 * KIB, 512 * KIB, 2 * MIB]
    front = cut_and_fuse(make_job(MIB, 8 * KIB, 8 * KIB).gradients, 2 * MIB, growing=True)
    assert front.nbytes.tolist() == [2 * MIB, 2 * MIB, 64 * KIB], "one that is large is cut as elsewhere"


@given(st.lists(st.integers(1, 300 * KIB), min_size=1, max_size=60), st.integers(64 * KIB, 8 * MIB))
def test_blocks_that_grow_are_at_most_four_times_all_before_them(numels: list[int], size: int) -> None:
    before = 0
    for block in cut_and_fuse(make_job(*numels).gradients, size, growing=True).blocks:
        fused = len(block.segments) > 1
        assert block.nbytes <= size
        assert not fused or block.segments[0].start or block.nbytes <= max(128 * KIB, 4 * before)
        before += block.nbytes


def test_whole_tensors_go_backwards() -> None:
    tiles = whole_backwards(make_job(10, [3, 4], 0, 5).gradients)
    assert spelled(tiles) == [[(3 + 1, 0, 5)], [(2, 0, 4)], [(1, 0, 3)], [(0, 0, 10)]]
    assert tiles.order.tolist() == [0, 1, 2, 3]


def test_buckets_are_full_as_soon_as_they_reach_their_size() -> None:
    tiles = buckets(make_job(1, 2, 9, 1, 1, 2).gradients, 12, 20)
    assert spelled(tiles) == [[(5, 0, 2), (4, 0, 1)], [(3, 0, 1), (2, 0, 9)], [(1, 0, 2), (0, 0, 1)]]


def test_each_dtype_has_its_own_first_bucket() -> None:
    job = typed_job((2, "float16"), (2, "float16"), (1, "float32"), (1, "float32"), (1, "float32"))
    assert spelled(buckets(job.gradients, 4, 8)) == [[(4, 0, 1)], [(3, 0, 1), (2, 0, 1)], [(1, 0, 2)], [(0, 0, 2)]]


@pytest.mark.parametrize(
    "tile",
    [
        lambda gradients: cut(gradients, 16),
        lambda gradients: cut_and_fuse(gradients, 16),
        whole_backwards,
        lambda gradients: buckets(gradients, 4, 16),
    ],
)
def test_a_model_without_elements_sends_nothing(tile) -> None:
    empty: Gradients = make_job([], 0, [0, 0]).gradients
    assert len(tile(empty)) == 0
    assert tile(empty) is tile(empty)  # kept: tuners ask again and again
