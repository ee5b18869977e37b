"""A block is full with the last of its gradients, whatever the order in which they come."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from jobs import jobs, make_job

from autobyte.job import Job
from autobyte.scheduler.core import Core
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.tiling import cut_and_fuse
from autobyte.torch.exchange.filling import Filling


def test_a_fused_block_is_full_with_its_last_gradient() -> None:
    filling = Filling(cut_and_fuse(make_job(1, 1, 1, 1, 8).gradients, 8))  # two and two tensors fused, and one cut
    assert [filling.fills(tensor) for tensor in (4, 3, 0, 1, 2)] == [True, False, False, True, True]


@given(jobs(), st.integers(1, 200), st.randoms())
def test_blocks_start_with_gradients_that_fill_one(job: Job, size: int, random: Random) -> None:
    """The core, which is asked tensor by tensor, starts nothing with any other."""
    tiling = cut_and_fuse(job.gradients, size)
    filling, core = Filling(tiling), Core(Plan(job, tiling))
    for _ in range(2):
        tensors = list(range(len(job.gradients)))
        random.shuffle(tensors)
        for tensor in tensors:
            started = core.ready(tensor)
            assert filling.fills(tensor) is bool(started)
            for block in started:
                core.sent(block)
                core.done(block)
        core.end_step()
        filling.begin(tiling)
