"""Says in three sentences where the time of a traced job goes, and what to try."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from autobyte.breakdown import Breakdown, mean
from autobyte.errors import FileError
from autobyte.units import format_percent, format_seconds

HIDDEN = 0.05  # share of a step below which exposed communication is not worth a change
IDLE = 0.2  # share of a step from which idle time comes first
STRAGGLES = 1.15  # ratio of a rank's compute to the median rank's from which the others wait for it
WHICH = "name one that `optimizer.trace(…)` or `autobyte simulate --trace` wrote"


@dataclass(frozen=True)
class TracedJob:
    """What a trace file says of a job.

    Args:
        about: the job and how the trace was made.
        ranks: the mean step of every rank that is in the file, without the trace's first step if it has several.
    """

    about: dict[str, Any]
    ranks: dict[int, Breakdown]

    @property
    def slowest(self) -> int:
        """The rank that computes longest; the others wait for it."""
        return max(self.ranks, key=lambda rank: self.ranks[rank].compute_s)

    @property
    def straggling(self) -> float:
        """Compute of the slowest rank over the median rank's."""
        middle = median(part.compute_s for part in self.ranks.values())
        return self.ranks[self.slowest].compute_s / middle if middle > 0 else 1.0

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {
            "about": self.about,
            "slowest": self.slowest,
            "ranks": {
                str(rank): {"step_ms": part.step_s * 1e3} | part.to_json() for rank, part in self.ranks.items()
            },
            "explanation": explain(self),
        }


def read_trace(path: Path) -> TracedJob:
    """Read where time went from a trace file.

    Raises:
        FileError: it cannot be read, or is no trace of this project's with at least one step.
    """
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise FileError(f"cannot read trace {path}: {error.strerror}") from None
    except ValueError as error:
        raise FileError(f"{path} is no trace: it is not JSON ({error}); {WHICH}") from None
    steps: dict[int, list[tuple[float, Breakdown]]] = {}
    try:
        for event in data["traceEvents"]:
            if event.get("cat") == "step" and event["ph"] == "X":
                part = Breakdown.from_json(event["args"], step_s=float(event["dur"]) / 1e6)
                steps.setdefault(int(event["pid"]), []).append((float(event["ts"]), part))
        about = dict(data.get("otherData", {}))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FileError(f"{path} is a trace of another kind, or damaged; {WHICH}") from None
    if not steps:
        raise FileError(f"{path} has no row of steps; {WHICH}")
    ranks = {}
    for rank in sorted(steps):
        parts = [part for _, part in sorted(steps[rank], key=lambda step: step[0])]
        ranks[rank] = mean(parts[1:] or parts)  # the first one still waits for what came before the trace
    return TracedJob(about, ranks)


def explain(job: TracedJob) -> list[str]:
    """Three sentences: where the time of a step goes, why, and what to try."""
    part = job.ranks[job.slowest]
    shares = [seconds / part.step_s if part.step_s else 0.0 for seconds in (part.exposed_s, part.idle_s)]
    hidden = "" if part.overlap is None else f"; {format_percent(part.overlap)} of its communication is hidden"
    who = "The rank" if len(job.ranks) == 1 else f"Rank {job.slowest}, which computes longest,"
    where = (
        f"{who} takes {format_seconds(part.step_s)} a step: {format_percent(part.compute_s / (part.step_s or 1))} "
        f"compute, {format_percent(shares[0])} exposed communication, {format_percent(shares[1])} idle{hidden}."
    )
    return [where, *_advice(job, part, *shares)]


def _advice(job: TracedJob, part: Breakdown, exposed: float, idle: float) -> tuple[str, str]:
    """Why, and what to try."""
    ratio = part.communication_s / part.compute_s if part.compute_s > 0 else 0.0
    if idle >= max(IDLE, exposed):
        return (
            "In idle time the rank neither computes nor waits for averages: it loads data, say, or runs Python.",
            "No schedule shortens that: try more workers in the DataLoader, and fewer calls of .item().",
        )
    if not part.communication_s:
        return "Nothing travels in this trace.", "Faster compute alone shortens the step."
    if exposed < HIDDEN and job.straggling >= STRAGGLES:
        return (
            f"Its compute takes {job.straggling:.2g} × the median rank's, so the others wait for it, and not for the "
            "network.",
            "Try an equal share of the work: the same batch and hardware on all ranks, or less on this one.",
        )
    if exposed < HIDDEN:
        return (
            f"The job is compute-bound: communication takes {ratio:.2g} × compute, and nearly all of it is hidden.",
            f"Keep {_current(job)}: another schedule can gain {format_percent(exposed)} at most.",
        )
    least_s = max(part.communication_s, part.compute_s)
    if ratio >= 1:
        return (
            f"Communication takes {ratio:.2g} × compute, so with these bytes no schedule brings a step below "
            f"{format_seconds(least_s)}.",
            _fewer_bytes(job, 1 - least_s / part.step_s),
        )
    return (
        f"Communication takes {ratio:.2g} × compute, so a schedule may hide it: no step is below "
        f"{format_seconds(least_s)}.",
        _other_schedule(job),
    )


def _current(job: TracedJob) -> str:
    """What is in force, in words."""
    return "DDP" if job.about.get("policy") == "ddp" else "the config"


def _fewer_bytes(job: TracedJob, gain: float) -> str:
    """What to try where the network limits.

    Args:
        job: that was traced.
        gain: share of a step that another schedule can gain at most.
    """
    first = f"policy='auto', which can gain {format_percent(gain)} at most, then " if gain >= HIDDEN else ""
    passes = "more backward passes per step"
    if job.about.get("wire_dtype") in (None, "float32", "float64"):
        return f"Try {first}bf16 on the wire (wire_dtype='bf16'), which halves the bytes, or {passes}."
    return f"Try {first}{passes}, a larger batch or faster links: gradients travel in 16 bits already."


def _other_schedule(job: TracedJob) -> str:
    """What to try where another schedule can help."""
    if job.about.get("policy") == "ddp":
        return "DDP's buckets do not cross the step: try policy='auto', which measures schedules that do."
    return (
        "Try policy='auto' or tuner='twin', which measure other blocks, and bf16 on the wire if that is not enough."
    )
