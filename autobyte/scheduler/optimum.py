"""The true optimum of a small job, by exhaustive search over orders and cuts; it knows nothing of any policy."""
# ruff: noqa: PLR0912, PLR0915 (compiled code: flat loops are the point)
# mypy: disallow-untyped-decorators=False

import numpy as np

from autobyte.compiling import njit
from autobyte.errors import InputError
from autobyte.job import Floats, Job
from autobyte.scheduler.alpha_beta import AlphaBeta, Timetable

MOST_STATES = 1 << 16


def optimum_s(job: Job, *, units: int, fusion: bool) -> float:
    """The least step of any schedule of a small job whose tensors are cut at multiples of 1/units of each (s).

    A message carries any number of units of one tensor, or with `fusion` of any tensors; one travels at a time, costs
    a + s/B, and starts when the link is free and all that it carries is ready. Every sequence of messages is tried,
    by how much of each tensor is left: of all ways to leave the same, those stay that free the link earlier or have
    finished shorter steps.

    Args:
        job: identical workers; its cluster gives a and B.
        units: into how many equal parts a tensor can be cut.
        fusion: whether a message may carry several tensors.

    Raises:
        InputError: more than 65,536 combinations of what may be left.
    """
    table, cost = Timetable.of(job), AlphaBeta.of(job.cluster)
    if (units + 1) ** len(table.tensor) > MOST_STATES:
        raise InputError(f"{len(table.tensor)} tensors in {units} units are too many to try every schedule")
    if not len(table.tensor):
        return table.compute_s
    if fusion and len(set(table.kind.tolist())) > 1:
        raise InputError("the optimum with fusion is for gradients of one dtype")
    unit_s = table.nbytes * cost.s_per_byte / units
    return float(
        _exhaust(table.ready_s, table.tail_s + cost.latency_s, unit_s, cost.start_s, table.compute_s, units, fusion)
    )


@njit(cache=True)
def _exhaust(
    ready: Floats, tail: Floats, unit: Floats, start: float, compute: float, units: int, fusion: bool
) -> float:
    """Dynamic programming over what is left, from everything to nothing

    A state is a number whose digits, to the base units + 1, say how many units of each tensor are left; sending
    something makes it smaller. Each keeps the Pareto front of (when the link is free, the step so far).
    """
    n, base = len(ready), units + 1
    states = base**n
    fronts, width = np.full((states, 64, 2), np.inf), np.zeros(states, np.int64)
    digits, take = np.zeros(n, np.int64), np.zeros(n, np.int64)
    fronts[states - 1, 0, 0], fronts[states - 1, 0, 1] = 0.0, compute
    width[states - 1] = 1
    for state in range(states - 1, 0, -1):
        rest = state
        for k in range(n):
            digits[k] = rest % base
            rest //= base
        take[:] = 0
        while True:  # the next choice of units to send
            k = 0
            if fusion:
                while k < n and take[k] == digits[k]:
                    take[k] = 0
                    k += 1
                if k == n:
                    break
                take[k] += 1
            else:
                while k < n and take[k] == 0:
                    k += 1
                if k == n:
                    k = 0
                elif take[k] == digits[k]:
                    take[k] = 0
                    k += 1
                while k < n and digits[k] == 0:
                    k += 1
                if k == n:
                    break
                take[k] += 1
            after, place, hold, earliest, urgent = state, 1, start, 0.0, -1.0
            for k in range(n):
                if take[k]:
                    after -= take[k] * place
                    hold += take[k] * unit[k]
                    earliest = max(earliest, ready[k])
                    if take[k] == digits[k]:
                        urgent = max(urgent, tail[k])
                place *= base
            for way in range(width[state]):
                free = max(fronts[state, way, 0], earliest) + hold
                step = fronts[state, way, 1]
                if urgent >= 0:
                    step = max(step, free + urgent)
                for k in range(n):  # what it will be at least: fewer points differ
                    left = digits[k] - take[k]
                    if left:
                        step = max(step, free + start + left * unit[k] + tail[k])
                width[after] = _keep(fronts[after], width[after], free, step)
    best = np.inf
    for way in range(width[0]):
        best = min(best, fronts[0, way, 1])
    return best


@njit(cache=True)
def _keep(front: Floats, width: int, free: float, step: float) -> int:
    """Add a point to a Pareto front, dropping what it makes pointless: the new width"""
    for way in range(width):
        if front[way, 0] <= free and front[way, 1] <= step:
            return width
    kept = 0
    for way in range(width):
        if front[way, 0] < free or front[way, 1] < step:
            front[kept, 0], front[kept, 1] = front[way, 0], front[way, 1]
            kept += 1
    if kept == len(front):
        raise ValueError("a Pareto front outgrew its room")
    front[kept, 0], front[kept, 1] = free, step
    return kept + 1
