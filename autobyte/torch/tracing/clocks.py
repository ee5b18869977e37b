"""How far the clocks of ranks are apart, from a few messages that all ranks send to each other.

A message cannot arrive before it was sent. So each one bounds the offset between two clocks from one side, and one in
the other direction from the other side; the error is half of what is left between the closest bounds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from autobyte.exchange.control import Control
from autobyte.job import Floats

ROUNDS = 16


@dataclass(frozen=True)
class ClockOffset:
    """A rank's clock beside the first rank's.

    Args:
        at_s: when it was measured, by the rank's own clock (s).
        ahead_s: the rank's clock less the first rank's (s).
        error_s: by which this may be wrong at most (s).
    """

    at_s: float
    ahead_s: float
    error_s: float


def measure(control: Control, *, clock: Callable[[], float] = time.perf_counter) -> list[ClockOffset]:
    """Measure the clocks of all ranks, the same result on each. Collective.

    Args:
        control: sends the messages.
        clock: of this rank.

    Raises:
        CommunicationError: a rank does not take part.
    """
    came_s, rows = 0.0, []
    for _ in range(ROUNDS + 1):  # the last one tells when the one before came
        numbers = control.gather(torch.tensor([clock(), came_s], dtype=torch.float64, device="cpu"))
        came_s = clock()
        rows.append(numbers.numpy())
    return offsets(np.array([row[:, 0] for row in rows[:-1]]), np.array([row[:, 1] for row in rows[1:]]))


def offsets(sent_s: Floats, came_s: Floats) -> list[ClockOffset]:
    """Compare clocks by messages that every rank sends to all others at about the same time.

    Args:
        sent_s: when each rank sent, by its own clock, shape [rounds, ranks] (s).
        came_s: when it had the messages of all others, likewise.
    """
    least = (sent_s - came_s[:, :1]).max(axis=0)
    most = (came_s - sent_s[:, :1]).min(axis=0)
    ahead = np.where((least <= 0) & (most >= 0), 0.0, (least + most) / 2)  # ranks of one host have one clock
    error = np.maximum(most - ahead, ahead - least)
    ahead[0] = error[0] = 0.0
    return [ClockOffset(*row) for row in zip(came_s[-1].tolist(), ahead.tolist(), error.tolist(), strict=True)]


def as_first_ranks(times: Floats, measured: list[ClockOffset]) -> Floats:
    """Times of a rank, by the first rank's clock (s).

    Args:
        times: by its own (s).
        measured: its offset, in the order of time; between two measurements clocks drift evenly.
    """
    if not measured:
        return times
    if any(later.at_s <= earlier.at_s for earlier, later in pairwise(measured)):
        measured = measured[:1]
    ahead = np.interp(times, [each.at_s for each in measured], [each.ahead_s for each in measured])
    moved: Floats = times - ahead
    return moved
