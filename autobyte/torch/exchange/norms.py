"""The norm of all averaged gradients, before they are in place."""

import math

import torch

from autobyte.scheduler.engines.shares import Shares, total_norm
from autobyte.torch.exchange.control import Control
from autobyte.torch.exchange.flags import StepCounts


def all_clip(counts: StepCounts, control: Control, step: int) -> bool:
    """Whether ranks clip the gradients of a step by their norm.

    Raises:
        CommunicationError: some do, and others do not.
    """
    clipping, training = counts.clipping, control.size - counts.joined
    if 0 < clipping < training:
        raise control.failure(
            f"{clipping} of {training} ranks called clip_grad_norm_(), the "
            "others did not, or called synchronize() before it; call it on every rank, or on none",
            step=step,
        )
    return clipping > 0


def norm_of_all(shares: Shares, control: Control, *, limit: float | None, kind: float | None, step: int) -> float:
    """The norm of the gradients of which each rank has a share. Collective.

    Args:
        shares: this rank's; their sums are there.
        control: reaches the other ranks.
        limit, kind: what this rank clips to, and p of its norm; None for a rank whose inputs have ended.
        step: for messages.

    Raises:
        CommunicationError: ranks differ in what they clip to.
    """
    own = [shares.norm(), math.nan if limit is None else limit, math.nan if kind is None else kind]
    rows = control.gather(torch.tensor(own, dtype=torch.float64, device="cpu"))
    said = rows[~rows[:, 1].isnan()][:, 1:]
    if not bool((said == said[0]).all()):
        raise control.failure(
            "ranks differ in what clip_grad_norm_() is called with; "
            f"max_norm: {said[:, 0].tolist()}, norm_type: {said[:, 1].tolist()}",
            step=step,
        )
    return total_norm(rows[:, 0], float(said[0, 1]))
