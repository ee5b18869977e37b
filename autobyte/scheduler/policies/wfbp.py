"""Each tensor as soon as its gradient is there, beside the backward pass: wait-free backpropagation."""

from autobyte.config import Config, Space
from autobyte.job import Job
from autobyte.scheduler.plan import Overlap, Plan
from autobyte.scheduler.policies.base import Policy, no_knobs
from autobyte.scheduler.tiling import whole_backwards


class Wfbp(Policy):
    """Whole tensors, last layer first, overlapping backward; the next forward waits for all of them.

    Reference: Poseidon (ATC'17), sec. 3.1.
    """

    sizes = ()
    by_gradients = True

    def plan(self, job: Job, config: Config) -> Plan:
        """One block per tensor, last layer first, no window."""
        return Plan(job, whole_backwards(job.gradients), overlap=Overlap.BACKWARD)

    def space(self, job: Job) -> Space:
        """Nothing to tune."""
        return no_knobs("wfbp")
