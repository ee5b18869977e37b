"""How fast a step could possibly be: the bound that every schedule is measured against."""

import numpy as np

from autobyte.errors import InputError
from autobyte.job import Cluster, Floats, Job


def wire_s(job: Job, nbytes: float | None = None) -> float:
    """Time that the slowest link is busy with `nbytes` of gradient (by default all), without overheads (s)."""
    total = job.gradients.total_bytes if nbytes is None else float(nbytes)
    return total * job.cluster.seconds_per_byte


def bound_s(job: Job) -> float:
    """The least time of a steady step at constant rates (s).

    The largest of: all the compute; all the bytes; and, for every layer m, what cannot overlap around it. The
    gradients of layers ≤ m are complete only after the backward pass of layers ≥ m, and the forward pass of
    layers ≥ m waits for them:

        max( A·C, wire(all), max_m [ Σ_{k≥m} (f_k + b_k) + (A-1)·C + wire(layers ≤ m) ] )

    Compute is that of the slowest worker. With servers and workers that differ, a fast worker's pushes can travel
    while a slow one computes; the last term then counts only what must follow the last gradient (`_exposed`). First
    steps, and steps in which something changes, may lie below the bound.

    Gradients that are clipped by their norm cross the step only in part (`_clipped_s`).
    """
    model, accumulation = job.model, job.accumulation
    compute = model.forward_s + model.backward_s
    per_layer = np.bincount(job.gradients.layer, weights=job.gradients.nbytes, minlength=len(model.layers))
    behind = np.cumsum(compute[::-1])[::-1] + (accumulation - 1) * compute.sum()  # Σ_{k≥m} + (A-1)·C
    before = np.cumsum(per_layer)  # bytes of layers ≤ m
    exposed = max(
        float((slowdown * behind + before * s_per_byte).max()) for slowdown, s_per_byte in _exposed(job.cluster)
    )
    least = max(accumulation * float(compute.sum()) * max(job.cluster.slowdown), wire_s(job), exposed)
    return max(least, _clipped_s(job, before.astype(float))) if job.clips else least


def _clipped_s(job: Job, before: Floats) -> float:
    """The least time of a step whose gradients are clipped by their norm (s).

    The norm needs all sums, so the whole forward pass follows on all of them. A sum must reach only one rank for
    that, its share's: half of an all-reduce's bytes. The other half, the all-gathers, may cross the step:

        max_m [ Σ_k f_k + Σ_{k≥m} b_k + (A-1)·C + wire(layers ≤ m) / 2 ]

    With servers the first half are the pushes. All workers know the norm at the same time. So each one's own pushes
    follow its own gradients, and a server takes in all pushes after the fastest worker's gradients.

    Args:
        job: what is trained, and on what.
        before: bytes of layers ≤ m, shape [layers].
    """
    model = job.model
    behind = np.cumsum(model.backward_s[::-1])[::-1] + (job.accumulation - 1) * model.compute_s
    times = [
        slowdown * (model.forward_s.sum() + behind) + before * per_byte_s
        for slowdown, per_byte_s in _summed(job.cluster)
    ]
    return float(np.max(times))


def yardstick_s(job: Job) -> float:
    """The bound, for what is compared with it (s).

    Raises:
        InputError: it is 0, and nothing can be a multiple of it.
    """
    least_s = bound_s(job)
    if not least_s:
        raise InputError(
            f"a step of {job.model.name} need not take any time: it computes nothing, and nothing that travels takes "
            "time; give layers times, or links a rate"
        )
    return least_s


def gap_closed(step_s: float, reference_s: float, lower_s: float) -> float | None:
    """The share of the attainable gain that a schedule takes: 0 is the reference, 1 is the bound.

    None where the reference is within 5 % of the bound: there is nothing to gain.
    """
    if reference_s <= 1.05 * lower_s:
        return None
    return (reference_s - step_s) / (reference_s - lower_s)


def _exposed(cluster: Cluster) -> list[tuple[float, float]]:
    """Pairs of (slowdown, seconds per byte) of compute and traffic that must follow each other in every step.

    A ring moves a gradient when the slowest worker has it. Servers: a worker's own push and pull follow its own
    gradient. And when the last worker l has pushed, the sum still goes to all; whoever gets it last, at least as fast
    as the fastest, computes before the next sum can be complete.
    """
    if not cluster.servers:
        return [(max(cluster.slowdown), cluster.seconds_per_byte)]
    up, down, slowdown = cluster.table
    own = cluster.remote / np.minimum(up, down)
    return [*zip(slowdown.tolist(), own.tolist(), strict=True), (float(slowdown.min()), _last_sum(cluster, up, down))]


def _summed(cluster: Cluster) -> list[tuple[float, float]]:
    """The same pairs, where traffic ends with the sums: reduce-scatters, or pushes."""
    if not cluster.servers:
        return [(max(cluster.slowdown), cluster.seconds_per_byte / 2)]
    up, down, slowdown = cluster.table
    own = cluster.remote / up
    taken_in = (cluster.workers - 1) * cluster.share / down
    return [*zip(slowdown.tolist(), own.tolist(), strict=True), (float(slowdown.min()), float(taken_in.max()))]


def _last_sum(cluster: Cluster, up: Floats, down: Floats) -> float:
    """Seconds per byte from the last worker's gradient until every worker has the sum."""
    served = (cluster.workers - 1) * cluster.share
    push_and_serve = ((cluster.remote + served) / up).min()  # by the last worker's host, whichever it is
    return float(max(push_and_serve, (served / up).max(), (cluster.remote / down).max()))
