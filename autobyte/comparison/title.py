"""What was compared, in a line: for pictures, pages and terminals alike."""

from collections.abc import Mapping
from typing import Any

from autobyte.units import format_rate


def title(outcome: Mapping[str, Any]) -> str:
    """Say what was compared, or simulated; of `outcome` only `job` and `what` count."""
    job = outcome["job"]
    parts = [job["model"], job["architecture"], count(job["workers"], "worker"), _rates(job), outcome["what"]]
    return " · ".join(parts if job["scenario"] == "steady" else [*parts, job["scenario"]])


def count(number: int, what: str) -> str:
    """A number of things.

    >>> count(1, "worker"), count(8, "worker")
    ('1 worker', '8 workers')
    """
    return f"{number} {what}" if number == 1 else f"{number:,} {what}s"


def _rates(job: Mapping[str, Any]) -> str:
    listed = [job[side] for side in ("up_bytes_per_s", "down_bytes_per_s")]
    rates = [float(rate) for side in listed for rate in (side if isinstance(side, list) else [side])]  # "inf" is text
    low, high = format_rate(min(rates)), format_rate(max(rates))
    return low if low == high else f"{low} to {high}"
