"""A window on one rank, as one row of numbers: what ranks gather when it ends."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from autobyte.job import Floats
from autobyte.tuning import WINDOW

_TOTALS, _SENT = (4,), (2, 4)  # shapes
_BEHIND = 4 + 8 + 1  # numbers behind the layers' times


@dataclass(frozen=True)
class RankWindow:
    """What one rank measured in a window.

    Args:
        step_s: time of every step, shape [steps], at most `WINDOW` of them (s).
        forward_s, backward_s: of every layer, shape [layers] (s).
        totals: of the blocks that went over the wire, as `costs.totals` has them, shape [4]. In the first window
            of a config, this and what follows leave out its warm-up.
        sent: what they tell of links that crowd, as `costs.sent` has it, shape [2, 4].
        exposed_s: of a step, for how long the model's computing stood still for averages (s).
    """

    step_s: Floats
    forward_s: Floats
    backward_s: Floats
    totals: Floats
    sent: Floats
    exposed_s: float

    def pack(self) -> Floats:
        """The window as numbers, as many on all ranks, shape [WINDOW + 2 · layers + 13]."""
        steps = np.zeros(WINDOW)
        steps[: len(self.step_s)] = self.step_s
        behind = *self.totals, *self.sent.ravel(), self.exposed_s
        return np.concatenate([steps, self.forward_s, self.backward_s, behind])

    @classmethod
    def unpack(cls, rows: Floats, *, steps: int) -> list[Self]:
        """The windows of all ranks.

        Args:
            rows: as packed, shape [ranks, WINDOW + 2 · layers + 13].
            steps: in the window, the same on all ranks.
        """
        layers = (rows.shape[1] - WINDOW - _BEHIND) // 2
        ends = np.cumsum([WINDOW, layers, layers, *map(np.prod, (_TOTALS, _SENT))])
        return [
            cls(step_s[:steps], forward_s, backward_s, totals, sent.reshape(_SENT), float(exposed_s[0]))
            for step_s, forward_s, backward_s, totals, sent, exposed_s in (np.split(row, ends) for row in rows)
        ]
