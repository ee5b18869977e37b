"""Where the time of a step goes: compute, exposed communication, and idle time.

The terms are those of Holistic Trace Analysis (https://hta.readthedocs.io). A rank computes, waits for communication,
which is then *exposed*, or is idle. *Overlap* is the share of communication during which it does not wait.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Interval = tuple[float, float]  # beginning and end (s)


@dataclass(frozen=True)
class Breakdown:
    """A step of one rank, or the mean of several.

    Args:
        step_s: all of it (s).
        compute_s: forward and backward passes, and updates (s).
        exposed_s: the rank waits for averages (s).
        communication_s: at least one block is under way (s).
        overlapped_s: the part of that in which the rank does not wait (s).
    """

    step_s: float
    compute_s: float
    exposed_s: float
    communication_s: float
    overlapped_s: float

    @property
    def idle_s(self) -> float:
        """The rest: the rank neither computes nor waits for averages (s)."""
        return max(0.0, self.step_s - self.compute_s - self.exposed_s)

    @property
    def overlap(self) -> float | None:
        """Share of communication for which the rank does not wait; None where there is no communication."""
        return self.overlapped_s / self.communication_s if self.communication_s > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Milliseconds, and the overlap as a share of 1."""
        times = {
            "compute": self.compute_s,
            "exposed_communication": self.exposed_s,
            "idle": self.idle_s,
            "communication": self.communication_s,
        }
        return {f"{name}_ms": seconds * 1e3 for name, seconds in times.items()} | {"overlap": self.overlap}

    @classmethod
    def from_json(cls, data: dict[str, Any], *, step_s: float) -> "Breakdown":
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError: it is something else.
        """
        compute, exposed, communication = (
            float(data[f"{name}_ms"]) / 1e3 for name in ("compute", "exposed_communication", "communication")
        )
        overlap = 0.0 if data["overlap"] is None else float(data["overlap"])
        return cls(step_s, compute, exposed, communication, overlap * communication)


def breakdown(
    step: Interval, compute: Iterable[Interval], waits: Iterable[Interval], wire: Iterable[Interval]
) -> Breakdown:
    """Split a step of one rank.

    Args:
        step: from its beginning to its end; what lies beyond does not count.
        compute, waits: when the rank computed, and when it waited for averages; they do not overlap.
        wire: when blocks were under way; they may overlap.
    """
    waiting, travelling = (_within(step, intervals) for intervals in (waits, wire))
    together = sum(_length(_within(each, travelling)) for each in waiting)
    communication_s = _length(travelling)
    return Breakdown(
        step[1] - step[0],
        _length(_within(step, compute)),
        _length(waiting),
        communication_s,
        communication_s - together,
    )


def mean(parts: Sequence[Breakdown]) -> Breakdown:
    """The mean of steps, at least one."""
    names = ("step_s", "compute_s", "exposed_s", "communication_s", "overlapped_s")
    return Breakdown(*(sum(getattr(part, name) for part in parts) / len(parts) for name in names))


def _within(whole: Interval, intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals as far as it lies within another one: disjoint, in order."""
    union: list[Interval] = []
    for start, stop in sorted((max(start, whole[0]), min(stop, whole[1])) for start, stop in intervals):
        if stop <= start:
            continue
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], stop)
        else:
            union.append((start, stop))
    return union


def _length(intervals: Iterable[Interval]) -> float:
    return sum(stop - start for start, stop in intervals)
