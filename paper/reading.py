"""What CSVs of figures say, for the claims: gains, ranges, and how they are written."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import sheet

Range = tuple[float, ...]  # a number, or the least and the largest

TUNERS = {"metanet-published": "meta-network as published", "twin": "twin", "metanet": "our meta-network"}


def median(values: Iterable[float]) -> float:
    """The median of numbers."""
    return float(np.median(list(values)))


def span(values: Iterable[float]) -> Range:
    """The least and the largest."""
    values = list(values)
    return (min(values), max(values))


def percent(values: Range) -> str:
    """0.064, 0.23 as '6.4 … 23.0 %'."""
    return " … ".join(dict.fromkeys(f"{100 * value:.1f}".replace("-", "−") for value in values)) + " %"


def times(values: Range) -> str:
    """1.28 as '1.28x'."""
    return " … ".join(dict.fromkeys(f"{value:.2f}" if value >= 0.1 else f"{value:.2g}" for value in values)) + "x"


def over(ours: Range, published: Range) -> str:
    """Ours by the paper's, of speeds: a gain of 10 % is 1.1."""
    return " … ".join(f"{our:.2f}" for our in np.divide(ours, published))


def gain_over(ours: Range, published: Range) -> str:
    """The same of gains."""
    return over(tuple(1 + value for value in ours), tuple(1 + value for value in published))


def known(rows: pd.DataFrame, key: str = "method") -> list[str]:
    """Those of AutoByte's tuners that a file has."""
    return [name for name in TUNERS if name in set(rows[key])]


def gains(rows: pd.DataFrame, method: str, reference: str, *, of: str = "samples_per_s", **where: Any) -> list[float]:
    """Gain of one method over another in each cell of model, bandwidth and cost of a block, of medians over seeds."""
    place = [key for key in ("block_cost", "model", "gbit", "method") if key in rows]
    speeds = sheet.where(rows, **where).groupby(place, sort=False)[of].median()
    of_methods = speeds.unstack("method")
    return (of_methods[method] / of_methods[reference] - 1).tolist()


def by_phase(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean step times of phases of 20 iterations (s), a column for each method, from speeds of 5 iterations each."""
    timed = rows.assign(phase=rows["iteration"] // 20, seconds=1 / rows["samples_per_s"])
    steps = timed.groupby(["architecture", "model", "seed", "phase", "method"])["seconds"].mean()
    return steps.unstack("method").reset_index()


def phases(rows: pd.DataFrame, method: str, reference: str, **where: Any) -> list[float]:
    """Gain of one method over another in every phase but the first, medians over seeds.

    Args:
        rows: of phases: step times, a column for each method.
        method: whose gain.
        reference: over which.
        where: columns and their values.
    """
    late = sheet.where(rows, **where).query("phase > 0")
    place = [key for key in ("block_cost", "fusion", "batch", "architecture", "model", "phase") if key in late]
    gained = late.assign(gain=late[reference] / late[method] - 1)
    return gained.groupby(place)["gain"].median().tolist()


def bound_to(rows: pd.DataFrame, key: str, *needed: str, **where: Any) -> bool:
    """Whether all of these are in a column."""
    return set(needed) <= set(sheet.where(rows, **where)[key])
