"""What became ready within a cycle, fused up to a threshold: Horovod's tensor fusion."""

from collections import deque
from math import ceil

from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.job import Job
from autobyte.scheduler.alpha_beta import Timetable
from autobyte.scheduler.block import Segment, Tiling
from autobyte.scheduler.plan import Overlap, Plan
from autobyte.scheduler.policies.base import Policy
from autobyte.units import KIB, MIB

CYCLE_MS = 1.0  # HOROVOD_CYCLE_TIME
CYCLES_MS = (1.0, 100.0)  # what its own tuner searches


class Horovod(Policy):
    """`partition_bytes` is the fusion threshold; the knob `cycle_ms` is how often ready tensors are collected.

    A message begins when its last tensor is ready: the rest of its cycle, and the negotiation, are not modelled.

    Reference: Horovod (arXiv 1802.05799), sec. 7, "Tensor Fusion"; version 0.28: 128 MiB, 1 ms.
    """

    sizes = ("partition",)
    knobs = ("cycle_ms",)

    def plan(self, job: Job, config: Config) -> Plan:
        """Fused whole tensors in one fixed sequence, no window.

        Raises:
            InputError: a cycle that is not positive.
        """
        cycle_s = config.knobs.get("cycle_ms", CYCLE_MS) / 1e3
        if cycle_s <= 0:
            raise InputError(f"knob 'cycle_ms' must be positive, got {config.knobs['cycle_ms']}")
        table = Timetable.of(job)
        cycles: dict[int, list[int]] = {}
        for tensor, ready_s in zip(reversed(table.tensor.tolist()), reversed(table.ready_s.tolist()), strict=True):
            cycles.setdefault(ceil(ready_s / cycle_s), []).append(tensor)
        kind, nbytes, numel = (
            column.tolist() for column in (job.gradients.kind, job.gradients.nbytes, job.gradients.numel)
        )
        rows = [
            [Segment(tensor, 0, numel[tensor]) for tensor in row]
            for _, tensors in sorted(cycles.items())
            for row in _fuse(kind, nbytes, tensors, config.partition_bytes)
        ]
        tiling = Tiling.of(job.gradients, rows)
        return Plan(job, tiling, overlap=Overlap.BACKWARD, sequence=tiling.order)

    def space(self, job: Job) -> Space:
        """Threshold and cycle."""
        default = Config(128 * MIB, 128 * MIB, "horovod", {"cycle_ms": CYCLE_MS})
        return Space((256 * KIB, 128 * MIB), (1.0, 1.0), default, {"cycle_ms": CYCLES_MS})


def _fuse(kind: list[int], nbytes: list[int], tensors: list[int], most_bytes: int) -> list[list[int]]:
    """Fill messages in order; what no longer fits begins the next.

    A tensor of another dtype is passed over and leads a later one, while all that is passed over would fit as well.
    """
    rows, left = list[list[int]](), deque(tensors)
    while left:
        row, over, passed = [left.popleft()], list[int](), 0
        filled = nbytes[row[0]]
        while left:
            tensor = left.popleft()
            if kind[tensor] == kind[row[0]] and filled + nbytes[tensor] <= most_bytes:
                row.append(tensor)
                filled += nbytes[tensor]
                continue
            over.append(tensor)
            passed += nbytes[tensor]
            if filled + passed > most_bytes:
                break
        rows.append(row)
        left.extendleft(reversed(over))
    return rows
