"""How busy others kept this machine while something was measured on it."""

import os
import time
from types import TracebackType
from typing import Self

import psutil

MOST_CORES = 0.2  # more, and a measurement is not to be trusted
SEEN_S = 0.1  # of CPU; the kernel counts in hundredths of a second


class OtherLoad:
    """CPU that processes used which are not this one's, in cores; `cores` stands when the block has ended.

    `own_cores` is what this one used, and `wall_s` how long the block took.

    >>> with OtherLoad() as others:
    ...     testbed.run(["python", "train.py"])
    >>> others.cores < MOST_CORES

    Processes count as this one's when they have been waited for. What the kernel does for packets counts as nobody's.
    """

    cores: float
    own_cores: float
    wall_s: float

    def __enter__(self) -> Self:
        self._began = self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wall_s, others_s, own_s = (end - begin for begin, end in zip(self._began, self._read(), strict=True))
        self.cores, self.own_cores = max(0.0, others_s / self.wall_s), own_s / self.wall_s

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Now, and what others and this process have used so far (s)."""
        all_s = psutil.cpu_times()
        own = os.times()
        stolen_s = getattr(all_s, "steal", 0.0)
        busy_s = all_s.user + all_s.nice + all_s.system + stolen_s
        own_s = own.user + own.system + own.children_user + own.children_system
        return time.monotonic(), busy_s - own_s, own_s


def is_busy(cores: float, wall_s: float) -> bool:
    """Whether others have kept a machine too busy for what was measured on it.

    Args:
        cores: that others used.
        wall_s: for how long.
    """
    return cores > MOST_CORES and cores * wall_s >= SEEN_S
