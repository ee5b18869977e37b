"""Gradients merged as far as a start-up saved outweighs the wait: merged-gradient wait-free backpropagation."""

from autobyte.config import Config, Space
from autobyte.job import Job
from autobyte.scheduler.alpha_beta import AlphaBeta, Timetable
from autobyte.scheduler.block import Segment, Tiling
from autobyte.scheduler.plan import Overlap, Plan
from autobyte.scheduler.policies.base import Policy, no_knobs


class MgWfbp(Policy):
    """Whole tensors, last layer first; a gradient joins the message before it if that is worth the wait.

    A message that would begin at s takes the next gradient, ready at r, along if it would still be under way then and
    either has not begun (s > r) or waits less than a start-up (r - s < a). Each merge is decided once, from the back:
    on random jobs the best of all ways to merge is up to 5 % faster.

    Reference: MG-WFBP (INFOCOM'19), sec. 4, algorithm 1; one dtype per message.
    """

    def plan(self, job: Job, config: Config) -> Plan:
        """The merged messages in one fixed sequence, no window."""
        table, cost = Timetable.of(job), AlphaBeta.of(job.cluster)
        rows: list[list[Segment]] = []
        link_s, begin_s, load_s = 0.0, 0.0, 0.0  # the link is free; the open message begins; its bytes take
        kind = -1
        columns = (column[::-1].tolist() for column in (table.tensor, table.ready_s, table.nbytes, table.kind))
        for tensor, ready_s, nbytes, own in zip(*columns, strict=True):
            end_s = begin_s + cost.start_s + load_s
            if rows and own == kind and ready_s < end_s and (begin_s > ready_s or ready_s - begin_s < cost.start_s):
                begin_s = max(link_s, ready_s)
            else:
                rows.append([])
                link_s, load_s, kind = end_s if len(rows) > 1 else 0.0, 0.0, own
                begin_s = max(link_s, ready_s)
            rows[-1].append(Segment(tensor, 0, int(job.gradients.numel[tensor])))
            load_s += nbytes * cost.s_per_byte
        tiling = Tiling.of(job.gradients, rows)
        return Plan(job, tiling, overlap=Overlap.BACKWARD, sequence=tiling.order)

    def space(self, job: Job) -> Space:
        """Nothing to tune: the cost model decides."""
        return no_knobs("mgwfbp")
