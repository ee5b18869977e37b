"""Partitions of large tensors, front layers first, under a credit window; small tensors fused if asked."""

from autobyte.config import BYTESCHEDULER_DEFAULT, Config, Space
from autobyte.job import Job
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies.base import Policy
from autobyte.scheduler.tiling import cut, cut_and_fuse


class ByteScheduler(Policy):
    """Cut what is larger than `partition_bytes`; with the knob `fusion` at 1, fuse what is smaller.

    Reference: ByteScheduler (SOSP'19), sec. 4. It cuts along the first dimension and never fuses; here any element is
    a place to cut, and fusion is ours: without it, priority loses to DDP on models of many small tensors.

    Where gradients are clipped by their norm, the last reduce-scatters and the first all-gathers travel beside no
    layer, because the norm lies between them. So fewer tensors are fused in front there.
    """

    knobs = ("fusion",)
    by_gradients = True

    def plan(self, job: Job, config: Config) -> Plan:
        """Pieces of every tensor, its index in the model as the priority."""
        if config.knobs.get("fusion", 0) >= 0.5:
            tiling = cut_and_fuse(job.gradients, config.partition_bytes, growing=job.clips)
        else:
            tiling = cut(job.gradients, config.partition_bytes)
        return Plan(job, tiling, credit_bytes=config.credit_bytes)

    def space(self, job: Job) -> Space:
        """The two knobs, 4 KiB … 1 GiB and 1X … 16X; without fusion, as published."""
        return Space(default=BYTESCHEDULER_DEFAULT)
