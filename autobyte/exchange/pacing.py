"""How fast the kernel sends for the engine `ps`; nothing is imported for it unless it is asked for."""

import importlib
import socket
from collections.abc import Callable, Sequence

from autobyte.errors import InputError

PACER = "autobyte.congestion.datapath.pacer"  # named here, not imported: training does without congestion control

Pace = Callable[[Sequence[socket.socket]], None]


def pace_of(text: str, *, engine: str) -> Pace:
    """Find what paces connections.

    Args:
        text: as `DistributedOptimizer` has it.
        engine: that has the connections.

    Raises:
        InputError: another engine than `ps`, or a pacing that cannot be read.
    """
    if engine != "ps":
        raise InputError(f"pacing= is for engine='ps', not for '{engine}'")
    pace: Pace = importlib.import_module(PACER).parse_pacing(text)
    return pace
