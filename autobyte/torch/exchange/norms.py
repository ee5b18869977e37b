"""The norm of all averaged gradients, before they are in place."""

import math

import torch

from autobyte.exchange.control import Control
from autobyte.scheduler.engines.shares import Shares, total_norm
from autobyte.torch.exchange.flags import StepCounts, StepFlags


def check_clipping(counts: StepCounts, flags: StepFlags, control: Control, step: int) -> None:
    """Make sure that all ranks clip the gradients of a step alike, or none does.

    Args:
        counts: of the step.
        flags: this rank's.
        control: for the message.
        step: for the message.

    Raises:
        CommunicationError: some clip, and others do not; or they differ in what they clip to.
    """
    clipping, training = counts.clipping, control.size - counts.joined
    if 0 < clipping < training:
        raise control.failure(
            f"{clipping} of {training} ranks called clip_grad_norm_(), the "
            "others did not, or called synchronize() before it; call it on every rank, or on none",
            step=step,
        )
    if flags.clips is not None and not counts.clip_as(flags):
        limit, kind = flags.clips
        raise control.failure(
            "ranks differ in what clip_grad_norm_() is called with; "
            f"here max_norm is {limit:g}, norm_type is {kind:g}",
            step=step,
        )


def norm_of_all(shares: Shares, control: Control) -> float:
    """The norm of the gradients where each rank knows that of its own shares; NaN if none was measured. Collective.

    Args:
        shares: this rank's; their sums are there.
        control: reaches the other ranks.
    """
    rows = control.gather(torch.tensor([shares.norm()], dtype=torch.float64, device="cpu"))
    return math.nan if shares.kind is None else total_norm(rows[:, 0], shares.kind)
