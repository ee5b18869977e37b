"""The norm of gradients of which each rank has a share."""

import math
from datetime import timedelta

import pytest
import torch
from jobs import make_job
from ranks import on_ranks

from autobyte.config import Config
from autobyte.scheduler.engines.shares import Shares
from autobyte.scheduler.policies import make_plan
from autobyte.torch.exchange.control import CommunicationError, Control
from autobyte.torch.exchange.flags import StepCounts, StepFlags
from autobyte.torch.exchange.norms import all_clip, norm_of_all

BLOCK = make_plan(make_job(5), Config(8, 8)).tiling.blocks[0]


def test_all_ranks_get_the_same_norm_and_those_without_inputs_help() -> None:
    norms = on_ranks(_norms, 3)
    assert len(set(norms)) == 1
    assert norms[0] == pytest.approx(math.sqrt(4 * (1 + 4 + 9)))


def _norms(rank: int) -> float:
    control = Control("norms", rank=rank, ranks=range(3), timeout=timedelta(seconds=20))
    shares = Shares()
    shares.measure(2.0)
    shares.put(BLOCK, torch.full((4,), rank + 1.0))
    ended = rank == 1
    return norm_of_all(shares, control, limit=None if ended else 1.0, kind=None if ended else 2.0, step=0)


def test_ranks_that_clip_to_other_norms_are_told() -> None:
    said = on_ranks(_differ, 2)
    assert said == [
        f"rank {rank}, step 7: ranks differ in what clip_grad_norm_() is called with; max_norm: [1.0, 2.0], "
        "norm_type: [2.0, 2.0]"
        for rank in range(2)
    ]


def _differ(rank: int) -> str:
    control = Control("norms", rank=rank, ranks=range(2), timeout=timedelta(seconds=20))
    shares = Shares()
    shares.measure(2.0)
    with pytest.raises(CommunicationError) as error:
        norm_of_all(shares, control, limit=rank + 1.0, kind=2.0, step=7)
    return str(error.value)


@pytest.mark.parametrize(("clipping", "joined", "all_or_none"), [
    ((True, True, True), 0, True), ((False, False, False), 0, True), ((True, False, False), 0, False),
    ((True, True, False), 1, True), ((True, False, False), 1, False),
])  # fmt: skip
def test_all_ranks_with_inputs_clip_or_none(clipping: tuple[bool, ...], joined: int, all_or_none: bool) -> None:
    flags = [
        StepFlags([True], left_out=False, joined=rank >= 3 - joined, announces=False, clips=clips)
        for rank, clips in enumerate(clipping)
    ]
    counts = StepCounts(torch.stack([each.pack() for each in flags]).sum(dim=0))

    class Three:
        size = 3

        def failure(self, what: str, *, step: int) -> CommunicationError:
            return CommunicationError(f"rank 0, step {step}: {what}")

    if all_or_none:
        assert all_clip(counts, Three(), 4) == any(clipping)  # type: ignore[arg-type]
        return
    with pytest.raises(CommunicationError, match=r"^rank 0, step 4: \d of \d ranks called clip_grad_norm_\(\)"):
        all_clip(counts, Three(), 4)  # type: ignore[arg-type]
