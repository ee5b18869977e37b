"""Whole tensors, one at a time, in the order in which the forward pass needs them: TicTac's transfer order."""

from autobyte.config import Config, Space
from autobyte.job import Job
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies.base import Policy, no_knobs
from autobyte.scheduler.tiling import cut
from autobyte.units import GIB


class TicTac(Policy):
    """An order alone: nothing is cut and nothing fused.

    Of two transfers, TAC sends a before b if min(P_b, M_a) < min(P_a, M_b), where P is the compute that only this
    transfer holds up and M how long it takes; ties go to the smaller M+, the least total of transfers that some
    compute waits for. In layers that follow each other only the foremost outstanding tensor has P > 0, and M+ grows
    with the layer: so TAC gives the forward order, whatever the times. TIC, which is M+ alone with unit times, gives
    it too, but for a tie of the two foremost, which may go in either order.

    Reference: TicTac (MLSys'19), sec. 4, algorithms 1 to 3, eq. 5; its transfers pass its sender one by one.
    """

    sizes = ()

    def plan(self, job: Job, config: Config) -> Plan:
        """One block per tensor, the front layers first, one in flight."""
        whole = max(GIB, job.gradients.total_bytes)
        return Plan(job, cut(job.gradients, whole), credit_bytes=1)

    def space(self, job: Job) -> Space:
        """Nothing to tune."""
        return no_knobs("tictac")
