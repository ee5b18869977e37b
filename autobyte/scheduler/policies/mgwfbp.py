"""Gradients merged as far as a start-up saved outweighs the wait: merged-gradient wait-free backpropagation."""

from itertools import pairwise

import numpy as np

from autobyte.config import Config, Space
from autobyte.job import Job
from autobyte.scheduler.alpha_beta import AlphaBeta, Timetable
from autobyte.scheduler.block import Segment, Tiling
from autobyte.scheduler.plan import Overlap, Plan
from autobyte.scheduler.policies.base import Policy, no_knobs

MOST = 4096  # tensors of a message: L tensors are planned in at most L x MOST steps


class MgWfbp(Policy):
    """Whole tensors, last layer first, merged so that the last message ends as early as it can under a + s/B.

    The paper decides each merge once, from the back (its knob `published`): a message that would begin at s takes the
    next gradient, ready at r, along if it would still be under way then and either has not begun (s > r) or waits
    less than a start-up (r - s < a). Where gradients follow each other within a start-up that merges all of them, and
    nothing overlaps; so by default all mergings of up to 4,096 neighbours are searched.

    Reference: MG-WFBP (INFOCOM'19), sec. 4, algorithm 1; one dtype per message.
    """

    sizes = ()
    knobs = ("published",)

    def plan(self, job: Job, config: Config) -> Plan:
        """The merged messages in one fixed sequence, no window."""
        table, cost = Timetable.of(job), AlphaBeta.of(job.cluster)
        merge = _published if config.knobs.get("published", 0) >= 0.5 else _optimal
        tensors, numel = table.tensor[::-1].tolist(), job.gradients.numel.tolist()
        firsts = merge(table.ready_s[::-1], table.nbytes[::-1] * cost.s_per_byte, table.kind[::-1], cost.start_s)
        rows = [
            [Segment(tensor, 0, numel[tensor]) for tensor in tensors[first:end]]
            for first, end in pairwise([*firsts, len(tensors)])
        ]
        tiling = Tiling.of(job.gradients, rows)
        return Plan(job, tiling, overlap=Overlap.BACKWARD, sequence=tiling.order)

    def space(self, job: Job) -> Space:
        """Nothing to tune: the cost model decides."""
        return no_knobs("mgwfbp")


def _optimal(ready_s: np.ndarray, bytes_s: np.ndarray, kind: np.ndarray, start_s: float) -> list[int]:
    """First gradients of the messages that end earliest; gradients in the order in which they appear.

    The first j gradients are on their way at the earliest when their last message, whichever it is, begins as soon as
    it can: end[j] = min over i of max(end[i], ready of j) + a + bytes of i … j.
    """
    count = len(ready_s)
    end_s, first, total_s = np.zeros(count + 1), [0] * (count + 1), np.concatenate([[0.0], np.cumsum(bytes_s)])
    low = 0  # where the run of one dtype begins
    for j in range(1, count + 1):
        low = j - 1 if j > 1 and kind[j - 1] != kind[j - 2] else max(low, j - MOST)
        ends_s = np.maximum(end_s[low:j], ready_s[j - 1]) + start_s + total_s[j] - total_s[low:j]
        best = int(ends_s.argmin())
        end_s[j], first[j] = ends_s[best], low + best
    firsts, at = list[int](), count
    while at:
        at = first[at]
        firsts.append(at)
    return firsts[::-1]


def _published(ready_s: np.ndarray, bytes_s: np.ndarray, kind: np.ndarray, start_s: float) -> list[int]:
    """First gradients of the messages of algorithm 1."""
    firsts: list[int] = []
    link_s, begin_s, load_s = 0.0, 0.0, 0.0  # the link is free; the open message begins; its bytes take
    for at, (ready, own_s) in enumerate(zip(ready_s.tolist(), bytes_s.tolist(), strict=True)):
        end_s = begin_s + start_s + load_s
        alike = bool(firsts) and kind[at] == kind[at - 1]
        if not (alike and ready < end_s and (begin_s > ready or ready - begin_s < start_s)):
            link_s, load_s = end_s if firsts else 0.0, 0.0
            firsts.append(at)
        begin_s = max(link_s, ready)
        load_s += own_s
    return firsts
