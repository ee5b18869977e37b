"""Notices a loop that reads parameters after every step: its updates cannot wait for the next forward pass."""

import logging
import sys
from pathlib import Path
from types import FrameType

import torch

log = logging.getLogger("autobyte")

OFTEN = 5  # steps in a row
OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


class Reads:
    """Counts steps in a row after which parameters were read, and says so once.

    >>> reads = Reads()
    >>> for _ in range(5):
    ...     reads.step()
    ...     reads.note("'fc.weight' was")      # the fifth time, a line in the log
    """

    def __init__(self) -> None:
        self._row = 0  # steps in a row after which something was read
        self._read = True  # since the last step
        self._said = False

    def step(self) -> None:
        """A step was taken; updates are due."""
        if not self._read:
            self._row = 0
        self._read = False

    def note(self, what: str) -> None:
        """An update was taken for something that is no forward pass of its layer.

        Args:
            what: was read, with a verb: "'fc.weight' was".
        """
        if self._read:
            return
        self._read = True
        self._row += 1
        if self._row < OFTEN or self._said:
            return
        self._said = True
        log.info(
            "%s read between step() and the next forward pass, %d steps in a row (%s): "
            "their updates are taken there, and do not overlap with that pass",
            what,
            OFTEN,
            _reader(sys._getframe(1)),
        )


def _reader(frame: FrameType | None) -> str:
    """The line of the user's, or of another library, that reads."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OURS):
            return f"{Path(file).name}, line {frame.f_lineno}"
        frame = frame.f_back
    return "an unknown place"
