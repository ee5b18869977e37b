"""Blocks tile every gradient exactly, or are refused; a digest tells whether two ranks mean the same."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jobs import covers_exactly, jobs, make_job, segments, spelled, typed_job

from autobyte.config import Config
from autobyte.errors import InputError
from autobyte.job import Cluster, Job
from autobyte.scheduler.block import Block, Segment, Tiling
from autobyte.scheduler.plan import CreditRule, Overlap, Plan
from autobyte.scheduler.policies import POLICIES, make_plan
from autobyte.scheduler.tiling import cut

JOB = make_job(10, 6, 0, 4)
GOOD = [[(0, 0, 5)], [(0, 5, 10), (1, 0, 2)], [(3, 0, 4), (1, 2, 6)]]


def tiling(*rows: list[tuple[int, int, int]], job: Job = JOB, priority: list[int] | None = None) -> Tiling:
    return Tiling.of(job.gradients, segments(*rows), priority=priority)


def test_columns_say_the_same_as_blocks() -> None:
    tiles = tiling(*GOOD, priority=[7, 3, 3])
    assert len(tiles) == 3
    assert spelled(tiles) == GOOD
    assert tiles.blocks[1] == Block(1, (Segment(0, 5, 10), Segment(1, 0, 2)), 4 * 7)
    assert tiles.nbytes.tolist() == [20, 28, 32]
    assert tiles.order.tolist() == [1, 2, 0]  # of equals, the place among the blocks
    assert tiles.rank.tolist() == [2, 0, 1]
    assert tiles.waits.tolist() == [1, 2, 2]
    assert tiles.blocks_of == ((1, 0), (1, 2), (), (2,))  # the most urgent first
    assert tiles.pairs.tolist() == [[0, 1, 1, 2, 2], [0, 0, 1, 1, 3]]


def test_a_block_waits_once_for_a_tensor_of_which_it_carries_two_pieces() -> None:
    tiles = tiling([(0, 0, 3), (0, 6, 10)], [(0, 3, 6)], job=make_job(10))
    assert tiles.waits.tolist() == [1, 1]
    assert tiles.blocks_of == ((0, 1),)


def test_in_the_order_given_unless_told_otherwise() -> None:
    assert tiling(*reversed(GOOD)).order.tolist() == [0, 1, 2]


def test_nothing_to_send_is_no_block() -> None:
    empty = Tiling.of(make_job([], 0).gradients, [])
    assert (len(empty), empty.blocks, empty.blocks_of) == (0, (), ((),))
    assert (empty.nbytes.tolist(), empty.waits.tolist(), empty.order.tolist()) == ([], [], [])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[(0, 0, 4)], [(0, 5, 10)]], r"\[5, 10\) of tensor 'l0.0' should begin at 4"),  # a gap
        ([[(0, 0, 6)], [(0, 5, 10)]], r"\[5, 10\) of tensor 'l0.0' should begin at 6"),  # an overlap
        ([[(0, 0, 10)], [(0, 0, 10)]], r"\[0, 10\) of tensor 'l0.0' should begin at 10"),  # twice
        ([[(0, 1, 10)]], r"\[1, 10\) of tensor 'l0.0' should begin at 0"),  # a missing head
        ([[(0, -1, 10)]], r"\[-1, 10\) of tensor 'l0.0' should begin at 0"),
        ([[(0, 0, 9)]], "tensor 'l0.0' has 10 elements, the blocks cover 9"),  # a missing tail
        ([[(0, 0, 11)]], "tensor 'l0.0' has 10 elements, the blocks cover 11"),
        ([], "tensor 'l0.0' has 10 elements, the blocks cover 0"),
        ([[(0, 0, 10), (0, 10, 10)]], r"\[10, 10\) of tensor 'l0.0' is empty"),
        ([[(0, 0, 10)], [(0, 5, 4)]], r"\[5, 4\) of tensor 'l0.0' is empty"),
    ],
)
def test_what_does_not_tile_exactly_is_refused(rows: list[list[tuple[int, int, int]]], message: str) -> None:
    with pytest.raises(InputError, match=rf"^blocks must tile every tensor exactly: {message}$"):
        tiling(*rows, job=make_job(10))


def test_a_tensor_without_elements_needs_no_block_and_takes_none() -> None:
    assert len(tiling([(1, 0, 3)], job=make_job(0, 3, 0))) == 1
    with pytest.raises(InputError, match=r"\[0, 0\) of tensor 'l0.0' is empty"):
        tiling([(0, 0, 0)], [(1, 0, 3)], job=make_job(0, 3, 0))


def test_a_tensor_that_is_left_out_is_named() -> None:
    with pytest.raises(InputError, match=r"tensor 'l1.0' has 6 elements, the blocks cover 0$"):
        tiling([(0, 0, 10)], [(3, 0, 4)])


def test_an_empty_block_is_refused() -> None:
    with pytest.raises(InputError, match=r"^every block needs at least one segment$"):
        tiling([(0, 0, 10)], [], job=make_job(10))


def test_a_tensor_that_is_not_there_is_refused() -> None:
    for tensor in (-1, 1):
        with pytest.raises(InputError, match=r"^a segment names tensor .*; there are 1$"):
            tiling([(0, 0, 10)], [(tensor, 0, 1)], job=make_job(10))


def test_a_block_carries_one_dtype() -> None:
    job = typed_job((3, "float32"), (3, "float16"), (3, "float32"))
    assert len(tiling([(0, 0, 3), (2, 0, 3)], [(1, 0, 3)], job=job)) == 2
    with pytest.raises(InputError, match=r"^a block carries one dtype: .*\(block 1\)$"):
        tiling([(0, 0, 3)], [(1, 0, 3), (2, 0, 3)], job=job)
    same = replace(job, wire_dtype="bfloat16")  # on the wire they are all alike
    assert tiling([(0, 0, 3)], [(1, 0, 3), (2, 0, 3)], job=same).nbytes.tolist() == [6, 12]


def test_every_block_needs_a_priority() -> None:
    with pytest.raises(InputError, match=r"^3 blocks need as many priorities, got 2$"):
        tiling(*GOOD, priority=[1, 2])


SIZES = st.sampled_from([1, 3, 4, 8, 30, 100, 1 << 20])


@given(jobs(), SIZES, st.sampled_from(POLICIES.names()), st.booleans())
def test_every_policy_tiles_every_job_exactly(job: Job, size: int, policy: str, fuse: bool) -> None:
    knobs = {"fusion": 1.0} if fuse and policy == "bytescheduler" else {}
    assume(policy != "dear" or not job.cluster.servers)
    plan = make_plan(job, Config(size, 4 * size, policy, knobs))
    assert covers_exactly(plan.tiling)
    assert plan.tiling.nbytes.sum() == job.gradients.total_bytes * (2 if policy == "dear" else 1)
    assert sorted(plan.tiling.order.tolist()) == list(range(len(plan.tiling)))
    assert plan.tiling.order[plan.tiling.rank].tolist() == list(range(len(plan.tiling)))


@given(jobs(), SIZES, st.data())
def test_a_tiling_with_anything_moved_is_no_tiling(job: Job, size: int, data: st.DataObject) -> None:
    blocks = spelled(cut(job.gradients, size))
    if not blocks:
        return
    index = data.draw(st.integers(0, len(blocks) - 1))
    tensor, start, stop = blocks[index][0]
    moved = data.draw(
        st.sampled_from([[(tensor, start + 1, stop)], [(tensor, start, stop + 1)], [(tensor, start, stop - 1)]])
    )
    for rows in ([*blocks[:index], moved, *blocks[index + 1 :]], blocks[:index] + blocks[index + 1 :]):
        with pytest.raises(InputError, match=r"^blocks must tile every tensor exactly: "):
            Tiling.of(job.gradients, segments(*rows))


def plan(job: Job = JOB, *, piece: int = 20) -> Plan:
    return Plan(job, cut(job.gradients, piece), 40)


def test_equal_plans_have_equal_digests() -> None:
    again = make_job(10, 6, 0, 4, cluster=Cluster(8, servers=8))  # another object, elsewhere: the same to send
    assert plan().digest == plan(again).digest
    assert len(plan().digest) == 16
    assert Plan(JOB, tiling(*GOOD)).digest == Plan(JOB, tiling(*GOOD)).digest


def test_whatever_ranks_must_agree_on_changes_the_digest() -> None:
    one, sequence = plan(), range(len(plan().tiling))
    renamed = replace(JOB.model, layers=tuple(replace(layer, tensors=()) for layer in JOB.model.layers[2:3]))
    others = {
        "itself": one,
        "cut": plan(piece=24),
        "credit": replace(one, credit_bytes=44),
        "no credit": replace(one, credit_bytes=None),
        "rule": replace(one, rule=CreditRule.HARD),
        "overlap": replace(one, overlap=Overlap.BACKWARD),
        "barrier": replace(one, barrier=True),
        "a sequence": one.with_sequence(sequence),
        "another sequence": one.with_sequence(list(reversed(sequence))),
        "numel": plan(make_job(10, 6, 0, 5)),
        "a tensor without elements": plan(make_job(10, 6, 4)),
        "dtype": plan(replace(JOB, wire_dtype="float16"), piece=10),
        "no job": plan(Job(renamed, JOB.cluster)),
        "grouping": Plan(JOB, tiling(*GOOD), 40),
        "order of segments": Plan(JOB, tiling(*GOOD[:2], GOOD[2][::-1]), 40),
        "order of blocks": Plan(JOB, tiling(*GOOD[::-1]), 40),
        "priority": Plan(JOB, tiling(*GOOD, priority=[2, 1, 0]), 40),
    }
    assert len({other.digest for other in others.values()}) == len(others)


def test_the_same_pieces_in_other_blocks_are_another_plan() -> None:
    whole = [(0, 0, 10), (1, 0, 6), (3, 0, 4)]
    assert tiling(whole[:1], whole[1:]).digest != tiling(whole[:2], whole[2:]).digest


def test_two_tensors_of_one_size_are_told_apart() -> None:
    """Issued in swapped order, an all-reduce would add one to the other."""
    layers = JOB.model.layers
    swapped = [
        replace(t, name=name) for t, name in zip(JOB.model.tensors, ("l1.0", "l0.0", "l2.0", "l3.0"), strict=True)
    ]
    model = replace(
        JOB.model, layers=tuple(replace(layer, tensors=(t,)) for layer, t in zip(layers, swapped, strict=True))
    )
    assert plan().digest != plan(replace(JOB, model=model)).digest


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 2, 3], [1, 2, 3], [-1, 0, 1], []])
def test_a_sequence_names_every_block_once(order: list[int]) -> None:
    with pytest.raises(InputError, match=r"^a sequence names each of the 3 blocks once$"):
        Plan(JOB, tiling(*GOOD)).with_sequence(order)


def test_a_sequence_can_be_taken_away_again() -> None:
    one = Plan(JOB, tiling(*GOOD))
    fixed = one.with_sequence([2, 0, 1])
    assert fixed.sequence is not None
    assert fixed.sequence.tolist() == [2, 0, 1]
    assert fixed.with_sequence(None).digest == one.digest


@pytest.mark.parametrize("credit", [0, -1])
def test_a_credit_is_positive(credit: int) -> None:
    with pytest.raises(InputError, match=rf"^credit_bytes must be positive, got {credit}$"):
        Plan(JOB, tiling(*GOOD), credit)


def test_a_plan_is_of_its_own_jobs_gradients() -> None:
    with pytest.raises(InputError, match=r"^the tiling is not of the gradients of 'toy'$"):
        Plan(make_job(10, 6, 0, 5), tiling(*GOOD))
    assert np.array_equal(Plan(replace(JOB, accumulation=2), tiling(*GOOD)).tiling.nbytes, [20, 28, 32])
