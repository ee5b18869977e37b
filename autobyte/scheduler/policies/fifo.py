"""Whole tensors after the backward pass, all before the next forward: AutoByte's baseline."""

from autobyte.config import Config, Space
from autobyte.job import Job
from autobyte.scheduler.plan import Overlap, Plan
from autobyte.scheduler.policies.base import Policy, no_knobs
from autobyte.scheduler.tiling import whole_backwards


class Fifo(Policy):
    """Nothing overlaps: backward, then communication in the order of the gradients, then forward.

    Reference: AutoByte (arXiv 2112.13509), sec. IV-A, "executed sequentially".
    """

    sizes = ()
    by_gradients = True

    def plan(self, job: Job, config: Config) -> Plan:
        """One block per tensor, last layer first, no window."""
        return Plan(job, whole_backwards(job.gradients), overlap=Overlap.NONE)

    def space(self, job: Job) -> Space:
        """Nothing to tune."""
        return no_knobs("fifo")
