"""What a simulation shows, from the reference or from the compiled one."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autobyte.bound import bound_s
from autobyte.config import Config
from autobyte.job import Floats, Ints
from autobyte.notebooks import html_table
from autobyte.scheduler.plan import Plan
from autobyte.trace import Measurement, RuntimeStats, Trace
from autobyte.units import format_seconds


@dataclass(frozen=True, eq=False)
class Simulation:
    """A run of steps in virtual time.

    Args:
        plan: what was run.
        first: the first iteration.
        step_s: time of each step, from the last worker's start of a backward pass to its next; shape [iterations].
        worker_class: workers of one class are alike and did the same, shape [workers].
        forward_s, backward_s: mean time per layer (s), shape [classes, layers].
        wait_s: mean time that a layer's forward pass waited for its tensors: stall (s), shape [classes, layers].
        up_busy_s, down_busy_s: time that each worker's link was busy over the whole run (s), shape [classes].
        order: blocks in the order in which the first worker started them in the last step, shape [blocks].
        ready_s, start_s, done_s: when each block became ready, started, and was in place on the first worker in the
            last step, from the beginning of the run (s), shape [blocks].
        sends: of each worker's host over the whole run, as the function of that name has them, shape [classes, 2, 4].
        trace: spans of everything, if they were recorded.
    """

    plan: Plan
    first: int
    step_s: Floats
    worker_class: Ints
    forward_s: Floats
    backward_s: Floats
    wait_s: Floats
    up_busy_s: Floats
    down_busy_s: Floats
    order: Ints
    ready_s: Floats
    start_s: Floats
    done_s: Floats
    sends: Floats
    trace: Trace | None = None

    def __repr__(self) -> str:
        mean, least = format_seconds(self.mean_s), format_seconds(self.bound_s)
        return f"Simulation({self.plan.job.model.name!r}, steps: {len(self.step_s)}, mean {mean}, bound {least})"

    def _repr_html_(self) -> str:
        rows = [
            ("mean step", format_seconds(self.mean_s)),
            ("bound", format_seconds(self.bound_s)),
            ("samples/s", f"{self.samples_per_s:,.1f}"),
            ("blocks", f"{len(self.plan.tiling):,}, {self.inversions:,} of them behind a less urgent one"),
        ]
        return html_table(f"{self.plan.job.model.name}, steps simulated: {len(self.step_s)}", rows)

    @property
    def mean_s(self) -> float:
        """Mean step time (s)."""
        return float(self.step_s.mean())

    @property
    def samples_per_s(self) -> float:
        """V, the job's speed."""
        return self.plan.job.samples / self.mean_s

    @cached_property
    def bound_s(self) -> float:
        """The least time of a steady step (s)."""
        return bound_s(self.plan.job)

    @property
    def utilisation(self) -> Floats:
        """The part of the time that each worker's uplink was busy, shape [workers]."""
        return self.up_busy_s[self.worker_class] / float(self.step_s.sum())

    @property
    def stats(self) -> RuntimeStats:
        """Table II: layer times, and rates as bytes over link-busy time."""
        job, each = self.plan.job, self.worker_class
        moved = job.cluster.traffic * job.gradients.total_bytes * len(self.step_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            up, down = moved / self.up_busy_s[each], moved / self.down_busy_s[each]
        speed = np.full(job.cluster.workers, self.samples_per_s / job.cluster.workers)
        forward_s, backward_s = self.forward_s[each], self.backward_s[each]
        sends, wire_bytes = self.sends[each] / len(self.step_s), job.gradients.total_bytes
        return RuntimeStats(forward_s, backward_s, up, down, speed, job.cluster.servers, wire_bytes, sends)

    @property
    def inversions(self) -> int:
        """Blocks that had to let a less urgent one go first: the price of a large credit."""
        return priority_inversions(self.plan.tiling.priority, self.order, self.ready_s, self.start_s, self.done_s)

    def measured(self, config: Config, *, warmup: int = 0) -> Measurement:
        """The run as a tuner sees it."""
        return Measurement(config, self.first, tuple(self.step_s.tolist()), warmup, self.stats, self.trace)


def priority_inversions(priority: Ints, order: Ints, ready_s: Floats, start_s: Floats, done_s: Floats) -> int:
    """Count the blocks that were ready while a less urgent one, started before them, went onto the wire.

    Args:
        priority: smaller is more urgent, shape [blocks].
        order: blocks as they were started; they finish in that order.
        ready_s, start_s, done_s: when each became ready, was started and was done (s), shape [blocks].
    """
    before_s = np.concatenate([[0.0], done_s[order]])[: len(order)]
    wire_s = np.maximum(start_s[order], before_s)  # a block goes onto the wire when those before it are through
    count = 0
    ahead: list[int] = []  # places in the order, each block less urgent than all behind it
    for place, block in enumerate(order.tolist()):
        while ahead and priority[order[ahead[-1]]] <= priority[block]:
            ahead.pop()
        if ahead and wire_s[ahead[-1]] > ready_s[block]:
            count += 1
        ahead.append(place)
    return count
