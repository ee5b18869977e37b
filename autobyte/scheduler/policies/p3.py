"""Small slices, front layers first, one at a time: priority-based parameter propagation."""

from autobyte.config import P3_DEFAULT, Config, Space
from autobyte.job import Job
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies.base import Policy
from autobyte.scheduler.tiling import cut
from autobyte.units import KIB, MIB


class P3Policy(Policy):
    """Slices of 160 KB with a credit of 1X, unless the config says otherwise: one at a time, or as many short ones.

    Reference: P3 (MLSys'19), sec. 4; its default as AutoByte (sec. II-E) quotes it.
    """

    by_gradients = True

    def plan(self, job: Job, config: Config) -> Plan:
        """Slices of every tensor, its index in the model as the priority."""
        return Plan(job, cut(job.gradients, config.partition_bytes), credit_bytes=config.credit_bytes)

    def space(self, job: Job) -> Space:
        """The slice size; the credit is one slice."""
        default = Config(P3_DEFAULT.partition_bytes, P3_DEFAULT.credit_bytes, "p3")
        return Space((4 * KIB, 16 * MIB), (1.0, 1.0), default)
