"""Reduce-scatter beside backward, all-gather beside the next forward: DeAR."""

import numpy as np

from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.job import Job
from autobyte.scheduler.block import Segment, Tiling
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies.base import Policy
from autobyte.scheduler.tiling import buckets
from autobyte.units import MIB


class Dear(Policy):
    """`partition_bytes` is the fusion threshold; whole tensors, both halves of a group in one fixed sequence.

    The bytes are those of an all-reduce; the start-up is paid twice.

    Reference: DeAR (ICDCS'23, arXiv 2302.12445), sec. 3 and 4; its fusion threshold begins at 25 MB, 1 to 256 MB.
    """

    def plan(self, job: Job, config: Config) -> Plan:
        """Reduce-scatters as gradients appear, then all-gathers in the order of the forward pass, no window.

        Raises:
            InputError: parameter servers.
        """
        if job.cluster.servers:
            raise InputError(
                "policy 'dear' halves all-reduces: it needs --arch allreduce, servers push and pull anyway"
            )
        groups = buckets(job.gradients, config.partition_bytes, config.partition_bytes).blocks
        rows: list[tuple[Segment, ...]] = [group.segments for group in groups]
        count = len(rows)
        gathers = [*[-1] * count, *reversed(range(count))]
        tiling = Tiling.of(job.gradients, rows + rows[::-1], gathers=gathers)
        return Plan(job, tiling, sequence=np.arange(2 * count))

    def space(self, job: Job) -> Space:
        """The fusion threshold."""
        return Space((MIB, 256 * MIB), (1.0, 1.0), Config(25 * MIB, 25 * MIB, "dear"))
