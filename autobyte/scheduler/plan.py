"""How a step's gradients travel: blocks, their order, their window, and what they may run beside."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Self

import numpy as np

from autobyte.errors import InputError
from autobyte.job import Ints, Job
from autobyte.scheduler.block import Tiling
from autobyte.units import format_bytes


class Overlap(StrEnum):
    """What a plan's communication may run beside."""

    NONE = "none"  # after backward, before the next forward
    BACKWARD = "backward"  # beside backward; the next forward waits for all of it
    STEP = "step"  # across the step boundary: a layer's forward waits for its own tensors


class CreditRule(StrEnum):
    """When a block may start."""

    SOFT = "soft"  # while credit > 0; overshoots by up to one block (ByteScheduler)
    HARD = "hard"  # only if all of it fits, or nothing is in flight


@dataclass(frozen=True, eq=False)
class Plan:
    """What a policy makes of a job and a config; the same on every rank.

    >>> plan = Plan(job, cut(job.gradients, 4 * MIB), credit_bytes=16 * MIB)

    Args:
        job: what is trained, and on what.
        tiling: its gradients, divided into blocks.
        credit_bytes: the window of bytes in flight; None is unlimited.
        rule: how the window counts.
        overlap: what the communication may run beside.
        sequence: a fixed order of all blocks, or None for whichever ready block is the most urgent.
        barrier: the next forward pass waits for all reduce-scatters, because gradients are clipped by their norm.

    Raises:
        InputError: the tiling is of other gradients, the credit is not positive, or the sequence is not a permutation
            of the blocks, or has an all-gather before its reduce-scatter.
    """

    job: Job
    tiling: Tiling
    credit_bytes: int | None = None
    rule: CreditRule = CreditRule.SOFT
    overlap: Overlap = Overlap.STEP
    sequence: Ints | None = None
    barrier: bool = False

    def __post_init__(self) -> None:
        if self.tiling.gradients is not self.job.gradients:
            raise InputError(f"the tiling is not of the gradients of '{self.job.model.name}'")
        if self.credit_bytes is not None and self.credit_bytes < 1:
            raise InputError(f"credit_bytes must be positive, got {self.credit_bytes}")
        if self.sequence is not None and not np.array_equal(np.sort(self.sequence), np.arange(len(self.tiling))):
            raise InputError(f"a sequence names each of the {len(self.tiling)} blocks once")
        if self.sequence is not None and self.tiling.gathers is not None:
            place, gathering = np.argsort(self.sequence), np.flatnonzero(self.tiling.gathers >= 0)
            if (place[gathering] < place[self.tiling.gathers[gathering]]).any():
                raise InputError("a sequence names no all-gather before its reduce-scatter")

    def __repr__(self) -> str:
        credit = "no limit" if self.credit_bytes is None else format_bytes(self.credit_bytes)
        return f"Plan({self.job.model.name!r}, {len(self.tiling)} blocks, credit: {credit}, overlap: {self.overlap})"

    @cached_property
    def digest(self) -> str:
        """A short hash of everything that ranks must agree on."""
        sequence = b"" if self.sequence is None else np.ascontiguousarray(self.sequence, dtype="<i8").tobytes()
        waits = f"{self.overlap} {self.barrier}"
        rest = f"{self.tiling.digest} {self.credit_bytes} {self.rule} {waits} {self.sequence is None}"
        return hashlib.sha256(rest.encode() + sequence).hexdigest()[:16]

    @property
    def awaited_scatters(self) -> int:
        """Reduce-scatters that the next forward pass waits for."""
        return self.tiling.scatters if self.barrier and self.overlap is Overlap.STEP else 0

    def clipped(self) -> Self:
        """The same plan where gradients are clipped by their norm.

        The norm needs all sums, so whole all-reduces could not cross the step. Halves can: when all reduce-scatters
        are over, each rank has the norm of its share, and all-gathers travel beside the next forward pass. With
        servers the halves are pushes and pulls. Where the forward pass waits for everything anyway, nothing changes.
        """
        if self.overlap is not Overlap.STEP:
            return self
        if self.tiling.gathers is not None:
            return replace(self, barrier=True)
        return replace(self, tiling=self.tiling.halved, sequence=None, barrier=True)

    def with_sequence(self, order: Sequence[int] | Ints | None) -> Self:
        """The same plan with a fixed order of its blocks, as NCCL and gloo need on all ranks; None frees it."""
        return replace(self, sequence=None if order is None else np.asarray(order, dtype=np.int64))
