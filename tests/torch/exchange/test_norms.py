"""The norm of gradients of which each rank has a share."""

import math
from collections.abc import Sequence
from datetime import timedelta

import pytest
import torch
from jobs import make_job
from ranks import on_ranks

from autobyte.config import Config
from autobyte.exchange.control import CommunicationError, Control
from autobyte.scheduler.engines.shares import Shares
from autobyte.scheduler.policies import make_plan
from autobyte.torch.exchange.flags import StepCounts, StepFlags
from autobyte.torch.exchange.norms import check_clipping, norm_of_all

BLOCK = make_plan(make_job(5), Config(8, 8)).tiling.blocks[0]


def test_all_ranks_get_the_same_norm() -> None:
    norms = on_ranks(_norms, 3)
    assert len(set(norms)) == 1
    assert norms[0] == pytest.approx(math.sqrt(4 * (1 + 4 + 9)))


def _norms(rank: int) -> float:
    control = Control("norms", rank=rank, ranks=range(3), timeout=timedelta(seconds=20))
    shares = Shares()
    assert math.isnan(norm_of_all(shares, control)), "nobody has measured any"
    shares.measure(2.0)
    shares.put(BLOCK, torch.full((4,), rank + 1.0))
    return norm_of_all(shares, control)


class Three:
    """Control of the first of three ranks."""

    size = 3

    def failure(self, what: str, *, step: int) -> CommunicationError:
        return CommunicationError(f"rank 0, step {step}: {what}")


def check(clipping: Sequence[tuple[float, float] | None], joined: int = 0) -> None:
    """What the first rank finds out where the last ones have no inputs left."""
    flags = [
        StepFlags([True], left_out=False, joined=rank >= 3 - joined, announces=False, clips=clips)
        for rank, clips in enumerate(clipping)
    ]
    counts = StepCounts(torch.stack([each.pack() for each in flags]).sum(dim=0))
    check_clipping(counts, flags[0], Three(), 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("others", [(2.0, 2.0), (1.0, 1.0), (1.0, math.inf)])
def test_ranks_that_clip_to_other_norms_are_told(others: tuple[float, float]) -> None:
    with pytest.raises(
        CommunicationError, match=r"^rank 0, step 4: ranks differ in what .*; here max_norm is 1, norm_type is 2$"
    ):
        check([(1.0, 2.0), others, (1.0, 2.0)])


@pytest.mark.parametrize(("clipping", "joined", "all_or_none"), [
    ("yyy", 0, True), ("nnn", 0, True), ("ynn", 0, False), ("yyn", 1, True), ("ynn", 1, False),
])  # fmt: skip
def test_all_ranks_with_inputs_clip_or_none(clipping: str, joined: int, all_or_none: bool) -> None:
    clips = [(1.0, 2.0) if each == "y" else None for each in clipping]
    if all_or_none:
        check(clips, joined)
        return
    with pytest.raises(CommunicationError, match=r"^rank 0, step 4: \d of \d ranks called clip_grad_norm_\(\)"):
        check(clips, joined)
