"""Reduce-scatter beside backward, all-gather beside the next forward: DeAR."""

import numpy as np

from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.job import Job
from autobyte.scheduler.block import Tiling
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies.base import Policy
from autobyte.scheduler.tiling import buckets
from autobyte.units import MIB


class Dear(Policy):
    """`partition_bytes` is the fusion threshold; whole tensors, both halves of a group in one fixed sequence.

    The bytes are those of an all-reduce; the start-up is paid twice.

    Reference: DeAR (ICDCS'23, arXiv 2302.12445), sec. 3 and 4; its fusion threshold begins at 25 MB, 1 to 256 MB.
    """

    sizes = ("partition",)

    def plan(self, job: Job, config: Config) -> Plan:
        """Reduce-scatters as gradients appear, then all-gathers in the order of the forward pass, no window.

        Raises:
            InputError: parameter servers.
        """
        if job.cluster.servers:
            raise InputError(
                "policy 'dear' halves all-reduces: it needs --arch allreduce, servers push and pull anyway"
            )
        groups = buckets(job.gradients, config.partition_bytes, config.partition_bytes)
        count, sizes = len(groups), np.diff(groups.block_start)
        first = np.concatenate([groups.block_start[:-1], groups.block_start[:-1][::-1]])  # segment of each block
        edges = np.concatenate([[0], np.cumsum(np.concatenate([sizes, sizes[::-1]]))])
        both = np.repeat(first - edges[:-1], np.diff(edges)) + np.arange(edges[-1])  # segments of both halves
        columns = groups.tensor[both], groups.start[both], groups.stop[both]
        gathers = np.concatenate([np.full(count, -1), np.arange(count)[::-1]])
        tiling = Tiling(job.gradients, *columns, edges, np.arange(2 * count), gathers)
        return Plan(job, tiling, sequence=tiling.order)

    def space(self, job: Job) -> Space:
        """The fusion threshold."""
        return Space((MIB, 256 * MIB), (1.0, 1.0), Config(25 * MIB, 25 * MIB, "dear"))
