"""Fused buckets in reverse order, beside the backward pass: PyTorch's DistributedDataParallel."""

from autobyte.config import Config, Space
from autobyte.job import Job
from autobyte.scheduler.plan import Overlap, Plan
from autobyte.scheduler.policies.base import Policy
from autobyte.scheduler.tiling import buckets
from autobyte.units import KIB, MIB

FIRST_BUCKET_BYTES, DEFAULT_MIB = MIB, 25
#: The buckets that a DDP user would try; the reference of `gap closed` is the best of them.
BUCKETS = tuple(Config(size * MIB, size * MIB, "ddp") for size in (1, 4, 25, 100))
DEFAULT_BUCKETS = Config(DEFAULT_MIB * MIB, DEFAULT_MIB * MIB, "ddp")


class Ddp(Policy):
    """`partition_bytes` is DDP's bucket size; buckets travel strictly in order, and all at once if they are ready.

    The first bucket is of 1 MiB whatever the size, as in the paper. In torch 2.13 a `bucket_cap_mb` that is given is
    the size of the first bucket as well, which overlaps no better.

    Reference: PyTorch DDP (VLDB'20), sec. 3.2.2 and 3.2.3; `bucket_cap_mb` of 25, first bucket 1 MiB.
    """

    sizes = ("partition",)
    by_gradients = True

    def plan(self, job: Job, config: Config) -> Plan:
        """Buckets of whole tensors in one fixed sequence, no window."""
        tiling = buckets(job.gradients, FIRST_BUCKET_BYTES, config.partition_bytes)
        return Plan(job, tiling, overlap=Overlap.BACKWARD, sequence=tiling.order)

    def space(self, job: Job) -> Space:
        """The bucket size."""
        return Space((256 * KIB, 256 * MIB), (1.0, 1.0), DEFAULT_BUCKETS)
