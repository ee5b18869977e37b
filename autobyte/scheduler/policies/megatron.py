"""Buckets that grow with the number of data-parallel workers: Megatron-LM's overlapped gradient reduction."""

from autobyte.config import Config, Space
from autobyte.job import Job
from autobyte.scheduler.plan import Overlap, Plan
from autobyte.scheduler.policies.base import Policy
from autobyte.scheduler.tiling import buckets
from autobyte.units import GIB, MIB

LEAST, PER_WORKER = 40_000_000, 1_000_000  # parameters
FP32 = 4  # bytes of a parameter's main gradient


class Megatron(Policy):
    """`partition_bytes` is the bucket size; by default max(40 million, 1 million x workers) fp32 parameters.

    Reference: Megatron-LM's released code, in no paper: `bucket_size` of core/distributed's
    DistributedDataParallelConfig, so that collectives of many workers do not become latency-bound; buckets of whole
    tensors in reverse order, beside the backward pass.
    """

    sizes = ("partition",)

    def plan(self, job: Job, config: Config) -> Plan:
        """Buckets in one fixed sequence, no window."""
        tiling = buckets(job.gradients, config.partition_bytes, config.partition_bytes)
        return Plan(job, tiling, overlap=Overlap.BACKWARD, sequence=tiling.order)

    def space(self, job: Job) -> Space:
        """The bucket size."""
        size = FP32 * max(LEAST, PER_WORKER * job.cluster.workers)
        return Space((MIB, max(GIB, size)), (1.0, 1.0), Config(size, size, "megatron"))
